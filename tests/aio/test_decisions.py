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
