"""What a pass has done, and the failure that no halving of it cures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cq.errors import CqError
from cq.passes.runs import NO_RUNS, Runs


@dataclass(slots=True)
class PassResult:
    """What a pass has done, once its transaction is committed.

    Attributes:
        reported: keys whose value was written or found unchanged.
        folded: keys whose updates were combined ahead of their report.
        refilled: values that an observer was told of for the first time.
        refilling: whether there are more such values.
        rows: rows taken away.
        updates: taken out of them, to be combined.
        blocked: whether nothing was done, as the shape before has yet to be drained of these keys.
        purged: values deleted by a purge.
        repeated: rows left out because an earlier transaction had added their operation.
        aside: {encoded key: error} of keys set aside (an empty key stands for a row that cannot be read).
        age: for how many seconds the last row taken had been queued, when more are left.
        cut_at: how many bytes of rows were taken, if that is not all that was read; else None.
        more: whether work is left that no notification will announce.
        foreign: whether a row stamped later than the read version was met, and left.
        completed: whether an observer has now been told of all values of the bucket.
        told: of how many changes the observers were told, refills included.
        observer_bytes: by how much the observers have enlarged the transaction.
        retries: transactions begun before the one that was committed.
        conflicts: how many of these had met another transaction.
        was_ours: whether nobody else has passed since the pass whose memory was given.
        forgets: whether nothing that was remembered before holds any more.
        token, values, staged, runs: what a worker may remember after the commit.
    """

    reported: int = 0
    folded: int = 0
    backfilled: int = 0
    backfilling: bool = False
    rows: int = 0
    updates: int = 0
    blocked: bool = False
    purged: int = 0
    repeated: int = 0
    aside: dict[bytes, str] = field(default_factory=dict)
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
    token: bytes = b""
    values: dict[bytes, bytes | None] = field(default_factory=dict)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)
    runs: Runs = NO_RUNS


class ManyFailed(CqError):
    """So many keys of one pass cannot be combined that the code must be broken, not the data; nothing is written."""

    def __init__(self, errors: Mapping[bytes, str]) -> None:
        super().__init__(errors)
        self.errors = dict(errors)

    def __str__(self) -> str:
        return f"{len(self.errors)} keys of one pass failed, one with: {next(iter(self.errors.values()))}"
