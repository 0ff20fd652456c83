"""The keys of the notes that a task keeps about its work with another database: failures, and the reason of a stop."""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import below

_NUMBER: Final = Struct(">I")


class NoteKeys:
    """The keys of notes below a prefix; the base of the keys of links and of outboxes.

    Attributes:
        queue, link: the names of the queue and of the link; `outbox` for an outbox.
        prefix: of all keys.
        control: the key of the epoch, which counts rebases.
        stopped: the key of the reason of a stop.
        keeper: the key of the notification of the task for all buckets.
    """

    def __init__(self, queue: str, link: str, prefix: bytes) -> None:
        self.queue, self.link = queue, link
        self.prefix = prefix
        self.control = prefix + b"c"
        self.stopped = prefix + b"s"
        self.keeper = prefix + b"k"
        self._notifications = prefix + b"n"
        self._failures = prefix + b"f"

    def notification(self, bucket: int) -> bytes:
        """The key of the notification of a bucket, which exists while the bucket has work."""
        return self._notifications + _NUMBER.pack(bucket)

    def failure(self, bucket: int | None) -> bytes:
        """The key of the note of the failure of a bucket's task, or of the task for all buckets (None)."""
        return self._failures + (b"" if bucket is None else _NUMBER.pack(bucket))

    def failures(self) -> tuple[bytes, bytes]:
        """The range of all notes of failures."""
        return below(self._failures)
