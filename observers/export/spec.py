"""What is stored of an export with the queue: names only, of the table and of the variable that has the URL."""

from __future__ import annotations

from typing import Any, Final

from cq.config.queue import QueueConfig
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.observer import ObserverSpec

NAME: Final = "export"
"""The observer's name."""
EXPORTERS: Final = (NAME, "forward")
"""The observers that fill the export queue of their queue's name: a queue has one of them at most."""
VERSION: Final = 1
DEFAULT_ENV: Final = "CQ_REPORTING_URL"
"""The environment variable that has the reporting database's URL, unless another one is named."""
MAX_NAME: Final = 63
"""Bytes of an identifier: PostgreSQL's limit, and the lowest of all."""


def export_spec(
    table: str, *, schema: str | None = None, url_env: str = DEFAULT_ENV, columns: str | None = None
) -> ObserverSpec:
    """The observer that exports a queue into a table: for `cq.configure(..., observers=[...])`.

    Args:
        table: its name; taken as it is, in quotes.
        schema: the schema it is in, None for the database's default one.
        url_env: the environment variable that has the URL of the reporting database, wherever workers run.
        columns: what `declare_columns` returned, None for `key` and `value`.

    Raises `InvalidConfiguration`.
    """
    settings: dict[str, Any] = {
        "table": check_identifier(table),
        "url_env": checked_env(url_env, DEFAULT_ENV),
    }
    if schema is not None:
        settings["schema"] = check_identifier(schema)
    if columns is not None:
        settings["columns"] = columns
    return ObserverSpec(NAME, VERSION, settings)


def check_alone(config: QueueConfig, name: str) -> None:
    """Raises `InvalidConfiguration` when a queue has another observer of those that fill its export queue."""
    others = [each.name for each in config.observers if each.name in EXPORTERS and each.name != name]
    if others:
        raise InvalidConfiguration(
            f"queue {config.name!r} has the observer {others[0]!r}, and cannot have {name!r}, too: both fill its "
            "export queue; forward it, and export the receiving queue"
        )


def check_identifier(name: object) -> str:
    """The name itself; raises `InvalidConfiguration` unless every database takes it, in quotes."""
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME
        or not name.isprintable()
    ):
        raise InvalidConfiguration(f"expected a name of 1 to {MAX_NAME} printable bytes, got: {brief(name)}")
    if name != name.strip():  # MySQL takes no name that ends with a space
        raise InvalidConfiguration(f"expected a name without spaces around it, got: {name!r}")
    return name


def checked_env(name: str, example: str) -> str:
    """The name of an environment variable itself; raises `InvalidConfiguration`."""
    if not isinstance(name, str) or not name.isidentifier():
        # Not shown: somebody may have given the URL itself, with its password.
        raise InvalidConfiguration(f"expected the name of an environment variable, such as {example}")
    return name
