"""The current export position of a bucket, for an exporter whose batch does not match the other database."""

from __future__ import annotations

from cq.keys.export import ExportKeys
from cq.observers.export.batch import ExportPosition
from cq.observers.export.rows import holds
from cq.observers.export.state import read_view
from cq.store.api import TransactionRead


def read_position(
    snapshot: TransactionRead, queue: ExportKeys, bucket: int, sequence: bytes
) -> ExportPosition:
    """Read a bucket's position, and whether the bucket holds the entry with this sequence, at one version."""
    export = read_view(snapshot, queue, [bucket])
    held = holds(snapshot, queue, bucket, sequence)
    found = export()
    return ExportPosition(found.control.epoch, found.cleared(bucket), held)
