"""Uses of cq.aio with the types that type checkers infer. No function here is called."""

from __future__ import annotations

from typing import assert_type

import cq
import cq.aio
from cq.feeds import Feed
from cq.feeds.messages import FeedPage
from cq.observers.top.ranking import RankedEntry

words = cq.aio.CombineQueue[str, int]("words")
shared = cq.aio.CombineQueue(cq.CombineQueue[bytes, set[str]]("shared"))
feed = cq.aio.Feed(Feed[str]("feed"))
ranking = cq.aio.Ranking[str, int]("words")


async def transactions(db: cq.aio.AsyncDatabase) -> None:
    """Results keep their types."""

    async def publish(tr: cq.aio.AsyncTransaction) -> int | None:
        assert_type(await tr.get(b"key"), bytes | None)
        await words.add(tr, {"a": 1}, once="id")
        await shared.add(tr, [(b"a", {"b"})])
        return await words.get(tr.snapshot, "a", pending=True)

    assert_type(await db.transact(publish), int | None)
    assert_type(await db.transact(lambda tr: words.add(tr, {"a": 1}), write_only=True), None)
    assert_type(await db.transact(lambda tr: words.get_many(tr, ["a"])), dict[str, int | None])
    assert_type([item async for item in words.scan(db, limit=10)], list[tuple[str, int]])
    assert_type(await shared.get(db.create_transaction(), b"a"), set[str] | None)


async def others(db: cq.aio.AsyncDatabase, tr: cq.aio.AsyncTransaction) -> None:
    """Feeds, rankings, and calls of any function."""
    assert_type(await feed.wait(db, "anne", timeout=1), FeedPage[str])
    assert_type((await ranking.page(tr, 5)).entries, list[RankedEntry[str, int]])
    assert_type(await ranking.rank(tr, "a"), int | None)
    assert_type(await db.call(cq.configure, "words", key=str, value=int), cq.CombineQueue[str, int])
    assert_type(await cq.aio.run(len, "text"), int)
    async with cq.aio.Worker(db, queues=["words"]):
        await tr.watch(b"key")
