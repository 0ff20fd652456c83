"""The base of exporters that send changes to a sink: a receiver of HTTP requests, or a topic of Kafka.

A position names the last entry of a bucket that a sink has applied: the export's epoch and the entry's sequence. A sink
stores it and compares it with others for equality only.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cq.encoding.json_values import to_json
from cq.keys.export import SEQUENCE_BYTES
from cq.observers.export.batch import CannotExport, ExportBatch, KeptExporter
from cq.observers.export.rows import ExportEntry

_POSITION: Final = re.compile(rf"(\d{{1,15}})-([0-9a-f]{{{2 * SEQUENCE_BYTES}}})")


class SentPosition(NamedTuple):
    """The position of a bucket's export; an empty sequence stands for the beginning."""

    epoch: int
    sequence: bytes

    def __str__(self) -> str:
        """The position in a message; empty at the beginning."""
        return f"{self.epoch}-{self.sequence.hex()}" if self.sequence else ""

    @classmethod
    def parse(cls, text: object) -> SentPosition | None:
        """The inverse of `str`; None for a text that is not a position. The beginning has the epoch 0."""
        if text in ("", None):
            return cls(0, b"")
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        return None if found is None else cls(int(found[1]), bytes.fromhex(found[2]))


class SinkExporter(KeptExporter):
    """An exporter that sends changes to a sink, for all buckets of an export queue; thread-safe."""

    # A check without entries cannot repeat a refusal of entries: only an operator can say that the cause is repaired.
    resumes = False

    @abstractmethod
    def positions(self, batches: Sequence[ExportBatch]) -> list[SentPosition]:
        """Check the sink; returns its positions that differ from those of these batches. Raises as `check`."""

    def advice(self, queue: str) -> str:
        """What an operator can do after the export has stopped."""
        return (
            f"Repair the cause; then `cq export rebase {queue}` continues from here, "
            f"and `cq export rebuild {queue}` sends all values again"
        )


def in_json(entries: Sequence[ExportEntry]) -> list[dict[str, Any]]:
    """The entries as dicts of `key`, `value` and `sequence` for JSON, in order; a value of None is a deletion.

    Raises `CannotExport`, which names the entries, for keys or values without a form in JSON.
    """
    found: list[dict[str, Any]] = []
    errors: dict[bytes, str] = {}
    for entry in entries:
        try:
            value = None if entry.value is None else to_json(entry.value)
            found.append({"key": to_json(entry.key), "value": value, "sequence": entry.sequence.hex()})
        except (TypeError, ValueError, RecursionError) as error:
            errors[entry.sequence] = f"{type(error).__name__}: {error}"
    if errors:
        raise CannotExport(next(iter(errors.values())), errors)
    return found
