"""What a bucket keeps in the store beside its rows and values: its state, and what its worker remembers of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from cq import codec, machine
from cq.errors import CorruptData
from cq.runs import NO_RUNS, Runs

_TYPES: Final = (bytes, bool, bytes, int, dict, int, bytes | None, bool)
_LONGEST_PLACE: Final = codec.MAX_KEY_BYTES + 4
_LARGEST_REMEMBERED: Final = 200
_ENTRY_BYTES: Final = 200  # what Python needs for an entry beside its bytes, about


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
        missed: whether observers may have missed reports of keys of the bucket, see `cq.missed`. Stored only if True,
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
    return machine.token_bytes(12)


class Memory:
    """What a worker remembers of a bucket, encoded: current values, and updates staged; None for a key without any.

    And how far its backlog is in order, in `runs`.
    Valid while the bucket's token is its own, and taken over only after a known commit. Bounded by bytes: when it is
    full, it begins anew.
    """

    def __init__(self, max_bytes: int = 4_000_000) -> None:
        self.max_bytes = max_bytes
        self.token = b""
        self.values: dict[bytes, bytes | None] = {}
        self.staged: dict[bytes, bytes | None] = {}
        self.runs = NO_RUNS
        self._bytes = 0  # at most; entries that were replaced count until it is reckoned anew

    def forget(self) -> None:
        """Remember nothing: somebody else may have passed."""
        self.token = b""
        self.runs = NO_RUNS
        self._clear()

    def knows(self, token: bytes) -> bool:
        """Whether it is valid for a bucket with this token."""
        return bool(token) and token == self.token

    def take(
        self,
        token: bytes,
        values: Mapping[bytes, bytes | None],
        staged: Mapping[bytes, bytes | None],
        runs: Runs = NO_RUNS,
    ) -> None:
        """Take over what a committed pass has written."""
        self.token = b""  # it holds nothing for certain until this is done
        for known, new in ((self.values, values), (self.staged, staged)):
            known.update(new)
            for encoded_key, value in new.items():
                if value is not None and len(value) > _LARGEST_REMEMBERED:
                    del known[encoded_key]
            self._bytes += _size(new)
        if self._bytes > self.max_bytes:
            self._bytes = _size(self.values) + _size(self.staged)
        if self._bytes > self.max_bytes:
            self._clear()
        self.runs = runs
        self.token = token

    def _clear(self) -> None:
        self.values.clear()
        self.staged.clear()
        self._bytes = 0


def _size(entries: Mapping[bytes, bytes | None]) -> int:
    return (
        _ENTRY_BYTES * len(entries) + sum(map(len, entries)) + sum(map(len, filter(None, entries.values())))
    )
