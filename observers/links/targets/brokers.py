"""The client of Kafka: it appends batches of messages to a topic, and waits until the brokers have stored them.

Its settings come from the environment; cq never stores or shows them.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from cq import runtime
from cq.observers.links.spec import read_variable
from cq.observers.links.target import LinkFailed, LinkStopped, TargetRefuses
from cq.plain_text import printable

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
log = logging.getLogger("cq.kafka")
CONNECT_SECONDS: Final = 10.0
"""Maximum time until the brokers have described the topic."""
STORE_SECONDS: Final = 30.0
"""Maximum time until the brokers have stored a batch."""
_ASK_SECONDS: Final = 2.0
"""How often to ask for the topic again: between two tries, errors of the login are noticed."""
_POLL_SECONDS: Final = 0.1
_ANY_PARTITION: Final = -1
_REFUSALS: Final = frozenset(
    (
        "INVALID_RECORD",
        "MSG_SIZE_TOO_LARGE",
        "POLICY_VIOLATION",
        "RECORD_LIST_TOO_LARGE",
        "SASL_AUTHENTICATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "UNKNOWN_TOPIC_OR_PART",
        "UNSUPPORTED_SASL_MECHANISM",
        "_AUTHENTICATION",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
    )
)
"""Names of errors that a later try repeats, until an operator has repaired their cause."""
_CONSEQUENCES: Final = frozenset(
    ("_ALL_BROKERS_DOWN", "_GAPLESS_GUARANTEE", "_FATAL", "_TRANSPORT", "_TIMED_OUT")
)
"""Names of errors that follow from others: an error before them is the cause."""


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


class TopicMessage(NamedTuple):
    """A message of a topic; without a value it is a tombstone."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class KafkaTopic:
    """A topic of Kafka; thread-safe.

    Args:
        name: the topic's name.
        env: the environment variable with the brokers' addresses, see `read_settings`.
    """

    def __init__(self, name: str, env: str) -> None:
        self.name = name
        self._env = env
        self._taking = threading.Lock()
        self._idle: list[TopicAppender] = []

    def check_settings(self) -> str:
        """Return the brokers' addresses; raises `LinkFailed` if settings are missing or malformed."""
        read_settings(self._env)
        return read_addresses(self._env)

    def check(self) -> None:
        """Ask the brokers for the topic; raises `TargetRefuses` if they refuse or lack it, else `LinkFailed`."""
        self._run(lambda appender: appender.count_partitions())

    def append(self, messages: Sequence[TopicMessage]) -> None:
        """Append messages in order, each to the partition of its key; returns once the brokers have stored them all.

        If this raises, the topic has a part of the messages, or gets it later: a prefix of those of each partition.

        Raises `TargetRefuses` if a broker refuses a message, else `LinkFailed`.
        """
        self._run(lambda appender: appender.append((message, _ANY_PARTITION) for message in messages))

    def append_to_all(self, message: TopicMessage) -> None:
        """Append a message to every partition; raises as `append`."""

        def append(appender: TopicAppender) -> None:
            appender.append((message, partition) for partition in range(appender.count_partitions()))

        self._run(append)

    def longest_message(self) -> int:
        """The maximum bytes of a message's key and value that the client sends."""
        return longest_message(read_settings(self._env))

    def close(self) -> None:
        """Close the connections that no thread uses."""
        with self._taking:
            idle, self._idle = self._idle, []
        for appender in idle:
            appender.end()

    def _run(self, call: Callable[[TopicAppender], object]) -> None:
        """Call this with an appender that no other thread uses, and keep the appender unless the call raises."""
        with self._taking:
            appender = self._idle.pop() if self._idle else None
        appender = appender or TopicAppender(self.name, self._env)
        try:
            call(appender)
        except BaseException:
            appender.end()  # it may still hold messages, which need not be sent any more
            raise
        with self._taking:
            self._idle.append(appender)


