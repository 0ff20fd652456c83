"""The effects of a pass: all that it writes and reports, decided before its first write; and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cq.deciders import Decided
from cq.errors import CqError
from cq.failure import KeyFailure
from cq.observer import Change
from cq.passes.bucket_cache import NO_RUNS, Runs
from cq.passes.view import View
from cq.queue.adds import PackedAdd
from cq.queue.bucket_state import BucketState, fresh_token
from cq.store.api import Transaction


@dataclass(slots=True)
class PassResult:
    """The result of a pass, true once its transaction is committed.

    Attributes:
        reported: number of keys whose value was written or found unchanged.
        folded: number of keys whose updates were combined before their report.
        backfilled: number of values reported that no update has changed: to a new observer, or again.
        backfilling: whether the bucket has more such values.
        rows: number of rows cleared.
        updates: number of updates taken from them, less those written again as rows, so that each counts once.
        decided: number of requests decided.
        refused: number of these that were refused, see `Decider.refused`.
        waited: seconds from the commit of the first of these to the read version of the pass; 0.0 without decisions.
        blocked: whether the pass did no work, as these keys still have updates in the former shape.
        purged: number of values deleted by a purge.
        expired: number of values deleted as they were due.
        repeated: number of rows dropped because an earlier transaction has added their operation.
        aside: {encoded key: failure} of keys set aside (an empty key stands for unreadable rows).
        failed: {encoded key: failure} of keys of which some requests were set aside, the last one of each.
        age: seconds since the last row taken was queued, if more rows remain.
        cut_at: bytes of rows taken, if these are not all rows read; else None.
        more: whether the bucket has more work, so that the caller must run another pass.
        found_copied: whether the pass found a row stamped later than its read version, and left it.
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
    decided: int = 0
    refused: int = 0
    waited: float = 0.0
    blocked: bool = False
    purged: int = 0
    expired: int = 0
    repeated: int = 0
    aside: dict[bytes, KeyFailure] = field(default_factory=dict)
    failed: dict[bytes, KeyFailure] = field(default_factory=dict)
    age: float = 0.0
    cut_at: int | None = None
    more: bool = False
    found_copied: bool = False
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


class Effects:
    """What a pass writes and reports. It has the writes of a transaction, which it collects until `write`.

    Attributes:
        result: the result of the pass.
        ranges: the ranges to clear, before anything else is written.
        sets: {key: value, or None to clear it}.
        atomics: (name of an atomic operation, key, operand).
        levels: the adds to the levels of the queue.
        report: encoded keys reported to the observers; one of them may cause a failure.
        slow: the encoded key, if any, whose updates took longer to combine than a transaction lives.
        changes: their changes, each with the key's place in hash order.
        backfilled: encoded keys of unchanged values to report: for the first time to an observer, or again.
        decisions: the decisions to report to the decider's observer.
        news: {generation of an observer: the changes of these that it receives}.
        reached: {generation of an observer: its backfill position after the pass; None: complete}.
        retried: number of missed reports read to be repeated.
        is_expiring: whether the pass deletes due keys.
    """

    def __init__(self, view: View) -> None:
        is_cached = view.cache.is_valid(view.state.token)
        self.result = PassResult(cache_is_valid=is_cached, found_copied=view.backlog.is_copied)
        self.ranges: list[tuple[bytes, bytes]] = []
        self.sets: dict[bytes, bytes | None] = {}
        self.atomics: list[tuple[str, bytes, bytes]] = []
        self.levels: list[PackedAdd] = []
        self.report: list[bytes] = []
        self.slow: list[bytes] = []
        self.changes: list[tuple[bytes, Change]] = []
        self.backfilled: list[bytes] = []
        self.decisions: list[Decided] = []
        self.news: dict[int, list[Change]] = {}
        self.reached: dict[int, bytes | None] = {}
        self.retried = 0
        self.is_expiring = False

    @property
    def blamed(self) -> list[bytes]:
        """The encoded keys that may have caused a failure: a slow one, or else all that are reported to observers."""
        return self.slow or self.report + self.backfilled

    def write(self, tr: Transaction) -> None:
        """Write everything: the ranges first, as a clear of a range looks for the sets before it."""
        for begin, end in self.ranges:
            tr.clear_range(begin, end)
        for key, data in self.sets.items():
            if data is None:
                tr.clear(key)
            else:
                tr.set(key, data)
        for level in self.levels:
            level.write(tr)
        for operation, key, param in self.atomics:
            getattr(tr, operation)(key, param)

    def report_change(self, encoded: bytes, where: bytes, change: Change) -> None:
        """Report the change of the key at a place."""
        self.report.append(encoded)
        self.changes.append((where, change))

    def set_values(self, at: Sequence[bytes], data: Sequence[bytes | None], is_same: Sequence[bool]) -> None:
        """Set each changed key to its new encoded value, or clear it if it has no value now."""
        self.sets.update((key, new) for key, new, same in zip(at, data, is_same, strict=True) if not same)

    def rewrite_state(self, view: View, state: BucketState) -> None:
        """Write the bucket's state with a fresh token; the pass has worked."""
        self.result.token = fresh_token()
        missed = view.missed is not None and view.missed.remain
        key = view.keys.state(view.config.generation, view.number)
        self.sets[key] = replace(state, token=self.result.token, missed=missed).to_bytes()

    def written_state(self, view: View) -> dict[bytes, bytes | None]:
        """The write of the bucket's state, {key: value}; empty if the pass does not write it."""
        key = view.keys.state(view.config.generation, view.number)
        return {key: self.sets[key]} if key in self.sets else {}

    def clear_notification(self, view: View) -> None:
        """Clear the notification, if it is still the one read: an add after the read version stores another one."""
        if view.notification is not None:
            key = view.keys.notification(view.config.generation, view.number)
            self.compare_and_clear(key, view.notification)

    # The writes of a transaction

    def set(self, key: bytes, value: bytes) -> None:
        """Collect a set."""
        self.sets[key] = value

    def clear(self, key: bytes) -> None:
        """Collect a clear."""
        self.sets[key] = None

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Collect a clear of a range."""
        self.ranges.append((begin, end))

    def set_versionstamped_key(self, key: bytes, param: bytes) -> None:
        """Collect a set of a key with a versionstamp."""
        self.atomics.append(("set_versionstamped_key", key, param))

    def add(self, key: bytes, param: bytes) -> None:
        """Collect an atomic addition."""
        self.atomics.append(("add", key, param))

    def byte_max(self, key: bytes, param: bytes) -> None:
        """Collect an atomic maximum."""
        self.atomics.append(("byte_max", key, param))

    def compare_and_clear(self, key: bytes, param: bytes) -> None:
        """Collect a clear of a key that has this value."""
        self.atomics.append(("compare_and_clear", key, param))


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
