"""`add_now` and `ask_now` of many tasks: they share transactions, and a cancelled task holds up no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

import cq
import cq.aio
from cq.aio import AsyncDatabase
from cq.errors import Withdrawn
from cq.observers.worker.worker import Worker
from cq.testing import assert_values, drain
from tests.aio.test_cancelling import is_cancelled
from tests.kit.faults import WrappedDatabase, WrappedTransaction
from tests.kit.workers import running

Run = Callable[[Any], Any]
Words = cq.aio.CombineQueue[str, int]


class CountedCommits(WrappedDatabase):
    """A database that counts commits; as on a file, there is one group at a time."""

    is_local = True
    commits = 0

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        self.commits += what == "commit"
        return super().call(tr, what, *args, **kwargs)


async def test_tasks_share_transactions(adb: AsyncDatabase, words: Words) -> None:
    counting = CountedCommits(adb.sync)
    await asyncio.gather(*(words.add_now(AsyncDatabase(counting), {"a": 1}) for _ in range(500)))

    assert counting.commits < 10, "that of the first call, and those of the calls that waited"
    await asyncio.to_thread(drain, adb.sync, words.name)
    await adb.call(assert_values, words.name, {"a": 500})


async def test_a_refused_call_fails_alone(adb: AsyncDatabase, words: Any) -> None:
    calls = (words.add_now(adb, {"a": "x" if number % 10 == 5 else 1}) for number in range(50))
    results = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(result) for result in results] == [
        cq.InvalidData if number % 10 == 5 else type(None) for number in range(50)
    ]
    await asyncio.to_thread(drain, adb.sync, words.name)
    await adb.call(assert_values, words.name, {"a": 45})


def test_cancelled_tasks_hold_up_no_other(adb: AsyncDatabase, words: Words, run: Run) -> None:
    """Each task is cancelled at a random await, also while it commits for others; then all others end."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)

    async def add_all() -> list[bool]:
        def added(number: int) -> Callable[[], Any]:
            return lambda: words.add_now(adb, {str(number): 1}, str(number) if number % 3 else None)

        return await asyncio.gather(
            *(is_cancelled(added(number), rng.choice((1, 1, 2, 3, 99))) for number in range(200))
        )

    for _ in range(5):
        cancelled = run(asyncio.wait_for(add_all(), 60))
    drain(adb.sync, words.name)
    values = dict(words.sync.scan(adb.sync))
    assert any(cancelled)
    assert not all(cancelled)
    for number, is_last_cancelled in enumerate(cancelled):
        found = values.get(str(number), 0)
        most = 1 if number % 3 else 5
        assert (0 if is_last_cancelled else 1) <= found <= most, f"seed {seed}, task {number}"
    run(words.add_now(adb, {"after": 1}))


def test_event_loops_that_end_hold_up_no_other(adb: AsyncDatabase, words: Words) -> None:
    async def leave() -> None:
        left = [asyncio.ensure_future(words.add_now(adb, {f"left {number}": 1})) for number in range(20)]
        await asyncio.sleep(0)
        assert not all(task.done() for task in left)

    for _ in range(3):
        asyncio.run(leave())
    asyncio.run(asyncio.wait_for(words.add_now(adb, {"a": 1}), 60))
    drain(adb.sync, words.name)
    assert dict(words.sync.scan(adb.sync))["a"] == 1


# Decisions


def take(key: str, state: int | None, request: int) -> tuple[int | None, bool]:
    left = (50 if state is None else state) - request
    return (left, True) if left >= 0 else (state, False)


@pytest.fixture
def app(db: Any, name: str) -> cq.App:
    """An application whose queue decides requests."""
    app = cq.App()
    app.queue(name, key=str, value=int, decider=cq.Decider("stock", 1, take))
    app.configure(db, name)
    return app


async def test_tasks_get_their_answers(adb: AsyncDatabase, app: cq.App, name: str) -> None:
    stock = cq.aio.CombineQueue[str, int](name)
    with running(Worker(adb.sync, app=app, queues=[name])):
        answers = await asyncio.gather(*(stock.ask_now(adb, "a", 1, timeout="1m") for _ in range(80)))
        ticket = await adb.transact(lambda tr: stock.ask(tr, "b", 50))
        assert await stock.answer(adb, ticket, timeout=60)
        assert not await stock.withdraw(adb, ticket)
    assert answers.count(True) == 50
    with pytest.raises(Withdrawn):
        await stock.ask_now(adb, "a", 1, timeout=0.01, withdraw=True)


async def test_a_cancelled_task_leaves_the_wait_to_others(adb: AsyncDatabase, app: cq.App, name: str) -> None:
    stock = cq.aio.CombineQueue[str, int](name)
    tasks = [asyncio.create_task(stock.ask_now(adb, "a", 1, timeout=60)) for _ in range(12)]
    before = await asyncio.wait(tasks, timeout=0.05)
    assert not before[0]
    for number in (0, 1, 5, 6):  # the first ones have committed the others' requests
        tasks[number].cancel()
    await asyncio.to_thread(drain, adb.sync, name, app=app)
    found: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(each) for each in found].count(asyncio.CancelledError) == 4
    assert found.count(True) == 8
