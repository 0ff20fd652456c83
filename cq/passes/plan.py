"""The limits of a pass, and what its runner decides before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from cq.failure import KeyFailure


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a pass.

    With the defaults a transaction has about 1 MB, unless a single key needs more: `write_bytes`, `observer_bytes`,
    and twice `load_bytes`, as the pass may write both the staged updates and the values that it has read.

    Attributes:
        read_bytes: bytes of rows to read, about; the last row may exceed it.
        load_bytes: bytes of staged updates to read, and of current values; the last one of each may exceed it.
        write_bytes: bytes of keys and updates that the pass itself writes, about, as `cq.store.sizes` counts.
        repack_bytes: bytes of updates to write as rows again, folded or sorted in a run, about; 0: never do so.
        observer_bytes: bytes that observers may write, predicted from the cost of earlier reports.
        reported_bytes: bytes of the reported values in a queue with observers, as `cq.store.sizes` counts.
            The caller predicts the number with which observers write `observer_bytes`.
        max_report: number of keys to report.
        overload_seconds: seconds after which passes report although they never read the rows to their end.
        stale_seconds: age from which a note of an attempt counts as left by a dead worker.
    """

    read_bytes: int = 2_000_000
    load_bytes: int = 200_000
    write_bytes: int = 400_000
    repack_bytes: int = 600_000
    observer_bytes: int = 200_000
    reported_bytes: int = 10_000_000
    max_report: int = 16_000
    overload_seconds: float = 5.0
    stale_seconds: float = 10.0

    @property
    def transaction_bytes(self) -> int:
        """The maximum size of a pass's transaction, about, if no single key needs more."""
        return self.write_bytes + self.observer_bytes + 2 * self.load_bytes


LOCAL_LIMITS: Final = Limits(
    read_bytes=8_000_000,
    load_bytes=800_000,
    write_bytes=6_300_000,
    repack_bytes=4_000_000,
    observer_bytes=2_000_000,
    max_report=50_000,
)
"""Limits for a store on the same machine, where a worker runs one pass over a queue at a time."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """What the runner of passes decides before a pass.

    Attributes:
        limits: bounds on reads and writes.
        max_report: number of keys to report, at most; 0 if values are backfilled, so that a failure has one cause, and
            while a key is to be set aside.
        max_backfill: number of values to backfill, at most; 1 for a rejected one.
        max_take: number of different keys of the rows to touch, at most, or of requests to decide; None: no limit.
        suspects: encoded keys to report only when no other key has work, and then one alone.
        try_suspect: whether to report one of the suspects, alone, if any has work.
        rejected: {encoded key: failure} of keys to set aside; the pass then calls no observer.
        rejected_at: the token of the bucket's state in the pass that has failed; None if no pass has.
        rejected_in_backfill: as `rejected`, for keys whose values an observer cannot receive.
        rejected_in_expiry: as `rejected`, for keys that are due, and whose deletion an observer cannot receive.
        expires_first: whether to delete due keys before rows are combined, and not only if there are no rows.
        may_sort: whether to sort a deep backlog of many different keys into runs, and merge the runs remembered.
    """

    limits: Limits = field(default_factory=Limits)
    max_report: int = 1000
    max_backfill: int = 0
    max_take: int | None = None
    suspects: Collection[bytes] = ()
    try_suspect: bool = False
    rejected: Mapping[bytes, KeyFailure] = field(default_factory=dict)
    rejected_at: bytes | None = None
    rejected_in_backfill: Mapping[bytes, KeyFailure] = field(default_factory=dict)
    rejected_in_expiry: Mapping[bytes, KeyFailure] = field(default_factory=dict)
    expires_first: bool = True
    may_sort: bool = False
