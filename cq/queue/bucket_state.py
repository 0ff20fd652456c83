"""The state of a bucket, which every pass with writes reads and rewrites."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from cq import runtime
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.cbor import dumps
from cq.errors import CorruptData

_TYPES: Final = (bytes, bool, bytes, int, dict, int, bytes | None, bool, bytes | None)
_LONGEST_PLACE: Final = codec.MAX_KEY_BYTES + 4


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket's state. Every pass with writes reads it with a conflict and rewrites it: the lock between passes.

    Attributes:
        token: random, new in each pass; a worker that finds its own token knows that no other pass has run since.
        staged: whether the bucket may have staged updates, folded before their report.
        cursor: hash and encoded key of the last reported key, if other keys of the backlog remain; initially empty.
        unfinished_since: read version of the first of the latest passes that did not reach the end of the bucket; 0 if
            the last pass reached it.
        observers: {generation of an observer: hash and encoded key up to which its backfill has come, None if it is
            complete}. A missing generation has not started.
        purged: number of the queue's purges that the bucket has started.
        purging: hash and encoded key up to which values are purged; None if no purge is in progress.
        missed: whether observers may have missed reports of keys of the bucket, see `cq.queue.missed_reports`.
        converting: hash and encoded key up to which values are converted to the version of the combiner that the shape
            began with; None if all are. The last two are stored only if they are not the default: most states need
            neither.
    """

    token: bytes = b""
    staged: bool = False
    cursor: bytes = b""
    unfinished_since: int = 0
    observers: dict[int, bytes | None] = field(default_factory=dict)
    purged: int = 0
    purging: bytes | None = None
    missed: bool = False
    converting: bytes | None = b""

    def to_bytes(self) -> bytes:
        """The stored bytes."""
        parts = [getattr(self, each.name) for each in fields(self)]
        stored = len(parts) if self.converting != b"" else len(parts) - (1 if self.missed else 2)
        return dumps(parts[:stored])

    @classmethod
    def from_bytes(cls, data: bytes | None) -> BucketState:
        """The inverse of `to_bytes`; `data` is None for a bucket without any pass so far."""
        if data is None:
            return cls()
        state = cls(*codec.decode_list(data, _TYPES, "a bucket's state", optional=2))
        places = [state.cursor, state.purging, state.converting, *state.observers.values()]
        if not all(each is None or (type(each) is bytes and len(each) <= _LONGEST_PLACE) for each in places):
            raise CorruptData(f"a bucket's state is not one that cq wrote: {data[:40]!r}")
        return state


def fresh_token() -> bytes:
    """A new random token, different from that of any other pass."""
    return runtime.token_bytes(12)


def needs_purge(config: QueueConfig, state: BucketState) -> bool:
    """Whether a purge of a bucket is pending or in progress."""
    return has_new_purge(config, state) or state.purging is not None


def needs_conversion(config: QueueConfig, state: BucketState) -> bool:
    """Whether values of a bucket must be converted before any update of it is combined."""
    return (
        config.conversion is not None
        and config.conversion.converts
        and config.former is None
        and state.converting is not None
    )


def has_new_purge(config: QueueConfig, state: BucketState) -> bool:
    """Whether no pass over a bucket has started the latest purge."""
    return config.purges.generation == config.generation and state.purged < config.purges.latest
