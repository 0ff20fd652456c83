"""The result of a pass, and the failure that smaller passes cannot avoid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cq.errors import CqError
from cq.failure import KeyFailure
from cq.passes.runs import NO_RUNS, Runs


@dataclass(slots=True)
class PassResult:
    """The result of a pass, true once its transaction is committed.

    Attributes:
        reported: number of keys whose value was written or found unchanged.
        folded: number of keys whose updates were combined before their report.
        backfilled: number of values reported that no update has changed: to a new observer, or again.
        backfilling: whether the bucket has more such values.
        rows: number of rows cleared.
        updates: number of updates taken from them.
        blocked: whether the pass did no work, as these keys still have updates in the former shape.
        purged: number of values deleted by a purge.
        expired: number of values deleted as they were due.
        repeated: number of rows dropped because an earlier transaction has added their operation.
        aside: {encoded key: failure} of keys set aside (an empty key stands for unreadable rows).
        age: seconds since the last row taken was queued, if more rows remain.
        cut_at: bytes of rows taken, if these are not all rows read; else None.
        more: whether the bucket has more work, so that the caller must run another pass.
        foreign: whether the pass found a row stamped later than its read version, and left it.
        completed: whether an observer has now received all values of the bucket, or all of these are converted.
        observer_changes: number of changes reported to observers, backfilled values included.
        observer_bytes: bytes by which the observers have enlarged the transaction.
        retries: number of transactions begun before the committed one.
        conflicts: number of these that conflicted.
        cache_is_valid: whether no other worker has run a pass since the cache was updated.
        invalidates_cache: whether all earlier entries of the cache are outdated.
        lost_runs: whether the pass could not write or merge runs: sort no more until the bucket is empty.
        token, values, staged, runs: new contents of the worker's cache.
    """

    reported: int = 0
    folded: int = 0
    backfilled: int = 0
    backfilling: bool = False
    rows: int = 0
    updates: int = 0
    blocked: bool = False
    purged: int = 0
    expired: int = 0
    repeated: int = 0
    aside: dict[bytes, KeyFailure] = field(default_factory=dict)
    age: float = 0.0
    cut_at: int | None = None
    more: bool = False
    foreign: bool = False
    completed: bool = False
    observer_changes: int = 0
    observer_bytes: int = 0
    retries: int = 0
    conflicts: int = 0
    cache_is_valid: bool = False
    invalidates_cache: bool = False
    lost_runs: bool = False
    token: bytes = b""
    values: dict[bytes, bytes | None] = field(default_factory=dict)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)
    runs: Runs = NO_RUNS

    @property
    def has_worked(self) -> bool:
        """Whether the pass has found work and changed the bucket's state."""
        return bool(self.token)


class ManyFailed(CqError):
    """Too many keys of one pass cannot be combined: the code is broken, not the data. Do not commit the pass."""

    def __init__(self, failures: Mapping[bytes, KeyFailure]) -> None:
        super().__init__(failures)
        self.failures = dict(failures)

    @property
    def first(self) -> KeyFailure:
        """The failure of one of the keys."""
        return next(iter(self.failures.values()))

    def __str__(self) -> str:
        return f"{len(self.failures)} keys of one pass failed, one with: {self.first}"
