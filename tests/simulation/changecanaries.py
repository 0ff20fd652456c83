"""Variants that are broken on purpose in changes of configurations, repairs, and what readers get, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq.admin import backfill, purge, rebucket
from cq.admin.configure import RequestedSettings
from cq.config import flags
from cq.config import queue as config
from cq.queue import adds, limits
from cq.queue.combine_queue import CombineQueue
from cq.queue.operation_ids import Trim
from cq.verify import buckets
from tests.faults import Passing
from tests.simulation.store import SimTransaction


def reads_without_staged_updates() -> Any:
    """A reader gets the value with the queued updates, and without the staged ones."""
    read = CombineQueue._with_pending

    class Unstaged(Passing):
        def __init__(self, tr: Any, staged: bytes) -> None:
            super().__init__(tr)
            self._staged = staged

        def get(self, key: bytes) -> Any:
            return self.inner.get(key + b"none" if key == self._staged else key)

    def without(self: CombineQueue, tr: Any, shape: Any, encoded: bytes, key: Any, current: Any) -> Any:
        return read(self, Unstaged(tr, self.keys.staged(encoded)), shape, encoded, key, current)

    return patch.object(CombineQueue, "_with_pending", without)


def reads_updates_of_the_shape_now() -> Any:
    """A reader gets the updates that are queued under the shape now, and not those under the former one."""
    read = CombineQueue._queued_updates

    def queued(self: CombineQueue, snapshot: Any, shape: Any, encoded: bytes) -> Any:
        return read(self, snapshot, replace(shape, former=None), encoded)

    return patch.object(CombineQueue, "_queued_updates", queued)


@contextmanager
def changes_configurations_by_snapshot() -> Iterator[None]:
    """Of two changes of one configuration, the later one undoes the other."""

    def read(tr: Any, name: str) -> Any:
        return config.read_config(tr.snapshot if isinstance(tr, SimTransaction) else tr, name)

    with ExitStack() as stack:
        for module in (limits, purge, rebucket):
            stack.enter_context(patch.object(module, "read_config", read))
        yield


def switches_too_early() -> Any:
    """Readers use what an observer keeps before the observer has all values."""
    return patch.object(backfill, "_is_complete", lambda state, observer: True)


def forgets_ids_without_a_conflict() -> Any:
    """An operation id is forgotten while another try of the operation is committed."""
    forget = Trim._forget

    class Unconflicted:
        def __init__(self, tr: Any) -> None:
            self.clear_range = tr.clear_range

        def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
            pass

    def without(self: Trim, tr: Any, operation: bytes, markers: list[Any]) -> int:
        return forget(self, Unconflicted(tr), operation, markers)  # type: ignore[arg-type]

    return patch.object(Trim, "_forget", without)


def repairs_without_notifying() -> Any:
    """A repair leaves a bucket with updates without its notification."""
    return patch.object(buckets, "notify", lambda piece, generation, bucket: None)


def ignores_pauses() -> Any:
    """A worker combines a queue that is paused."""
    return patch.object(flags.Flags, "is_paused", lambda self, now: False)


def adds_to_full_queues() -> Any:
    """An add does not read the mark of a full queue."""
    return patch.object(adds, "refuse_if_full", lambda tr, config: None)


def keeps_queues_full() -> Any:
    """A worker does not clear the mark of a full queue that has room again."""
    reason = limits._reason
    return patch.object(
        limits,
        "_reason",
        lambda flags, waiting, *, is_full: "full" if is_full else reason(flags, waiting, is_full=False),
    )


def keeps_what_the_former_version_wrote() -> Any:
    """A new version of an observer receives all values again, and nothing is cleared."""
    return patch.object(RequestedSettings, "begin_observers", lambda self, tr, before, after: None)


CHANGING: Final[dict[Callable[[], Any], int]] = {
    reads_without_staged_updates: 60,
    reads_updates_of_the_shape_now: 60,
    changes_configurations_by_snapshot: 60,
    switches_too_early: 60,
    forgets_ids_without_a_conflict: 60,
    repairs_without_notifying: 5,
    ignores_pauses: 5,
    adds_to_full_queues: 5,
    keeps_queues_full: 5,
    keeps_what_the_former_version_wrote: 60,
}
"""{canary: within how many seeds it is caught}."""
ONLY: Final[dict[Callable[[], Any], frozenset[str]]] = {
    reads_without_staged_updates: frozenset(("pending reads",)),
    reads_updates_of_the_shape_now: frozenset(("pending reads", "rebucket")),
    changes_configurations_by_snapshot: frozenset(
        ("two operators", "rebucket", "purge", "observers", "calls are late")
    ),
    switches_too_early: frozenset(("top",)),
    keeps_what_the_former_version_wrote: frozenset(("observers",)),
    **dict.fromkeys(
        (repairs_without_notifying, ignores_pauses, adds_to_full_queues, keeps_queues_full),
        frozenset(("drill",)),
    ),
    forgets_ids_without_a_conflict: frozenset(
        ("once", "short-lived ids", "late tries", "come and go", "watches are late")
    ),
}
"""{canary: the only kinds that its plans have}."""