class TopicAppender:
    """Connections to the brokers of a topic; one thread at a time may use it, and none after an error.

    Args:
        topic: the topic's name.
        env: as in `KafkaTopic`.

    Raises `LinkFailed` if a setting is missing or refused. Errors of its methods are those of `KafkaTopic`.
    """

    def __init__(self, topic: str, env: str) -> None:
        self._topic = topic
        self._env = env
        self._problems: deque[KafkaError] = deque(maxlen=16)
        # Not a method of this object: the client is closed when its last reference goes, and must be in no cycle.
        settings = {**read_settings(env), "error_cb": self._problems.append}
        try:
            self._client = Producer(settings, logger=_DebugLog())
        except (KafkaException, TypeError, ValueError) as error:
            raise LinkFailed(
                f"the client of Kafka refuses {_setting(str(error))} that ${env}_CONFIG names"
            ) from None
        self._is_known = False  # whether the brokers have the topic

    def append(self, messages: Iterable[tuple[TopicMessage, int]]) -> None:
        """Append messages, each to this partition or, by its key, to any; returns once the brokers have stored all."""
        if not self._is_known:
            self.count_partitions()  # for an unknown topic, the client would wait as for brokers that are away
        outcomes, number = list[Any](), 0
        ends = runtime.monotonic() + STORE_SECONDS
        try:
            self._client.poll(0)
            self._problems.clear()  # those of connections that were idle since the previous batch
            for number, (message, partition) in enumerate(messages, 1):  # noqa: B007 - the number of all messages
                self._client.produce(
                    self._topic,
                    message.value,
                    message.key,
                    partition,
                    headers=message.headers,
                    on_delivery=lambda error, _: outcomes.append(error),
                )
            while len(outcomes) < number and not any(outcomes):
                if runtime.monotonic() > ends:
                    raise self._failed(f"no answer within {STORE_SECONDS:g} s")
                self._client.poll(_POLL_SECONDS)
        except (KafkaException, SystemError, BufferError) as error:
            # A fatal error of the client is raised by `poll`, and can end a call of a function in between.
            raise self._failed(f"{error.__class__.__name__}: {error}", [*_errors(error), *outcomes]) from None
        if any(outcomes):
            raise self._failed("", outcomes)

    def end(self) -> None:
        """Drop messages that the client still has. The appender must not be used afterwards."""
        with suppress(KafkaException, SystemError):
            self._client.purge()
            self._client.poll(0)

    def count_partitions(self) -> int:
        """The number of the topic's partitions, as the brokers say now."""
        ends = runtime.monotonic() + CONNECT_SECONDS
        while True:
            try:
                found = self._client.list_topics(self._topic, timeout=min(_ASK_SECONDS, CONNECT_SECONDS))
                found = found.topics[self._topic]
                break
            except KafkaException as error:
                with suppress(KafkaException, SystemError):
                    self._client.poll(0)  # for the errors of connections
                failed = self._failed("", _errors(error))
                if isinstance(failed, LinkStopped) or runtime.monotonic() > ends:
                    raise failed from None
        if found.error is not None:
            raise self._failed("", [found.error])
        self._is_known = True
        return len(found.partitions)

    def _failed(self, text: str, errors: Iterable[KafkaError | None] = ()) -> LinkFailed | LinkStopped:
        """The error to raise, of the first cause among these errors and those of the connections."""
        known = [error for error in (*errors, *self._problems) if error is not None]
        causes = [
            error for error in known if error.name() not in _CONSEQUENCES and "PURGE" not in error.name()
        ]
        refused = [error for error in causes if error.name() in _REFUSALS]
        named = next(iter(refused or causes or [each for each in known if "ALL_" not in each.name()]), None)
        if named is not None:
            text = named.str()
        said = f"topic {self._topic!r} of Kafka in ${self._env}: {printable(' '.join(text.split()))}"
        return TargetRefuses(said) if refused else LinkFailed(said)


class _DebugLog:
    """Takes the client's log lines: an export reports failures itself, and these lines repeat them."""

    def log(self, level: int, message: str, *args: object) -> None:
        log.debug(message, *args)


def _errors(error: Exception) -> list[KafkaError]:
    """The errors of the library in an exception of it."""
    return [each for each in error.args if hasattr(each, "name")]


def _setting(text: str) -> str:
    """Which setting an error of the client is about: not its value, which may be a secret."""
    found = re.search(r'[Cc]onfiguration property:? "([\w.]+)"', text)
    return f"the setting {found[1]} in the file" if found else "settings in the file"
