"""How far a bucket is exported, as the store knows it now: for an exporter that has found traces of another one."""

from __future__ import annotations

from cq.keys.export import ExportKeys
from cq.observers.export.batch import ExportPosition
from cq.observers.export.rows import holds
from cq.observers.export.state import read_view
from cq.store.api import TransactionRead


def read_position(
    snapshot: TransactionRead, queue: ExportKeys, bucket: int, sequence: bytes
) -> ExportPosition:
    """Up to where a bucket is exported and cleared, and whether it holds the entry of this sequence, at one version."""
    export = read_view(snapshot, queue, [bucket])
    held = holds(snapshot, queue, bucket, sequence)
    found = export()
    return ExportPosition(found.control.epoch, found.cleared(bucket), held)
