"""The export queue of a queue, and the task that empties it through any exporter.

An exporter into a SQL table is in `cq.observers.sql.exporter`, one into another queue in
`cq.observers.forward.observer`. The room may import scheduling, telemetry and the rooms of `cq`.
"""

from cq.observers.export.batch import (
    Exporter,
)
from cq.observers.export.errors import (
    CannotExport,
    ExportFailed,
    ExportStopped,
    OutdatedBatch,
)
from cq.observers.export.queue import (
    ExportQueue,
)
from cq.observers.export.spec import (
    export_spec,
)

__all__ = [
    "CannotExport",
    "ExportFailed",
    "ExportQueue",
    "ExportStopped",
    "Exporter",
    "OutdatedBatch",
    "export_spec",
]
