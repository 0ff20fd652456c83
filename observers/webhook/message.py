"""The messages of a webhook: their bodies, their ids, and the positions in them.

A position names the last entry of a bucket that a receiver has applied: the export's epoch and the entry's sequence. A
receiver stores it and compares it with others for equality only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq.encoding.json_values import to_json
from cq.keys.export import SEQUENCE_BYTES
from cq.observers.export.batch import CannotExport
from cq.observers.export.rows import ExportEntry

CHANGES: Final = "cq.changes"
SWEEP: Final = "cq.sweep"
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


class Source(NamedTuple):
    """The store, by its id, and the queue that a message comes from."""

    store: bytes
    queue: str

    def changes(
        self, bucket: int, previous: SentPosition, position: SentPosition, entries: Sequence[ExportEntry]
    ) -> bytes:
        """The body of a message with changes of one bucket, which follow the position `previous`.

        Raises `CannotExport` for keys or values without a form in JSON.
        """
        return self._body(
            CHANGES,
            bucket=bucket,
            previous=str(previous),
            position=str(position),
            entries=_in_json(entries),
        )

    def sweep(self, below: bytes) -> bytes:
        """The body of a message that all values were sent again: keys last sent below this sequence have no value."""
        return self._body(SWEEP, below=below.hex())

    def _body(self, kind: str, **data: Any) -> bytes:
        source = {"store": self.store.hex(), "queue": self.queue}
        return json.dumps({"type": kind, "data": source | data}, separators=(",", ":")).encode()


def message_id(body: bytes) -> str:
    """The id of a message, which is the same for each repetition of it."""
    return f"msg_{blake2b(body, digest_size=16).hexdigest()}"


def _in_json(entries: Sequence[ExportEntry]) -> list[dict[str, Any]]:
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
