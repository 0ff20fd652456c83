"""The settings of an export in the queue's configuration: the table's name, and the URL's environment variable."""

from __future__ import annotations

from typing import Any, Final

from cq.config.queue import QueueConfig
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.observer import ObserverSpec

NAME: Final = "export"
"""The observer's name."""
EXPORTERS: Final = (NAME, "forward", "webhook", "kafka")
"""The observers that fill the export queue with their queue's name; a queue has at most one of them."""
VERSION: Final = 1
DEFAULT_ENV: Final = "CQ_REPORTING_URL"
"""The default environment variable of the reporting database's URL."""
MAX_NAME: Final = 63
"""Maximum bytes of an identifier: PostgreSQL's limit, the lowest of all."""


def export_spec(
    table: str, *, schema: str | None = None, url_env: str = DEFAULT_ENV, columns: str | None = None
) -> ObserverSpec:
    """The observer that exports a queue to a table, for `cq.configure(..., observers=[...])`.

    Args:
        table: the table's name, which statements quote.
        schema: the table's schema; None: the database's default.
        url_env: the environment variable in which workers find the URL of the reporting database.
        columns: the return value of `declare_columns`; None: `key` and `value`.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings: dict[str, Any] = {
        "table": check_identifier(table),
        "url_env": checked_env(url_env, DEFAULT_ENV),
    }
    if schema is not None:
        settings["schema"] = check_identifier(schema)
    if columns is not None:
        settings["columns"] = columns
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: check_alone(config, NAME))


def check_alone(config: QueueConfig, name: str) -> None:
    """Raise `InvalidConfiguration` if a queue has another observer that fills its export queue."""
    others = [each.name for each in config.observers if each.name in EXPORTERS and each.name != name]
    if others:
        raise InvalidConfiguration(
            f"queue {config.name!r} has the observer {others[0]!r}, and cannot have {name!r}, too: both fill its "
            "export queue; forward it, and export the receiving queue"
        )


def check_identifier(name: object) -> str:
    """Return the name; raises `InvalidConfiguration` unless every database accepts it in quotes."""
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME
        or not name.isprintable()
    ):
        raise InvalidConfiguration(f"expected a name of 1 to {MAX_NAME} printable bytes, got: {brief(name)}")
    if name != name.strip():  # MySQL rejects names that end with a space
        raise InvalidConfiguration(f"expected a name without spaces around it, got: {name!r}")
    return name


def checked_env(name: str, example: str) -> str:
    """Return the name of an environment variable; raises `InvalidConfiguration` unless it is one."""
    if not isinstance(name, str) or not name.isidentifier():
        # The message must not show the argument: it may be the URL itself, with a password.
        raise InvalidConfiguration(f"expected the name of an environment variable, such as {example}")
    return name
