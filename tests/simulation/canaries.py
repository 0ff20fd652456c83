"""Variants of cq that are broken on purpose: each must be caught within a stated number of seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq.config import queue as config
from cq.config.cache import ConfigCache
from cq.intake.emitter import Emitter
from cq.intake.emitter_buffer import EmitterBuffer
from cq.intake.flush import Flush
from cq.keys import QueueKeys
from cq.observers.export import task
from cq.observers.scheduling import notifications
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.takeover import StalledTasks
from cq.observers.sql import exporter
from cq.observers.sql.progress import ProgressTables
from cq.observers.top import index
from cq.observers.worker import worker
from cq.passes import batch, combine_pass, deletions, open_bucket, reporting
from cq.passes.bucket_cache import BucketCache
from cq.queue import adds, combine_queue, missed_reports, packing
from cq.queue.missed_reports import MissedReports
from cq.store.api import METADATA_VERSION
from cq.store.transact import transact
from tests.simulation.application import SUMS, TEXTS
from tests.simulation.backlogcanaries import BACKLOGS
from tests.simulation.cellcanaries import MOVING
from tests.simulation.changecanaries import CHANGING
from tests.simulation.changecanaries import ONLY as ONLY_CHANGING
from tests.simulation.expiringcanaries import EXPIRING
from tests.simulation.exportcanaries import EXPORTING
from tests.simulation.exportcanaries import ONLY as ONLY_EXPORTING
from tests.simulation.feedcanaries import FEEDING
from tests.simulation.firstseeds import FIRST
from tests.simulation.operatorcanaries import (
    ONLY,
    OPERATING,
    WITH,
)
from tests.simulation.outboxcanaries import ONLY as ONLY_OUTBOXES
from tests.simulation.outboxcanaries import OUTBOXES, reads_rows_by_a_position
from tests.simulation.plan import QUEUES, Plan
from tests.simulation.recentcanaries import RECENT
from tests.simulation.recentcanaries import WITH as WITH_RECENT
from tests.simulation.rollingcanaries import ONLY_ROLLING, ROLLING
from tests.simulation.run import run
from tests.simulation.sketchcanaries import SKETCHING
from tests.simulation.store import Reads, SimTransaction
from tests.simulation.tagcanaries import TAGGING
from tests.simulation.visitingcanaries import VISITING
from tests.simulation.visitingcanaries import WITH as WITH_VISITING

Canary = Callable[[], Any]


def forgets_to_clear_rows() -> Any:
    """A pass leaves the rows where they are."""
    return patch.object(combine_pass, "clear_rows", lambda tr, keys, begin, found: 0)


def clears_too_many_rows() -> Any:
    """A pass clears the whole bucket, whatever it has read."""

    def clear(tr: Any, keys: QueueKeys, begin: bytes, found: Any) -> int:
        tr.clear_range(begin, begin + b"\xff" * 12)
        return len(found.backlog.rows)

    return patch.object(combine_pass, "clear_rows", clear)


@contextmanager
def overwrites_rows() -> Iterator[None]:
    """Rows of one transaction are not kept apart."""
    same = itertools.repeat(0)
    with (
        patch.object(adds, "_counter", same),
        patch.object(packing, "ROW_BYTES", 1),
        patch("tests.simulation.run.count", lambda: same),
    ):
        yield


def does_not_read_the_lock() -> Any:
    """Two passes over one bucket do not conflict."""
    get = Reads.get

    def weak(self: Reads, key: bytes) -> Any:
        is_state = isinstance(self, SimTransaction) and key[:5] == b"cq/q/" and b"/b\0" in key
        return get(self.snapshot if is_state else self, key)

    return patch.object(Reads, "get", weak)


def clears_notifications_blindly() -> Any:
    """A pass takes a notification away that has come since it has read."""

    def clear(self: Any, found: Any) -> None:
        self.tr.clear(self.keys.notification(self.config.generation, self.bucket))

    return patch.object(combine_pass.Pass, "_clear_notification", clear)


def keeps_notifications() -> Any:
    """A pass never takes a notification away."""
    return patch.object(combine_pass.Pass, "_clear_notification", lambda self, found: None)


def counts_operations_twice() -> Any:
    """A pass takes all tries of an operation."""
    return patch.object(batch, "drop_repeated_operations", lambda snapshot, keys, rows: rows)


def believes_its_memory() -> Any:
    """A worker uses the values that it remembers though somebody else has passed."""

    def invalidate(self: BucketCache) -> None:
        self.token = b""

    @contextmanager
    def both() -> Iterator[None]:
        with (
            patch.object(BucketCache, "invalidate", invalidate),
            patch.object(BucketCache, "is_valid", lambda self, token: True),
        ):
            yield

    return both()


def forgets_what_is_staged() -> Any:
    """A pass says that nothing is staged."""
    return patch.object(combine_pass.Pass, "_is_staged", lambda self, found: False)


def reports_unfinished_buckets() -> Any:
    """A pass reports though it has not read to the end."""
    return patch.object(batch.Batch, "at_end", True)


def does_not_wait_for_the_former_shape() -> Any:
    """A pass takes updates though older ones wait under the shape before."""
    return patch.object(combine_pass, "is_blocked", lambda snapshot, config, bucket: False)


def adds_under_old_shapes() -> Any:
    """An add reads the metadata version by a snapshot read, and adds no conflict on the configuration."""

    def read(tr: Any, name: str) -> Any:
        return config.read_config(tr.snapshot if isinstance(tr, SimTransaction) else tr, name)

    return patch.object(combine_queue, "read_config", read)


def aborts_for_changes_of_others() -> Any:
    """A transaction reads the metadata version with a conflict: each change of any configuration aborts it."""
    get = ConfigCache.get

    def read(self: Any, tr: Any, name: str) -> Any:
        if isinstance(tr, SimTransaction):
            tr.get(METADATA_VERSION).wait()
        return get(self, tr, name)

    return patch.object(ConfigCache, "get", read)


def runs_other_code() -> Any:
    """A pass does not look whether its configuration is the one stored."""

    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

        def under_former_shape(self) -> None:
            return None

    return patch.object(open_bucket, "read_config", lambda tr, name: Anything())


def forgets_to_tell_new_observers() -> Any:
    """An observer that is new is told of changes only."""

    def told(tr: Any, code: Any, bucket: int, state: Any) -> Any:
        return {each.generation: None for each in code.config.observers}

    return patch.object(combine_pass, "backfill_positions", told)


def tells_beyond_the_cursor() -> Any:
    """An observer that is new is told of changes to values that it will be told of."""
    changes_by_observer = reporting.changes_by_observer

    def everywhere(told: Any, changes: Any, received: Any, backfill: Any) -> Any:
        return changes_by_observer(dict.fromkeys(told), changes, received, backfill)

    return patch.object(combine_pass, "changes_by_observer", everywhere)


def forgets_what_observers_missed() -> Any:
    """A pass reports the stored value as the old one, to an observer that never received it."""
    return patch.object(MissedReports, "note", lambda self, encoded, error, received: None)


def looks_for_no_missed_reports() -> Any:
    """A pass reads nothing of missed reports in a bucket that is new since a rebucketing."""
    return patch.object(missed_reports, "may_have_missed", lambda config, state: state.missed)


def purges_what_came_later() -> Any:
    """A purge drops all that waits."""

    def drop(tr: Any, given: Any, bucket: int) -> None:
        tr.clear_range(*QueueKeys(given.name).rows(given.generation, bucket))

    return patch.object(deletions, "_drop_queued", drop)


def purges_no_staged_updates() -> Any:
    """A purge leaves what waits."""
    return patch.object(deletions, "_drop_queued", lambda tr, given, bucket: None)


def sets_aside_and_forgets() -> Any:
    """The updates of a bad key are dropped."""
    return patch.object(combine_pass, "set_aside", lambda tr, keys, encoded, error, updates, piece=0: piece)


def exports_without_a_fence() -> Any:
    """An exporter applies whatever batch it gets, again and again."""

    def locked(self: Any, conn: Any, feeder: Any, epoch: int, bucket: int) -> bytes | None:
        found = progress(self, conn, feeder, epoch, bucket)
        return b"" if found else found

    progress = ProgressTables.locked

    @contextmanager
    def both() -> Iterator[None]:
        with (
            patch.object(ProgressTables, "locked", locked),
            patch.object(exporter.SqlExporter, "_may_apply", lambda self, found, at: True),
        ):
            yield

    return both()


def clears_exports_first() -> Any:
    """Entries are cleared from the store before they are exported."""

    def step(self: task.ExportTask) -> float:
        read = transact(self.db, self._read)
        self._epoch = read.export.control.epoch
        if read.queued.last_key is None:
            self._note.clear()
            return DONE
        transact(self.db, lambda tr: self._clear(tr, read))
        self._export(read)
        return 0.0

    return patch.object(task.ExportTask, "_step", step)


def leaves_old_scores() -> Any:
    """The top keeps the entry of the value before."""
    move = index.Index._move

    def without_old(self: Any, change: Any) -> Any:
        found = move(self, change)
        return found and (found[0], None, *found[2:])

    return patch.object(index.Index, "_move", without_old)


@contextmanager
def never_misses_the_dead() -> Iterator[None]:
    """A worker that is gone keeps its tasks."""
    look = Membership._is_gone
    with (
        patch.object(Membership, "_is_gone", lambda self, member: look(self, member) and False),
        patch.object(StalledTasks, "find", lambda self, db, jobs: {}),
    ):
        yield


@contextmanager
def sleeps_for_ever() -> Iterator[None]:
    """A worker waits for no watch, and never looks by itself."""

    def find_or_watch(db: Any, jobs: Any, watches: int) -> Any:
        notified, found = notifications.find_or_watch(db, jobs, watches)
        for _, watch in found:
            watch.cancel()
        return notified, []

    with patch.object(worker, "find_or_watch", find_or_watch), patch.object(worker, "SAFETY_SECONDS", 1e9):
        yield


def flushes_without_looking() -> Any:
    """A flush whose answer gets lost is committed again."""
    add = Emitter._add

    def without(self: Emitter, tr: Any, flush: Flush, updates: Any) -> None:
        flush.in_doubt = False
        add(self, tr, flush, updates)

    return patch.object(Emitter, "_add", without)


def flushes_without_a_conflict() -> Any:
    """The first try of a flush can commit after the second one has."""

    def weak(self: SimTransaction, key: bytes) -> None:
        if not key.startswith((QueueKeys(TEXTS).emitters()[0], QueueKeys(SUMS).emitters()[0])):
            self.inner.add_read_conflict_key(key)

    return patch.object(SimTransaction, "add_read_conflict_key", weak, create=True)


def tells_callers_too_early() -> Any:
    """A durable call returns before its flush is committed."""
    durable = property(lambda self: False, lambda self, value: None)
    return patch.object(Emitter, "_is_durable", durable, create=True)


def drops_what_fails() -> Any:
    """A flush that fails is taken for committed."""
    return patch.object(EmitterBuffer, "fail_try", lambda self, flush, error: self.commit(flush, 0, 0.0))


def holds_more_than_was_said() -> Any:
    """An emitter takes what it has no room for."""
    take = EmitterBuffer.take

    def without_limit(self: EmitterBuffer, *increments: Any) -> Any:
        self._at_most = 1_000_000
        return take(self, *increments)

    return patch.object(EmitterBuffer, "take", without_limit)


def says_that_nothing_counts() -> Any:
    """An emitter forgets that a try may have been committed."""
    doubt = property(lambda self: False, lambda self, value: None)
    return patch.object(Flush, "in_doubt", doubt, create=True)


def ends_doubt_by_looking() -> Any:
    """An emitter takes a try for failed that is not committed yet."""
    add = Emitter._add

    def looking(self: Emitter, tr: Any, flush: Flush, updates: Any) -> None:
        try:
            add(self, tr, flush, updates)
        finally:
            flush.in_doubt = False

    return patch.object(Emitter, "_add", looking)


CANARIES: Final[dict[Canary, int]] = {
    forgets_to_clear_rows: 5,
    clears_too_many_rows: 20,
    overwrites_rows: 20,
    does_not_read_the_lock: 60,
    clears_notifications_blindly: 100,
    keeps_notifications: 5,
    counts_operations_twice: 20,
    believes_its_memory: 60,
    forgets_what_is_staged: 20,
    reports_unfinished_buckets: 20,
    does_not_wait_for_the_former_shape: 150,
    adds_under_old_shapes: 100,
    aborts_for_changes_of_others: 100,
    runs_other_code: 60,
    forgets_to_tell_new_observers: 60,
    tells_beyond_the_cursor: 60,
    forgets_what_observers_missed: 100,
    looks_for_no_missed_reports: 250,
    purges_what_came_later: 60,
    purges_no_staged_updates: 60,
    sets_aside_and_forgets: 20,
    exports_without_a_fence: 100,
    clears_exports_first: 60,
    leaves_old_scores: 10,
    never_misses_the_dead: 60,
    sleeps_for_ever: 20,
    flushes_without_looking: 60,
    flushes_without_a_conflict: 60,
    tells_callers_too_early: 60,
    drops_what_fails: 60,
    holds_more_than_was_said: 60,
    says_that_nothing_counts: 100,
    ends_doubt_by_looking: 100,
} | {
    **OPERATING,
    **TAGGING,
    **VISITING,
    **FEEDING,
    **MOVING,
    **BACKLOGS,
    **EXPORTING,
    **CHANGING,
    **OUTBOXES,
    **EXPIRING,
    **SKETCHING,
    **ROLLING,
    **RECENT,
}
"""{canary: within how many seeds, from its seed in `FIRST` on, it is caught}."""
SYSTEM_OF: Final[Mapping[Canary, str]] = {
    **dict.fromkeys(TAGGING, "tags"),
    **dict.fromkeys(VISITING, "windows"),
    **dict.fromkeys(FEEDING, "feeds"),
    **dict.fromkeys(MOVING, "cells"),
    **dict.fromkeys(BACKLOGS, "backlogs"),
    **dict.fromkeys(EXPORTING, "exports"),
    **dict.fromkeys(OUTBOXES, "outboxes"),
    **dict.fromkeys(EXPIRING, "expiries"),
    **dict.fromkeys(SKETCHING, "sketches"),
    **dict.fromkeys(ROLLING, "rollups"),
    **dict.fromkeys(RECENT, "recent"),
}
"""{canary: which system catches it}, for those that are not of the queues."""


_WITH: Final[Mapping[Canary, frozenset[str]]] = {
    **WITH,
    **WITH_VISITING,
    **WITH_RECENT,
    exports_without_a_fence: frozenset(("table", "freezes", "the table's database fails")),
    says_that_nothing_counts: frozenset(("emitters", "unknown commits")),
    forgets_what_observers_missed: frozenset(("observers", "observers refuse keys", "purge")),
    looks_for_no_missed_reports: frozenset(("observers", "observers refuse keys", "purge", "rebucket")),
    ends_doubt_by_looking: frozenset(("emitters", "unknown commits", "commits land late", "limit")),
    flushes_without_a_conflict: frozenset(("emitters", "unknown commits", "commits land late")),
}
"""{canary: the kinds that all of its plans have}, for those that are seldom caught without."""


_ONLY: Final[Mapping[Canary, frozenset[str]]] = {
    **ONLY,
    **ONLY_EXPORTING,
    **ONLY_CHANGING,
    **ONLY_OUTBOXES,
    **ONLY_ROLLING,
    keeps_notifications: frozenset(),  # nothing else need happen
    adds_under_old_shapes: frozenset(("rebucket", "calls are late")),
    holds_more_than_was_said: frozenset(("emitters", "deaths")),
}
"""{canary: the only kinds that its plans have}, for those that other kinds hide."""


_END_SECONDS: Final[Mapping[Canary, float]] = {keeps_notifications: 30.0, reads_rows_by_a_position: 30.0}
"""{canary: how long its runs may take to end}, for those whose workers never rest, which takes many turns.

The run without the canary must end within this time, too.
"""


def caught_by(name: str) -> tuple[str, int, int | None]:
    """A canary's name, how many seeds it is given, and the first of them that catches it."""
    canary, seeds = next((each, seeds) for each, seeds in CANARIES.items() if each.__name__ == name)
    first = FIRST.get(name, 0)
    for seed in range(first, first + seeds):
        drawn = Plan.of(seed, system=SYSTEM_OF.get(canary, QUEUES))
        plan = replace(
            drawn,
            on=_ONLY.get(canary, drawn.on | _WITH.get(canary, frozenset())),
            end_seconds=_END_SECONDS.get(canary, drawn.end_seconds),
        )
        with canary():
            is_caught = bool(run(plan).violation)
        if is_caught and (canary not in _END_SECONDS or not run(plan).violation):
            return name, seeds, seed
    return name, seeds, None
