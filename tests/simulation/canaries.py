"""All canaries, and those of the queues; see `canary`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

from cq.config import queue as config
from cq.intake.emitter import Emitter
from cq.intake.flush import Flush
from cq.keys import QueueKeys
from cq.observers.scheduling import notifications
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.takeover import StalledTasks
from cq.observers.worker import worker
from cq.passes.bucket_cache import BucketCache
from cq.passes.view import View
from cq.queue import adds, packing
from cq.queue.shared_adds import AddGroup, SharedAdds
from cq.runtime import token_bytes
from cq.store.api import METADATA_VERSION
from cq.store.reads import WriteOnly
from cq.store.transact import transact
from tests.kit.sketches import HAS_SKETCHES
from tests.simulation import (
    backlogcanaries,
    cellcanaries,
    decidingcanaries,
    expiringcanaries,
    feedcanaries,
    linkcanaries,
    operatorcanaries,
    outboxcanaries,
    rollingcanaries,
    sessioncanaries,
    sketchcanaries,
    tagcanaries,
    windowcanaries,
)
from tests.simulation.application import SUMS, TEXTS
from tests.simulation.calling import noted_id
from tests.simulation.canary import SEEDS, Canaries, Canary, reads_without_conflict
from tests.simulation.run import run
from tests.simulation.store import SimTransaction

queues = Canaries("queues")


@queues.replaces("cq.passes.combining._clear_rows")
def forgets_to_clear_rows(*_: Any) -> None:
    """A pass leaves the rows where they are."""


@queues.replaces("cq.passes.combining._clear_rows")
def clears_too_many_rows(_: Any, effects: Any, view: Any) -> None:
    """A pass clears the whole bucket, whatever it has read."""
    effects.clear_range(*view.keys.rows(view.config.generation, view.number))


@queues.patches()
@contextmanager
def overwrites_rows() -> Iterator[None]:
    """Rows of one transaction are not kept apart."""
    same = itertools.repeat(0)
    with (
        patch.object(adds, "_counter", same),
        patch.object(packing, "ROW_BYTES", 1),
        patch("tests.simulation.run.count", lambda *given: itertools.count(*given) if given else same),
    ):
        yield


@queues.patches(seed=33)
def does_not_read_the_lock() -> Any:
    """Two passes over one bucket do not conflict."""
    return reads_without_conflict(lambda key: key[:5] == b"cq/q/" and b"/b\0" in key)


@queues.replaces("cq.passes.effects.Effects.clear_notification", seed=254)
def clears_notifications_blindly(_: Any, self: Any, view: Any) -> None:
    """A pass takes a notification away that has come since it has read."""
    self.clear(view.keys.notification(view.config.generation, view.number))


@queues.replaces("cq.passes.effects.Effects.clear_notification", only=set(), end_seconds=30.0)
def keeps_notifications(*_: Any) -> None:
    """A pass never takes a notification away."""


@queues.replaces("cq.passes.view.drop_repeated_operations", seed=2)
def counts_operations_twice(_: Any, snapshot: Any, keys: Any, rows: Any) -> Any:
    """A pass takes all tries of an operation."""
    return rows


@queues.patches(seed=35)
@contextmanager
def believes_its_memory() -> Iterator[None]:
    """A worker uses the values that it remembers though somebody else has passed."""

    def invalidate(self: BucketCache) -> None:
        self.token = b""

    with (
        patch.object(BucketCache, "invalidate", invalidate),
        patch.object(BucketCache, "is_valid", lambda self, token: True),
    ):
        yield


@queues.replaces("cq.passes.combining._is_staged", seed=3)
def forgets_what_is_staged(*_: Any) -> bool:
    """A pass says that nothing is staged."""
    return False


@queues.patches(seed=3)
def reports_unfinished_buckets() -> Any:
    """A pass reports though it has not read to the end."""
    return patch.object(View, "at_end", True)


@queues.replaces("cq.passes.combine_pass.is_blocked", seed=252)
def does_not_wait_for_the_former_shape(*_: Any) -> bool:
    """A pass takes updates though older ones wait under the shape before."""
    return False


@queues.replaces("cq.queue.adds.read_config", seed=7, only={"rebucket", "calls are late"})
def adds_under_old_shapes(_: Any, tr: Any, name: str) -> Any:
    """An add reads the metadata version by a snapshot read, and adds no conflict on the configuration."""
    return config.read_config(tr.snapshot if isinstance(tr, SimTransaction) else tr, name)


@queues.patches(seed=2, only={"rebucket", "calls are late", "write only"})
def chains_without_a_conflict() -> Any:
    """A write-only transaction adds no conflict on the configuration."""
    return patch.object(WriteOnly, "add_read_conflict_key", lambda self, key: None, create=True)


@queues.replaces("cq.config.queue.ConfigCache.get", only={"rebucket", "calls are late", "write only"})
def chains_over_a_changed_configuration(get: Any, self: Any, tr: Any, name: str) -> Any:
    """A write-only transaction uses the cached configuration, whatever its metadata version is."""
    known = self._known.get(tr.db)
    if type(tr) is not WriteOnly or known is None or name not in known[1]:
        return get(self, tr, name)
    key, config = known[1][name]
    tr.add_read_conflict_key(key)
    return config


@queues.replaces(
    "cq.store.version_chain.VersionChain.start",
    seed=760,
    only={"rebucket", "calls are late", "write only"},
)
def keeps_the_metadata_version_of_an_earlier_chain(start: Any, self: Any, version: int, until: float) -> None:
    """A chain takes the metadata version of the one before, although a configuration has changed in between."""
    before = self._present
    start(self, version, until)
    if before.is_read:
        self._present.keep(before.metadata)


@queues.replaces("cq.config.queue.ConfigCache.get", seed=34)
def aborts_for_changes_of_others(get: Any, self: Any, tr: Any, name: str) -> Any:
    """A transaction reads the metadata version with a conflict: each change of any configuration aborts it."""
    if isinstance(tr, SimTransaction):
        tr.get(METADATA_VERSION).wait()
    return get(self, tr, name)


@queues.replaces("cq.passes.view.read_config", seed=29)
def runs_other_code(*_: Any) -> Any:
    """A pass does not look whether its configuration is the one stored."""

    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

        def under_former_shape(self) -> None:
            return None

    return Anything()


@queues.replaces("cq.passes.view.backfill_positions", seed=25)
def forgets_to_tell_new_observers(_: Any, tr: Any, config: Any, bucket: int, state: Any) -> Any:
    """An observer that is new is told of changes only."""
    return {each.generation: None for each in config.observers}


@queues.replaces("cq.passes.reporting.changes_by_observer", seed=205)
def tells_beyond_the_cursor(changes_by_observer: Any, told: Any, *given: Any) -> Any:
    """An observer that is new is told of changes to values that it will be told of."""
    return changes_by_observer(dict.fromkeys(told), *given)


@queues.replaces(
    "cq.queue.missed_reports.MissedReports.note",
    seed=80,
    also={"observers", "observers refuse keys", "purge"},
)
def forgets_what_observers_missed(*_: Any) -> None:
    """A pass reports the stored value as the old one, to an observer that never received it."""


@queues.replaces(
    "cq.queue.missed_reports.may_have_missed",
    seed=64,
    only={"observers", "observers refuse keys", "purge", "rebucket"},
)
def looks_for_no_missed_reports(_: Any, config: Any, state: Any) -> Any:
    """A pass reads nothing of missed reports in a bucket that is new since a rebucketing."""
    return state.missed


@queues.replaces("cq.passes.deletions.drop_queued", seed=69)
def purges_what_came_later(_: Any, effects: Any, view: Any, versionstamp: bytes) -> bytes:
    """A purge drops all that waits."""
    effects.clear_range(*view.keys.rows(view.config.generation, view.number))
    return versionstamp


@queues.replaces("cq.passes.deletions.drop_queued", seed=69)
def purges_no_staged_updates(_: Any, effects: Any, view: Any, versionstamp: bytes) -> bytes:
    """A purge leaves what waits."""
    return versionstamp


@queues.replaces("cq.passes.combining.set_updates_aside", seed=1)
def sets_aside_and_forgets(
    _: Any, tr: Any, keys: Any, encoded: Any, error: Any, updates: Any, piece: int = 0
) -> int:
    """The updates of a bad key are dropped."""
    return piece


@queues.replaces("cq.observers.links.task.LinkTask._step", seed=1008)
def clears_entries_first(_: Any, self: Any) -> float:
    """Entries are cleared from the store before they are sent."""
    read = transact(self.db, self._read)
    self._epoch = read.link.control.epoch
    if read.queued.last_key is None:
        self._clear_note()
        return DONE
    transact(self.db, lambda tr: self._clear(tr, read))
    self._send(read)
    return 0.0


@queues.replaces("cq.observers.top.index.Index._move", seed=1)
def leaves_old_scores(move: Any, self: Any, change: Any) -> Any:
    """The top keeps the entry of the value before."""
    found = move(self, change)
    return found and (found[0], None, *found[2:])


@queues.patches(seed=39)
@contextmanager
def never_misses_the_dead() -> Iterator[None]:
    """A worker that is gone keeps its tasks."""
    look = Membership._is_gone
    with (
        patch.object(Membership, "_is_gone", lambda self, member: look(self, member) and False),
        patch.object(StalledTasks, "find", lambda self, db, jobs: {}),
    ):
        yield


@queues.patches(seed=1067)
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


@queues.replaces("cq.intake.emitter.Emitter._add", seed=33)
def flushes_without_looking(add: Any, self: Emitter, tr: Any, flush: Flush, updates: Any) -> None:
    """A flush whose answer gets lost is committed again."""
    flush.in_doubt = False
    add(self, tr, flush, updates)


@queues.patches(seed=12, also={"emitters", "unknown commits", "commits land late"})
def flushes_without_a_conflict() -> Any:
    """The first try of a flush can commit after the second one has."""

    def weak(self: SimTransaction, key: bytes) -> None:
        if not key.startswith((QueueKeys(TEXTS).emitters()[0], QueueKeys(SUMS).emitters()[0])):
            self.inner.add_read_conflict_key(key)

    return patch.object(SimTransaction, "add_read_conflict_key", weak, create=True)


@queues.replaces("cq.intake.flush.EmitterBuffer.fail_try", seed=12)
def drops_what_fails(_: Any, self: Any, flush: Flush, error: object) -> Any:
    """A flush that fails is taken for committed."""
    return self.commit(flush, 0, 0.0)


@queues.replaces("cq.intake.flush.EmitterBuffer.take", seed=21, only={"emitters", "deaths"})
def holds_more_than_was_said(take: Any, self: Any, *increments: Any) -> Any:
    """An emitter takes what it has no room for."""
    self._at_most = 1_000_000
    return take(self, *increments)


@queues.patches(seed=4, also={"emitters", "unknown commits"})
def says_that_nothing_counts() -> Any:
    """An emitter forgets that a try may have been committed."""
    doubt = property(lambda self: False, lambda self, value: None)
    return patch.object(Flush, "in_doubt", doubt, create=True)


@queues.replaces(
    "cq.intake.emitter.Emitter._add",
    seed=20,
    also={"emitters", "unknown commits", "commits land late", "limit"},
)
def ends_doubt_by_looking(add: Any, self: Emitter, tr: Any, flush: Flush, updates: Any) -> None:
    """An emitter takes a try for failed that is not committed yet."""
    try:
        add(self, tr, flush, updates)
    finally:
        flush.in_doubt = False


@queues.replaces("cq.queue.shared_adds.SharedAdds._fill", seed=23, also={"single adds"})
def tells_callers_too_early(fill: Any, self: SharedAdds, group: AddGroup) -> None:
    """A call returns before the transaction that has its updates is committed."""
    fill(self, group)
    for call in group.calls[1:]:
        call.wake()


@queues.replaces("cq.queue.shared_adds.AddGroup._packed", also={"single adds", "unknown commits"}, seed=2)
def groups_without_an_id(packed: Any, self: AddGroup, shape: Any) -> Any:
    """Each try of a group has an id of its own."""
    noted_id(self)
    self._operation = token_bytes(16)
    return packed(self, shape)


@queues.replaces("cq.queue.shared_adds.AddGroup._packed", also={"single adds"})
def writes_an_id_twice(packed: Any, self: AddGroup, shape: Any) -> Any:
    """A transaction has the updates of two calls with one id."""
    for call in self.calls:
        call.operation = call.operation and _Apart(call.operation)
    return packed(self, shape)


class _Apart(bytes):
    """Bytes that differ from all others."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@queues.patches(seed=199, also={"single adds", "unknown commits"})
