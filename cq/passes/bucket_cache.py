"""A worker's cache of one bucket: the values that its last passes read and wrote, so that the next ones read less.

It also has the sorted runs of the backlog, see `cq.passes.sorting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_LARGEST_CACHED: Final = 200  # bytes of a value
_ENTRY_BYTES: Final = 200  # approximate memory that Python needs for an entry in addition to its bytes


class Run(NamedTuple):
    """A sorted run of a backlog, or its remainder.

    Attributes:
        first: the key of its first row, or a key before it and after all rows of earlier runs.
        last: the key of its last row.
        rows, updates: numbers of rows and updates.
        size: bytes of keys and values; a row taken in part counts with its former size.
    """

    first: bytes
    last: bytes
    rows: int
    updates: int
    size: int

    @classmethod
    def of(cls, rows: Mapping[bytes, bytes], updates: int) -> Run:
        """The run of rows, {key: value} in order of keys, that hold `updates` updates."""
        keys = list(rows)
        size = sum(map(len, keys)) + sum(map(len, rows.values()))
        return cls(keys[0], keys[-1], len(keys), updates, size)


class Runs(NamedTuple):
    """The runs at the beginning of a bucket, in commit order.

    Attributes:
        remaining: the runs that still have rows.
        is_open: whether to write another run before merging these.
        per_key: number of updates per key in the part merged last.
    """

    remaining: tuple[Run, ...] = ()
    is_open: bool = False
    per_key: float = 1.0

    @property
    def is_any(self) -> bool:
        """Whether a run must be written or merged."""
        return self.is_open or bool(self.remaining)


NO_RUNS: Final = Runs()
FIRST_RUN: Final = Runs(is_open=True)
"""No runs yet; write the first one."""


class BucketCache:
    """A worker's cache of a bucket: current values and staged updates, encoded; None for a key without any.

    `runs` has the sorted runs of the backlog. The cache is valid while the bucket's state has the cached token: any
    other pass sets a new one. It is updated only after a known commit. When it exceeds `max_bytes`, it is emptied.
    """

    def __init__(self, max_bytes: int = 4_000_000) -> None:
        self.max_bytes = max_bytes
        self.token = b""
        self.values: dict[bytes, bytes | None] = {}
        self.staged: dict[bytes, bytes | None] = {}
        self.runs = NO_RUNS
        self._bytes = 0  # an upper bound: replaced entries count until it is computed again

    def invalidate(self) -> None:
        """Empty the cache: another worker may have run a pass, or a commit is uncertain."""
        self.token = b""
        self.runs = NO_RUNS
        self._clear()

    def is_valid(self, token: bytes) -> bool:
        """Return whether the cache is valid for a bucket with this token."""
        return bool(token) and token == self.token

    def update(
        self,
        token: bytes,
        values: Mapping[bytes, bytes | None],
        staged: Mapping[bytes, bytes | None],
        runs: Runs = NO_RUNS,
    ) -> None:
        """Add the values that a committed pass has written."""
        self.token = b""  # an exception in between leaves the cache invalid
        for known, new in ((self.values, values), (self.staged, staged)):
            known.update(new)
            for encoded_key, value in new.items():
                if value is not None and len(value) > _LARGEST_CACHED:
                    del known[encoded_key]  # a few large values would fill the cache
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
