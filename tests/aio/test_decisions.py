"""Requests of tasks share transactions, and tasks wait for answers without threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import cq
import cq.aio
from cq.aio import AsyncDatabase
from cq.errors import Withdrawn
from cq.observers.worker.worker import Worker
from cq.testing import drain
from tests.kit.workers import running

Run = Callable[[Any], Any]


def take(key: str, state: int | None, request: int) -> tuple[int | None, bool]:
    left = (50 if state is None else state) - request
    return (left, True) if left >= 0 else (state, False)


def test_tasks_get_their_answers(adb: AsyncDatabase, name: str, run: Run) -> None:
    app = cq.App()
    stock = cq.aio.CombineQueue(app.queue(name, key=str, value=int, decider=cq.Decider("stock", 1, take)))
    app.configure(adb.sync, name)

    async def ask_all() -> list[bool]:
        return list(await asyncio.gather(*(stock.ask_now(adb, "a", 1, timeout=60) for _ in range(80))))

    async def ask() -> bool:
        ticket = await adb.transact(lambda tr: stock.ask(tr, "b", 50))
        found: bool = await stock.answer(adb, ticket, timeout=60)
        assert not await stock.withdraw(adb, ticket)
        return found

    with running(Worker(adb.sync, app=app, queues=[name])):
        answers = run(ask_all())
        assert run(ask())
    assert answers.count(True) == 50

    async def withdraw() -> None:
        with pytest.raises(Withdrawn):
            await stock.ask_now(adb, "a", 1, timeout=0.01, withdraw=True)

    run(withdraw())


def test_a_cancelled_task_leaves_the_wait_to_others(adb: AsyncDatabase, name: str, run: Run) -> None:
    app = cq.App()
    stock = cq.aio.CombineQueue(app.queue(name, key=str, value=int, decider=cq.Decider("stock", 1, take)))
    app.configure(adb.sync, name)

    async def ask_and_cancel() -> list[Any]:
        tasks = [asyncio.create_task(stock.ask_now(adb, "a", 1, timeout=60)) for _ in range(12)]
        before = await asyncio.wait(tasks, timeout=0.05)
        assert not before[0]
        for number in (0, 1, 5, 6):  # the first ones have committed the others' requests
            tasks[number].cancel()
        await asyncio.to_thread(drain, adb.sync, name, app=app)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = run(ask_and_cancel())
    assert [type(each) for each in found].count(asyncio.CancelledError) == 4
    assert found.count(True) == 8
