"""Export to a table of a SQL database, with exactly-once effect.

The room has the exporter, the table's layout, cq's own tables of progress, checks, rebuilds, sweeps and verification.
It may import `cq.observers.export` and the rooms below it.
"""

from cq.observers.sql.check import (
    init,
)
from cq.observers.sql.configured import (
    find_export,
)
from cq.observers.sql.table import (
    Columns,
    declare_columns,
)

__all__ = [
    "Columns",
    "declare_columns",
    "find_export",
    "init",
]
