"""The settings of a client of Kafka, from the environment; cq never stores or shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cq.observers.links.environment import read_variable
from cq.observers.links.target import LinkFailed

FIXED: Final[Mapping[str, Any]] = {
    # A message is in the topic once all in-sync replicas have it; the client's retries neither repeat nor reorder.
    "acks": "all",
    "enable.idempotence": True,
    # After a message that the broker refuses, the client must not append later ones of the partition: consumers that
    # drop repetitions by position would take the refused one for a repetition when it comes.
    "enable.gapless.guarantee": True,
    # For the same reason messages do not expire one by one. `TopicAppender.append` limits the time of a whole batch.
    "message.timeout.ms": 0,
    "allow.auto.create.topics": False,
    # The partition of a key is the one that clients in Java choose.
    "partitioner": "murmur2_random",
    "log_level": 2,
}
"""Settings that the guarantees of the export depend on: a file cannot change them."""
MESSAGE_BYTES: Final = "message.max.bytes"
_DEFAULT_MESSAGE_BYTES: Final = 1_000_000
_ADDRESS: Final = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


def read_addresses(env: str) -> str:
    """The addresses of brokers, separated by commas, in the environment variable `env`.

    Raises `LinkFailed`, without the text, if there are none or one is malformed.
    """
    text = read_variable(env)
    if not text:
        raise LinkFailed(f"${env} is not set: give the addresses of Kafka's brokers there, such as host:9092")
    addresses = [address.strip() for address in text.split(",")]
    if not all(map(_ADDRESS.fullmatch, addresses)):
        # The message must not show the text: it may be a URL with a password.
        raise LinkFailed(f"the addresses in ${env} are malformed: expected host:port, separated by commas")
    return ",".join(addresses)


def read_settings(env: str) -> dict[str, Any]:
    """The client's settings: the addresses, and the lines of the file that the variable `env` + `_CONFIG` names.

    Raises `LinkFailed`, which shows no value of a setting, if one is missing or malformed.
    """
    addresses, path = read_addresses(env), read_variable(env, "_CONFIG")
    found = {} if not path else _read_file(path, f"${env}_CONFIG")
    return {**found, "bootstrap.servers": addresses, **FIXED}


def longest_message(settings: Mapping[str, Any]) -> int:
    """The maximum bytes of the key and value of a message by these settings; the client refuses other texts."""
    given = str(settings.get(MESSAGE_BYTES, ""))
    return int(given) if given.isascii() and given.isdecimal() else _DEFAULT_MESSAGE_BYTES


def _read_file(path: str, variable: str) -> dict[str, str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        # Only the kind of the error: a variable with a secret in place of the path would be shown.
        raise LinkFailed(f"the file that {variable} names cannot be read: {type(error).__name__}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise LinkFailed(f"line {number} of the file that {variable} names is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
