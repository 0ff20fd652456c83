"""Canaries of changes of configurations, of repairs, and of what readers get; see `canary`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cq.config import queue as config
from tests.faults import Passing
from tests.simulation.canary import Canaries
from tests.simulation.store import SimTransaction

queues = Canaries("queues")


class _Unstaged(Passing):
    """A transaction that does not find a staged value."""

    def __init__(self, tr: Any, staged: bytes) -> None:
        super().__init__(tr)
        self._staged = staged

    def get(self, key: bytes) -> Any:
        return self.inner.get(key + b"none" if key == self._staged else key)


@queues.replaces("cq.queue.combine_queue.CombineQueue._with_pending", seed=38, only={"pending reads"})
def reads_without_staged_updates(
    read: Any, self: Any, tr: Any, shape: Any, encoded: bytes, *given: Any
) -> Any:
    """A reader gets the value with the queued updates, and without the staged ones."""
    return read(self, _Unstaged(tr, self.keys.staged(encoded)), shape, encoded, *given)


@queues.replaces(
    "cq.queue.combine_queue.CombineQueue._queued_updates", seed=66, only={"pending reads", "rebucket"}
)
def reads_updates_of_the_shape_now(read: Any, self: Any, snapshot: Any, shape: Any, encoded: bytes) -> Any:
    """A reader gets the updates that are queued under the shape now, and not those under the former one."""
    return read(self, snapshot, replace(shape, former=None), encoded)


@queues.replaces(
    "cq.queue.limits.read_config",
    "cq.admin.purge.read_config",
    "cq.admin.rebucket.read_config",
    seed=57,
    only={"two operators", "rebucket", "purge", "observers", "calls are late"},
)
def changes_configurations_by_snapshot(_: Any, tr: Any, name: str) -> Any:
    """Of two changes of one configuration, the later one undoes the other."""
    return config.read_config(tr.snapshot if isinstance(tr, SimTransaction) else tr, name)


@queues.replaces("cq.admin.backfill._is_complete", only={"top"})
def switches_too_early(*_: Any) -> bool:
    """Readers use what an observer keeps before the observer has all values."""
    return True


class _Unconflicted(Passing):
    """A transaction that adds no conflicts."""

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        pass


@queues.replaces(
    "cq.queue.operation_ids.Trim._forget",
    seed=73,
    only={"once", "short-lived ids", "late tries", "come and go", "watches are late"},
)
def forgets_ids_without_a_conflict(
    forget: Any, self: Any, tr: Any, operation: bytes, markers: list[Any]
) -> Any:
    """An operation id is forgotten while another try of the operation is committed."""
    return forget(self, _Unconflicted(tr), operation, markers)


@queues.replaces("cq.verify.buckets.notify", only={"drill"})
def repairs_without_notifying(*_: Any) -> None:
    """A repair leaves a bucket with updates without its notification."""


@queues.replaces("cq.config.flags.Flags.is_paused", only={"drill"})
def ignores_pauses(*_: Any) -> bool:
    """A worker combines a queue that is paused."""
    return False


@queues.replaces("cq.queue.adds.refuse_if_full", only={"drill"})
def adds_to_full_queues(*_: Any) -> None:
    """An add does not read the mark of a full queue."""


@queues.replaces("cq.queue.limits._reason", only={"drill"})
def keeps_queues_full(reason: Any, flags: Any, waiting: Any, *, is_full: bool) -> Any:
    """A worker does not clear the mark of a full queue that has room again."""
    return "full" if is_full else reason(flags, waiting, is_full=False)


@queues.replaces("cq.admin.configure.RequestedSettings.begin_observers", only={"observers"})
def keeps_what_the_former_version_wrote(*_: Any) -> None:
    """A new version of an observer receives all values again, and nothing is cleared."""
