"""The messages of a webhook: their bodies, and their ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq.observers.export.rows import ExportEntry
from cq.observers.sink.exporter import SentPosition, in_json

CHANGES: Final = "cq.changes"
SWEEP: Final = "cq.sweep"


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
            entries=in_json(entries),
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
