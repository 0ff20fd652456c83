"""Columns that applications declare for their tables, by name: a stored configuration holds names, and never code."""

from __future__ import annotations

from threading import Lock
from typing import Final

from cq.errors import InvalidConfiguration
from cq.observers.export.errors import ExportFailed
from cq.observers.sql.table import Columns

_declared: Final[dict[str, Columns]] = {}
_declaring: Final = Lock()


def declare_columns(name: str, columns: Columns, *, version: int = 1) -> str:
    """Declare columns that exports can be configured with; call it where the module of the application is imported.

    Args:
        name: of your choice; other columns of the same name and version replace these.
        columns: see there.
        version: to be raised with every change of what the columns hold: the table is then exported anew.

    Returns `name@version`, to give to `export_spec`.
    """
    if not name or "@" in name:
        raise InvalidConfiguration(f"expected the name of columns to be without '@', got: {name!r}")
    full = f"{name}@{version}"
    with _declaring:
        _declared[full] = columns
    return full


def declared_columns(name: str) -> Columns:
    """The columns declared as `name@version`; raises `ExportFailed` when this process has none of that name."""
    with _declaring:
        found = _declared.get(name)
    if found is None:
        raise ExportFailed(
            f"this process has no columns {name!r}: start it with --app and the application that declares them"
        )
    return found
