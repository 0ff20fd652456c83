"""`add_now` of many tasks: they share transactions, and a cancelled task holds up no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import cq
import cq.aio
from cq.aio import AsyncDatabase
from cq.testing import assert_values, drain
from tests.aio.test_cancelling import is_cancelled
from tests.kit.faults import WrappedDatabase, WrappedTransaction

Run = Callable[[Any], Any]


class CountedCommits(WrappedDatabase):
    """A database that counts commits; as on a file, there is one group at a time."""

    is_local = True
    commits = 0

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        self.commits += what == "commit"
        return super().call(tr, what, *args, **kwargs)


def test_tasks_share_transactions(adb: AsyncDatabase, name: str, run: Run) -> None:
    cq.configure(adb.sync, name)
    queue, counting = cq.aio.CombineQueue[str, int](name), CountedCommits(adb.sync)

    async def add_all() -> None:
        await asyncio.gather(*(queue.add_now(AsyncDatabase(counting), {"a": 1}) for _ in range(500)))

    run(add_all())
    assert counting.commits < 10, "that of the first call, and those of the calls that waited"
    drain(adb.sync, name)
    assert_values(adb.sync, name, {"a": 500})


def test_a_refused_call_fails_alone(adb: AsyncDatabase, name: str, run: Run) -> None:
    cq.configure(adb.sync, name)
    queue = cq.aio.CombineQueue[str, Any](name)

    async def add_all() -> Any:
        calls = (queue.add_now(adb, {"a": "x" if number % 10 == 5 else 1}) for number in range(50))
        return await asyncio.gather(*calls, return_exceptions=True)

    results = run(add_all())
    assert [type(result) for result in results] == [
        cq.InvalidData if number % 10 == 5 else type(None) for number in range(50)
    ]
    drain(adb.sync, name)
    assert_values(adb.sync, name, {"a": 45})


def test_cancelled_tasks_hold_up_no_other(adb: AsyncDatabase, name: str, run: Run) -> None:
    """Each task is cancelled at a random await, also while it commits for others; then all others end."""
    cq.configure(adb.sync, name)
    queue, seed = cq.aio.CombineQueue[str, int](name), random.randrange(1 << 32)
    rng = random.Random(seed)

    async def add_all() -> list[bool]:
        def added(number: int) -> Callable[[], Any]:
            return lambda: queue.add_now(adb, {str(number): 1}, str(number) if number % 3 else None)

        return await asyncio.gather(
            *(is_cancelled(added(number), rng.choice((1, 1, 2, 3, 99))) for number in range(200))
        )

    for _ in range(5):
        cancelled = run(asyncio.wait_for(add_all(), 60))
    drain(adb.sync, name)
    values = dict(queue.sync.scan(adb.sync))
    assert any(cancelled)
    assert not all(cancelled)
    for number, is_last_cancelled in enumerate(cancelled):
        found = values.get(str(number), 0)
        most = 1 if number % 3 else 5
        assert (0 if is_last_cancelled else 1) <= found <= most, f"seed {seed}, task {number}"
    run(queue.add_now(adb, {"after": 1}))


def test_event_loops_that_end_hold_up_no_other(adb: AsyncDatabase, name: str) -> None:
    cq.configure(adb.sync, name)
    queue = cq.aio.CombineQueue[str, int](name)

    async def leave() -> None:
        left = [asyncio.ensure_future(queue.add_now(adb, {f"left {number}": 1})) for number in range(20)]
        await asyncio.sleep(0)
        assert not all(task.done() for task in left)

    for _ in range(3):
        asyncio.run(leave())
    asyncio.run(asyncio.wait_for(queue.add_now(adb, {"a": 1}), 60))
    drain(adb.sync, name)
    assert dict(queue.sync.scan(adb.sync))["a"] == 1