def says_that_no_call_counts() -> Any:
    """A call forgets that a try may have been committed."""
    doubt = property(lambda self: None, lambda self, value: None)
    return patch.object(AddGroup, "doubt", doubt, create=True)


CANARIES: Final[Mapping[str, Canary]] = MappingProxyType(
    {
        **queues,
        **operatorcanaries.queues,
        **tagcanaries.tags,
        **windowcanaries.windows,
        **sessioncanaries.sessions,
        **feedcanaries.feeds,
        **cellcanaries.cells,
        **backlogcanaries.backlogs,
        **linkcanaries.links,
        **outboxcanaries.outboxes,
        **expiringcanaries.expiries,
        **(sketchcanaries.sketches if HAS_SKETCHES else {}),
        **rollingcanaries.rollups,
        **windowcanaries.recent,
        **decidingcanaries.decisions,
    }
)
"""{name: canary} of all systems."""


def caught_by(name: str) -> tuple[str, int | None]:
    """A canary's name, and the first of its seeds that catches it, and holds without it; None if none does."""
    canary = CANARIES[name]
    for seed in range(canary.seed, canary.seed + SEEDS):
        plan = canary.plan(seed)
        with canary():
            is_caught = bool(run(plan).violation)
        if is_caught and not run(plan).violation:
            return name, seed
    return name, None
