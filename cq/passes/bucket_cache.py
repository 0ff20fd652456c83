"""The memory of a bucket's worker: what it read and wrote in its last passes, so that the next ones read less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cq.passes.runs import NO_RUNS, Runs

_LARGEST_REMEMBERED: Final = 200
_ENTRY_BYTES: Final = 200  # approximate memory that Python needs for an entry in addition to its bytes


class BucketCache:
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

    def invalidate(self) -> None:
        """Remember nothing: somebody else may have passed."""
        self.token = b""
        self.runs = NO_RUNS
        self._clear()

    def is_valid(self, token: bytes) -> bool:
        """Whether it is valid for a bucket with this token."""
        return bool(token) and token == self.token

    def update(
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
