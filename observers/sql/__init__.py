"""Export to a table of a SQL database, with exactly-once effect.

The room has the exporter, the table's layout, cq's own tables of progress, checks, rebuilds, sweeps and verification.
It may import `cq.observers.export` and the rooms below it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cq.observers.sql.configured import find_export

if TYPE_CHECKING:
    from cq.observers.sql.check import init
    from cq.observers.sql.table import Columns, declare_columns

__all__ = [
    "Columns",
    "declare_columns",
    "find_export",
    "init",
]

# Importing SQLAlchemy takes longer than importing all of cq. Commands and workers without an export do not wait for it.
_LATER = {"Columns": "table", "declare_columns": "table", "init": "check"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
