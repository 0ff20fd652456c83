"""Open pages: they follow the store, and the store's reads do not depend on their number."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import cq
from cq.cli.web.sampler import MAX_TOPICS, Reader, Sampler, Topic
from cq.observers.monitoring.store_overview import overview
from tests.cli.web.dashboards import SECONDS, CountedReads, events, serving, stream

STREAMS = 100


def test_an_open_page_receives_the_parts_that_changed(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int)

    async def follow() -> None:
        with serving(db) as found:
            async with stream(found, "/queues/words") as reader:
                first = json.loads((await events(reader, 1))[0])
                queue = cq.CombineQueue[str, int]("words")
                await asyncio.to_thread(cq.transact, db, lambda tr: queue.add(tr, {"a": 1}))
                while "1 of 1 bucket has queued updates" not in first.get("part-buckets", ""):
                    first = json.loads((await events(reader, 1))[0])
                    assert first
                    assert "part-settings" not in first or "Configuration" in first["part-settings"]

    asyncio.run(follow())


def test_a_hundred_open_pages_cost_the_store_as_much_as_one(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int)
    counted = CountedReads(db)
    overview(counted)
    of_one_sample, counted.transactions = counted.transactions, 0

    async def follow() -> None:
        with serving(counted) as found:
            async with AsyncExitStack() as stack:
                readers = [await stack.enter_async_context(stream(found, "/workers")) for _ in range(STREAMS)]
                queue = cq.CombineQueue[str, int]("words")
                for number in range(2):
                    await asyncio.to_thread(
                        cq.transact, db, lambda tr, number=number: queue.add(tr, {f"k{number}": 1})
                    )
                    received = await asyncio.gather(*(events(reader, 1) for reader in readers))
                    assert len(received) == STREAMS
        assert counted.transactions == of_one_sample * found.server.dashboard.sampler.snapshot.number

    asyncio.run(follow())


def test_many_topics_share_a_limited_number_of_reads(db: Any) -> None:
    read: list[str] = []
    rounds: list[int] = []
    readers = {"each": Reader(lambda db, name: read.append(name), 0.0)}
    topics = [Topic("each", str(number)) for number in range(3 * MAX_TOPICS)]

    async def sample() -> None:
        sampler = Sampler(db, readers)
        running = asyncio.create_task(sampler.run())
        with sampler.watching(topics):
            while len(set(read)) < len(topics):
                before, number = len(read), sampler.snapshot.number
                await sampler.newer(number, SECONDS)
                rounds.append(len(read) - before)
        sampler.stop()
        await running

    asyncio.run(sample())
    assert set(read) == {topic.name for topic in topics}
    assert len(read) <= MAX_TOPICS * (len(rounds) + 1)


def test_a_store_that_fails_is_reported_with_the_last_known_numbers(db: Any) -> None:
    failing = False

    def read(db: Any, name: str) -> int:
        if failing:
            raise cq.StoreError("it is away")
        return 7

    async def sample() -> None:
        nonlocal failing
        sampler, topic = Sampler(db, {"each": Reader(read, 0.0)}), Topic("each")
        running = asyncio.create_task(sampler.run())
        first = await sampler.answered([topic])
        assert (first.value(topic, int), first.error(topic)) == (7, "")
        failing = True
        later = await sampler.answered([topic])
        assert (later.value(topic, int), later.error(topic)) == (7, "it is away")
        sampler.stop()
        await running
        assert await sampler.newer(sampler.snapshot.number, SECONDS) is None

    asyncio.run(sample())
