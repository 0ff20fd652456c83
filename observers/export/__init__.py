"""Export queues, and the worker tasks that deliver their entries through an exporter.

Any function can be an exporter; `cq.observers.sql.exporter` writes to a SQL table, `cq.observers.forward.exporter` to a
queue of another store. The room may import `cq.observers.scheduling`, `cq.observers.telemetry` and the rooms of `cq`.
"""

from cq.observers.export.batch import (
    CannotExport,
    Exporter,
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
