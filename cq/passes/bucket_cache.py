"""A worker's cache of one bucket: the values that its last passes read and wrote, so that the next ones read less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cq.passes.runs import NO_RUNS, Runs

_LARGEST_CACHED: Final = 200  # bytes of a value
_ENTRY_BYTES: Final = 200  # approximate memory that Python needs for an entry in addition to its bytes


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
