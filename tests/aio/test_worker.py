"""A worker in the process of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cq
import cq.aio
from cq.aio import AsyncDatabase

Run = Callable[[Any], Any]


def threads() -> set[str]:
    """The threads of workers; those of one that has stopped end by themselves."""
    for each in threading.enumerate():
        if "worker" in each.name:
            each.join(60)
    return {each.name for each in threading.enumerate() if "worker" in each.name}


async def value_of(adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], wanted: int) -> None:
    """Wait until a key has a value."""
    while await adb.transact(lambda tr: words.get(tr.snapshot, "a")) != wanted:
        await asyncio.sleep(0.005)


def test_a_worker_combines_while_its_block_runs(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], run: Run
) -> None:
    async def main() -> None:
        async with cq.aio.Worker(adb, queues=[words.name]):
            for number in (1, 2):
                await adb.transact(lambda tr: words.add(tr, {"a": 1}))
                await asyncio.wait_for(value_of(adb, words, number), 60)

    run(main())
    assert threads() == set()


@pytest.mark.parametrize("ends", [True, False])
async def test_an_error_of_the_worker_is_raised_by_the_block(tmp_path: Path, ends: bool) -> None:
    adb = await cq.aio.open(f"embedded:{tmp_path / 'store.db'}")
    with pytest.raises(cq.StoreError, match="closed"):  # noqa: PT012 - the end of the block raises it
        async with cq.aio.Worker(adb):
            await adb.close()  # the worker cannot go on
            if not ends:
                await asyncio.wait_for(asyncio.Event().wait(), 60)
    await asyncio.sleep(0)  # the task is not cancelled any more
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_queue_that_does_not_exist_is_an_error_at_the_start(adb: AsyncDatabase) -> None:
    with pytest.raises(cq.errors.QueueNotConfigured):
        async with cq.aio.Worker(adb, queues=["none"]):
            raise AssertionError("it began")


def test_an_error_of_the_block_stops_the_worker(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], run: Run
) -> None:
    async def main() -> None:
        async with cq.aio.Worker(adb, queues=[words.name]):
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        run(main())
    assert threads() == set()


@pytest.mark.parametrize("turns", [0, 1, 200])
def test_a_cancelled_block_stops_the_worker_first(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], run: Run, turns: int
) -> None:
    """Also if it is cancelled while it starts."""

    async def block() -> None:
        async with cq.aio.Worker(adb, queues=[words.name]):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(block())
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 1:
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())
    assert threads() == set()
