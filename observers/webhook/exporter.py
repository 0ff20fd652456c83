"""The exporter that sends changes to a webhook: exactly once in effect if the receiver stores positions.

Each request has a position and the position before it. A receiver applies the entries and stores the position in one
transaction, if its stored position is the one before; otherwise it answers 409 with its position. So it applies each
batch once, in order, whichever requests are repeated, late or concurrent. From an answer 409 the exporter learns which
entries the receiver has, or that either side was set back, which stops the export. A receiver without positions accepts
every request, and gets some entries again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cq.keys.export import generation_of
from cq.observers.export.batch import (
    CannotExport,
    ExportBatch,
    ExportFailed,
    ExportStopped,
    FencedExporter,
    OutdatedBatch,
)
from cq.observers.sink.exporter import SentPosition, SinkExporter
from cq.observers.webhook.client import Answer, Receiver
from cq.observers.webhook.message import Source, message_id
from cq.plain_text import printable

_CONFLICT: Final = 409
_RETRIED: Final = frozenset((408, 425, 429))
"""Answers of the range 4xx that ask for a later try: timeout, too early, too many requests."""
_FAULTY: Final = frozenset((413, 422))
"""Answers that refuse the content: too large, or not processable. The worker halves the batch."""
_PAUSED: Final = frozenset((429, 503))
"""Answers whose header `Retry-After` says when to try again."""
LONGEST_RETRY_SECONDS: Final = 600.0
"""The longest pause that a receiver can ask for: after it the worker tries again, in case the header was wrong."""
_SHOWN: Final = 200


class WebhookExporter(SinkExporter, FencedExporter):
    """An exporter to a receiver, for all buckets of an export queue; thread-safe.

    Args:
        source: the store, and the queue.
        generation: the observer's generation.
        receiver: the receiver.
    """

    # A request's JSON is larger than the stored entries. Many servers accept a body of 1 MB at most.
    batch_bytes = 100_000
    batch_entries = 1_000
    target = "the receiver of the webhook"

    def __init__(self, source: Source, generation: int, receiver: Receiver) -> None:
        self._source = source
        self._generation = generation
        self._receiver = receiver

    def __call__(self, batch: ExportBatch) -> None:
        batch = self._own(batch)
        stored = self._apply(batch, SentPosition(batch.epoch, batch.cleared), b"")
        if stored is None:
            return
        progress = self._may_follow(batch, stored)
        if progress < batch.last and self._apply(batch, stored, progress) is not None:
            raise OutdatedBatch  # another worker sends entries of the bucket

    def check(self, batches: Sequence[ExportBatch]) -> None:
        for batch in map(self._own, batches):
            stored = self._stored(batch)
            if stored is not None:
                self._may_follow(batch, stored)

    def positions(self, batches: Sequence[ExportBatch]) -> list[SentPosition]:
        found = map(self._stored, map(self._own, batches))
        return [position for position in found if position is not None]

    def sweep(self, queue: str, epoch: int, below: bytes) -> int:
        """Send the message that keys last sent below this sequence have no value; returns 0."""
        answer = self._send(self._source.sweep(below))
        if answer.status == _CONFLICT:
            raise self._refused(answer)
        return 0

    def check_settings(self) -> str:
        return f"the receiver at {self._receiver.check()} accepts signed requests"

    def close(self) -> None:
        self._receiver.close()

    def _own(self, batch: ExportBatch) -> ExportBatch:
        return replace(batch, cleared=self._cleared(batch.cleared))

    def _cleared(self, cleared: bytes) -> bytes:
        """The store's position in this generation: another export may have cleared entries of an earlier one."""
        return cleared if generation_of(cleared) >= self._generation else b""

    def _apply(self, batch: ExportBatch, previous: SentPosition, progress: bytes) -> SentPosition | None:
        """Send the entries after `progress`; returns None if the receiver has applied them, else its position."""
        entries = [entry for entry in batch.ordered if entry.sequence > progress]
        position = SentPosition(batch.epoch, batch.last)
        answer = self._send(self._source.changes(batch.bucket, previous, position, entries))
        self.signal("delivered")
        return self._position(answer) if answer.status == _CONFLICT else None

    def _stored(self, batch: ExportBatch) -> SentPosition | None:
        """Compare positions without sending entries: None if they agree, else the receiver's position."""
        position = SentPosition(batch.epoch, batch.cleared)
        answer = self._send(self._source.changes(batch.bucket, position, position, ()))
        return self._position(answer) if answer.status == _CONFLICT else None

    def _may_follow(self, batch: ExportBatch, stored: SentPosition) -> bytes:
        """The sequence of the last entry of the batch that the receiver has applied; raises as `_may_apply`."""
        progress = self._progress(batch, stored)
        if not self._may_apply(batch, progress):
            raise OutdatedBatch
        return progress

    def _progress(self, batch: ExportBatch, stored: SentPosition) -> bytes:
        """The receiver's progress in the batch's epoch; empty if a rebase or rebuild has begun it since."""
        epoch, sequence = stored
        if not sequence or sequence == batch.cleared or sequence in batch.known:
            # Also in an earlier epoch: a worker of that epoch can have sent entries that this one then found applied.
            return sequence
        is_earlier = epoch < batch.epoch or (
            epoch == batch.epoch and generation_of(sequence) < self._generation
        )
        if epoch == batch.epoch and not is_earlier:
            return sequence
        position = batch.read_position(sequence)
        if position.epoch != batch.epoch:
            raise OutdatedBatch
        if not is_earlier:
            self._store_was_set_back(batch, sequence)  # to an earlier epoch
        if position.holds:
            return sequence
        if self._cleared(position.cleared) != batch.cleared:
            raise OutdatedBatch  # another worker has found these entries applied, and has cleared them
        return b""

    # Answers

    def _send(self, body: bytes) -> Answer:
        """Send a message; returns an answer of success, or 409. Raises for all others."""
        answer = self._receiver.post(message_id(body), body)
        status = answer.status
        if 200 <= status < 300 or status == _CONFLICT:
            return answer
        if status in _FAULTY:
            raise CannotExport(self._said(answer))
        if status >= 500 or status in _RETRIED:
            pause = answer.retry_seconds if status in _PAUSED else 0.0
            raise ExportFailed(self._said(answer), min(pause, LONGEST_RETRY_SECONDS))
        raise self._refused(answer)

    def _position(self, answer: Answer) -> SentPosition:
        try:
            content: Any = json.loads(answer.text)
        except (ValueError, RecursionError):  # the latter for deep nesting
            content = None
        found = SentPosition.parse(content.get("position", 0)) if isinstance(content, dict) else None
        if found is None:
            raise self._refused(answer)
        return found

    def _refused(self, answer: Answer) -> ExportStopped:
        return ExportStopped(f"{self._said(answer)}. {self.advice(self._source.queue)}")

    def _said(self, answer: Answer) -> str:
        text = printable(" ".join(answer.text.split())[:_SHOWN])
        why = ", a redirect, which is not followed" if 300 <= answer.status < 400 else ""
        return f"the receiver of the webhook answered {answer.status}{why}{f': {text}' if text else ''}"
