"""Variants that are broken on purpose in changes of configurations, repairs, and what readers get, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq import backfill, config, configuring, pressure, purging, reshaping
from cq.markers import Trim
from cq.queue import CombineQueue
from tests.simulation.store import FaultyTransaction


def reads_without_staged_updates() -> Any:
    """A reader gets the value with the queued updates, and without the staged ones."""
    read = CombineQueue._with_pending

    class Unstaged:
        def __init__(self, tr: Any, staged: bytes) -> None:
            self._tr, self._staged = tr, staged

        def get(self, key: bytes) -> Any:
            return self._tr.get(key + b"none" if key == self._staged else key)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tr, name)

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
        return config.read_config(tr.snapshot if isinstance(tr, FaultyTransaction) else tr, name)

    with ExitStack() as stack:
        for module in (configuring, pressure, purging, reshaping):
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


CHANGING: Final[dict[Callable[[], Any], int]] = {
    reads_without_staged_updates: 60,
    reads_updates_of_the_shape_now: 60,
    changes_configurations_by_snapshot: 60,
    switches_too_early: 60,
    forgets_ids_without_a_conflict: 60,
}
"""{canary: within how many seeds it is caught}."""
FIRST: Final[dict[Callable[[], Any], int]] = {
    reads_without_staged_updates: 3,
    reads_updates_of_the_shape_now: 16,
    changes_configurations_by_snapshot: 14,
    forgets_ids_without_a_conflict: 14,
}
"""{canary: the first of its seeds}."""
ONLY: Final[dict[Callable[[], Any], frozenset[str]]] = {
    reads_without_staged_updates: frozenset(("pending reads",)),
    reads_updates_of_the_shape_now: frozenset(("pending reads", "rebucket")),
    changes_configurations_by_snapshot: frozenset(
        ("two operators", "rebucket", "purge", "observers", "calls are late")
    ),
    switches_too_early: frozenset(("top",)),
    forgets_ids_without_a_conflict: frozenset(
        ("once", "short-lived ids", "late tries", "come and go", "watches are late")
    ),
}
"""{canary: the only kinds that its plans have}."""
