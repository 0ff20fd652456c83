"""An exporter into a table of a SQL database, exactly once in effect.

The room has the table and its progress rows, rebuilds, sweeps and checks. It may import `cq.observers.export`.
"""

from cq.observers.sql.check import (
    init,
)
from cq.observers.sql.columns import (
    declare_columns,
)
from cq.observers.sql.configured import (
    find_export,
)
from cq.observers.sql.table import (
    Columns,
)

__all__ = [
    "Columns",
    "declare_columns",
    "find_export",
    "init",
]
