"""What is stored of an export with the queue: names only, of the table and of the variable that has the URL."""

from __future__ import annotations

from typing import Any, Final

from cq.changes import ObserverSpec
from cq.codec import brief
from cq.errors import InvalidConfiguration

NAME: Final = "export"
"""The observer's name."""
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
    settings: dict[str, Any] = {"table": check_identifier(table), "url_env": _checked_env(url_env)}
    if schema is not None:
        settings["schema"] = check_identifier(schema)
    if columns is not None:
        settings["columns"] = columns
    return ObserverSpec(NAME, VERSION, settings)


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


def _checked_env(name: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        # Not shown: somebody may have given the URL itself, with its password.
        raise InvalidConfiguration("expected the name of an environment variable, such as CQ_REPORTING_URL")
    return name
