"""The columns that applications declare for their tables, by name: a stored configuration has names, never code."""

from __future__ import annotations

from threading import Lock
from typing import Final

from cq.errors import InvalidConfiguration
from cq.observers.export.batch import ExportFailed
from cq.observers.sql.table import Columns

_declared: Final[dict[str, Columns]] = {}
_declaring: Final = Lock()


def declare_columns(name: str, columns: Columns, *, version: int = 1) -> str:
    """Declare columns for `export_spec`; call it when the application's module is imported.

    Args:
        name: a name of your choice; a later declaration with the same name and version replaces this one.
        columns: the columns.
        version: raise it with every change of the functions; workers then export the whole table again.

    Returns `name@version`, the argument of `export_spec`.
    """
    if not name or "@" in name:
        raise InvalidConfiguration(f"expected the name of columns to be without '@', got: {name!r}")
    full = f"{name}@{version}"
    with _declaring:
        _declared[full] = columns
    return full


def declared_columns(name: str) -> Columns:
    """The columns declared as `name@version`; raises `ExportFailed` if this process has not declared them."""
    with _declaring:
        found = _declared.get(name)
    if found is None:
        raise ExportFailed(
            f"this process has no columns {name!r}: start it with --app and the application that declares them"
        )
    return found
