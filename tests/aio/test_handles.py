"""Queues, windows, feeds, rankings and clouds for tasks have the methods of the synchronous ones, and their results."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

import cq
import cq.aio
from cq import admin
from cq.aio import AsyncDatabase, AsyncTransaction, handles
from cq.aio.handles import Awaited, Iterated
from cq.feeds.feed import Feed
from cq.observers.top.cloud import CloudReader
from cq.observers.top.index import top
from cq.observers.top.ranking import Ranking
from cq.testing import drain
from cq.windows import Window

Run = Callable[[Any], Any]
NOT_FOR_TASKS = {(CloudReader, "newer")}  # a part of `wait`


@pytest.mark.parametrize(
    ("handle", "synchronous"),
    [
        (cq.aio.CombineQueue, cq.CombineQueue),
        (cq.aio.Window, Window),
        (cq.aio.Feed, Feed),
        (cq.aio.Ranking, Ranking),
        (cq.aio.CloudReader, CloudReader),
    ],
    ids=lambda kind: kind.__name__,
)
def test_a_handle_has_every_method(handle: type, synchronous: type) -> None:
    methods = {name for name, _ in inspect.getmembers(synchronous, inspect.isfunction) if name[0] != "_"}
    made = {name for name, each in vars(handle).items() if isinstance(each, Awaited | Iterated)}

    assert made == {name for name in methods if (synchronous, name) not in NOT_FOR_TASKS}
    for name in made:
        # `help` shows these, of the class and of a handle.
        assert (
            vars(handle)[name].__doc__ == getattr(handle, name).__doc__ == getattr(synchronous, name).__doc__
        )
        assert inspect.signature(getattr(handle, name)) == inspect.signature(getattr(synchronous, name))


async def test_a_queue_for_synchronous_code_refuses_a_transaction_of_asyncio(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int]
) -> None:
    async def add(tr: Any) -> None:
        cq.CombineQueue(words.name).add(tr, {"a": 1})

    with pytest.raises(TypeError, match=r"got one of asyncio: use the class of this name in `cq\.aio`"):
        await adb.transact(add)


async def test_a_queue_is_added_to_and_read(adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int]) -> None:
    async def add(tr: AsyncTransaction) -> int | None:
        pending = await words.get(tr.snapshot, "a", pending=True)
        await words.add(tr, {"a": 1, "b": 2}, once="id")
        return pending

    async def read(tr: AsyncTransaction) -> tuple[Any, ...]:
        page = await words.items(tr.snapshot, limit=10)
        return await words.get(tr, "a"), await words.get_many(tr, ["a", "c"]), sorted(page.items)

    assert [await adb.transact(add) for _ in range(3)] == [None, 1, 1]
    await asyncio.to_thread(drain, adb.sync, words.name)
    assert await adb.transact(read) == (1, {"a": 1, "c": None}, [("a", 1), ("b", 2)])
    assert sorted([item async for item in words.scan(adb, limit=1)]) == [("a", 1), ("b", 2)]


async def test_errors_are_those_of_the_synchronous_method(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int]
) -> None:
    wrong: Any = {"a": "text"}
    none: cq.aio.CombineQueue[str, int] = cq.aio.CombineQueue("none")
    with pytest.raises(cq.InvalidData):
        await adb.transact(lambda tr: words.add(tr, wrong))
    with pytest.raises(cq.errors.QueueNotConfigured):
        await adb.transact(lambda tr: none.get(tr, "a"))
    with pytest.raises(cq.errors.InvalidConfiguration):
        cq.aio.CombineQueue("no name")


def test_a_handle_wraps_a_synchronous_one(words: cq.aio.CombineQueue[str, int]) -> None:
    assert cq.aio.CombineQueue(words.sync).sync is words.sync
    assert repr(words) == f"cq.aio.CombineQueue({words.name!r})"
    assert cq.aio.Window(words).sync.queue is words.sync
    assert handles.AsyncFeed(Feed("feed")).name == "feed"


async def test_any_function_of_a_database_or_a_transaction_can_be_called(
    adb: AsyncDatabase, name: str
) -> None:
    await adb.call(cq.configure, name, key=str, value=int, combiner="sum")
    await adb.call(admin.pause, name)
    await adb.call(admin.resume, name)
    emitter = await cq.aio.run(cq.Emitter, cq.CombineQueue(name), adb.sync)
    await asyncio.gather(*(emitter.emit_async("a", number) for number in range(1, 21)))
    await cq.aio.run(emitter.flush)
    await asyncio.to_thread(emitter.close)
    await asyncio.to_thread(drain, adb.sync, name)
    assert await adb.transact(lambda tr: tr.call(cq.CombineQueue(name).get, "a")) == 210


async def test_a_window_is_added_to_and_read(adb: AsyncDatabase, name: str) -> None:
    cq.configure(adb.sync, name, key=str, value=int, combiner="sum", window=(600, 10))
    window: cq.aio.Window[str] = cq.aio.Window(name)

    async def add(tr: AsyncTransaction) -> list[str]:
        return [
            await window.add(tr, {"a": 1}),
            await window.add(tr, {"a": 1}, at=time.time() - 1000),
        ]

    async def read(tr: AsyncTransaction) -> tuple[Any, ...]:
        return await window.get(tr, "a", pending=True), (await window.statistics(tr)).late

    assert await adb.transact(add) == ["taken", "late"]
    assert await adb.transact(read) == (1, 1)


async def test_readers_of_a_feed_wait_by_watches(adb: AsyncDatabase, name: str) -> None:
    feed: cq.aio.Feed[int] = cq.aio.Feed(name)

    await feed.configure(adb)
    readers = [asyncio.create_task(feed.wait(adb, f"user {number}")) for number in range(20)]
    assert (await feed.wait(adb, "user 0", timeout=0.05)).messages == ()
    assert not any(reader.done() for reader in readers)

    async def send(tr: AsyncTransaction) -> None:
        for number in range(20):
            await feed.append(tr, f"user {number}", number)

    await adb.transact(send)
    pages = await asyncio.wait_for(asyncio.gather(*readers), 60)
    assert [page.messages[0].body for page in pages] == list(range(20))


async def test_a_top_is_read_and_a_cloud_is_awaited(adb: AsyncDatabase, name: str) -> None:
    cq.configure(adb.sync, name, key=str, value=int, combiner="sum", observers=[top(n=2, ranks=True)])
    cq.transact(adb.sync, lambda tr: cq.CombineQueue(name).add(tr, {"a": 1, "b": 3, "c": 2}))
    ranking: cq.aio.Ranking[str, int] = cq.aio.Ranking(name)
    cloud = cq.aio.CloudReader(name)

    async def read(tr: AsyncTransaction) -> tuple[Any, ...]:
        page = await ranking.page(tr, 2)
        return [entry.key for entry in page.entries], await ranking.rank(tr, "a"), await ranking.count(tr)

    waiting = asyncio.create_task(cloud.wait(adb))
    await asyncio.to_thread(drain, adb.sync, name)
    assert await adb.transact(read) == (["b", "c"], 3, 3)
    assert [entry.key async for entry in ranking.scan(adb)] == ["b", "c", "a"]
    published = await asyncio.wait_for(waiting, 60)
    assert published is not None
    assert {entry.key for entry in published.entries} == {"b", "c"}
