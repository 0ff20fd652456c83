"""The state of a bucket, which each pass that changes anything reads and rewrites."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from cq import runtime
from cq.encoding import codec
from cq.errors import CorruptData

_TYPES: Final = (bytes, bool, bytes, int, dict, int, bytes | None, bool)
_LONGEST_PLACE: Final = codec.MAX_KEY_BYTES + 4


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket's state, written by every pass that changes anything: the lock between passes.

    Attributes:
        token: random, fresh for each pass; a worker that finds its own knows that nobody has passed since.
        staged: whether updates folded ahead of their report may exist.
        cursor: hash and encoded key of the last key reported while others waited; empty at first.
        unfinished_since: read version of the first of the passes since which the bucket could not be read to its
            end; 0 when the last one could.
        observers: {generation of an observer: hash and encoded key up to which it has been told of the values; None
            when it has been told of all}. One that is missing has been told of none.
        purged: how many purges of the queue the bucket has been through, the one under way included.
        purging: hash and encoded key up to which values are purged; None when no purge is under way.
        missed: whether observers may have missed reports of keys of the bucket, see `cq.queue.missed_reports`.
        Stored only if True,
            so that all other states are readable by versions of cq that know nothing of it.
    """

    token: bytes = b""
    staged: bool = False
    cursor: bytes = b""
    unfinished_since: int = 0
    observers: dict[int, bytes | None] = field(default_factory=dict)
    purged: int = 0
    purging: bytes | None = None
    missed: bool = False

    def to_bytes(self) -> bytes:
        """As stored."""
        parts = [getattr(self, each.name) for each in fields(self)]
        return codec.encode(parts if self.missed else parts[:-1])

    @classmethod
    def from_bytes(cls, data: bytes | None) -> BucketState:
        """The inverse of `to_bytes`; None is the state of a bucket that no pass has touched."""
        if data is None:
            return cls()
        state = cls(*codec.decode_list(data, _TYPES, "a bucket's state", optional=1))
        places = [state.cursor, state.purging, *state.observers.values()]
        if not all(each is None or (type(each) is bytes and len(each) <= _LONGEST_PLACE) for each in places):
            raise CorruptData(f"a bucket's state is not one that cq wrote: {data[:40]!r}")
        return state


def fresh_token() -> bytes:
    """A token that no other pass has."""
    return runtime.token_bytes(12)
