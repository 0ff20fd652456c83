"""What operators rely on without any faults, at the end of a run: pauses, limits, and repairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import cq
from cq import admin
from cq.keys import QueueKeys
from cq.observers.verify.queue import verification
from cq.store.transact import transact
from tests.simulation.application import SUMS, app
from tests.simulation.hub import Process
from tests.simulation.model import Added, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

HEED_SECONDS: Final = 5.0
"""How soon workers and adders heed a pause or a limit, without faults."""
_KEY: Final = "drill"


class Drill:
    """One drill over the queue of sums.

    Attributes:
        is_done: whether it has ended, or is not in the plan.
    """

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process
        self.is_done = "drill" not in world.plan

    def run(self) -> None:
        """Pause, add, limit, lose a notification, resume and repair; raises `Violation`."""
        if self.is_done:
            return
        db, wait = self.world.db(self.process), self.world.hub.wait
        self._until("rows are left", lambda: not self._has_rows())
        admin.pause(db, SUMS)
        wait(HEED_SECONDS)
        self._add()
        admin.limit(db, SUMS, max_bytes=1)
        wait(HEED_SECONDS)
        if not self._has_rows():
            raise Violation("a paused queue is combined")
        if not self._is_refused():
            raise Violation("a full queue accepts updates")
        self._lose_notification()
        admin.resume(db, SUMS)
        wait(HEED_SECONDS)
        if not self._has_rows():
            raise Violation("a queue without its notification is combined: nothing was lost")
        for _ in verification(db, SUMS, app=app(self.world, self.world.extra), repair=True, wait=0).run():
            pass
        self._until("a repaired queue is not combined", lambda: not self._has_rows())
        self._until("a queue with room refuses updates", lambda: not self._is_refused())
        admin.limit(db, SUMS)
        self.is_done = True

    def _until(self, problem: str, is_so: Callable[[], bool]) -> None:
        for _ in range(30):
            if is_so():
                return
            self.world.hub.wait(1.0)
        raise Violation(f"without faults, after 30 s: {problem}")

    def _has_rows(self) -> bool:
        return bool(self.world.inner.get_range(*QueueKeys(SUMS).all_rows(), limit=1))

    def _add(self) -> None:
        note = Added(SUMS, ((_KEY, 1),), None)

        def run(tr: Any) -> None:
            cq.CombineQueue(SUMS).add(tr, note.updates)
            tr.notes.append(note)

        transact(self.world.db(self.process), run)

    def _is_refused(self) -> bool:
        try:
            self._add()
        except cq.QueueFull:
            return True
        return False

    def _lose_notification(self) -> None:
        tr = self.world.inner.create_transaction()
        tr.clear_range(*QueueKeys(SUMS).notifications())
        tr.commit().wait()
