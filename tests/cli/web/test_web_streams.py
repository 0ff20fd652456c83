"""Open pages and large stores: pages follow the store, have a limited size and memory, and keep nobody waiting."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any

import pytest

import cq
from cq.admin.queue_status import QueueStatus
from cq.cli.web.access import WebAccess
from cq.cli.web.app import Dashboard, page_of
from cq.cli.web.command import WebOptions
from cq.cli.web.queue_pages import ROWS
from cq.cli.web.reads import MAX_ASIDE, read_aside_of
from cq.cli.web.rendering import Renderer
from cq.cli.web.sampler import MAX_TOPICS, OVERVIEW, Reader, Reading, Sampler, StoreSnapshot, Topic
from cq.cli.web.text import MAX_ROWS
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.observers.monitoring.link_status import LinkStatus
from cq.observers.monitoring.store_overview import Activity, Overview, WorkerStatus, overview
from cq.queue.set_aside import set_aside
from tests.cli.web.dashboards import SECONDS, CountedReads, Outline, events, serving, stream

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


QUEUES = 3_000
MAX_BYTES = 300_000


def large() -> Overview:
    """A store with many queues, each with a failing link and keys set aside, and workers that leave them alone."""
    names = [f"queue-{number:04}" for number in range(QUEUES)]
    queues = [
        QueueStatus(name, {"buckets": 1}, False, "", 1, 5, 100, True, 60.0, {}, "", None, {}, 7)
        for name in names
    ]
    workers = [
        WorkerStatus(
            f"w{number}", "host", 1, "1", ["combine"], names, True, 1.0, 5, 1, 1, 1.0, names, names, ""
        )
        for number in range(5)
    ]
    links = [
        LinkStatus(name, "report", "table", 1, 1, 5, 100, True, 60.0, 0, "failing", "an error " * 10, 5.0, 3)
        for name in names
    ]
    return Overview(queues, {name: Activity() for name in names}, links, workers)


@pytest.mark.parametrize("path", ["/", "/page/2", "/page/30", "/links", "/aside", "/workers", "/feeds"])
def test_a_page_of_thousands_of_queues_has_a_limited_size(db: Any, path: str) -> None:
    dashboard = Dashboard(db, WebAccess("token", 0), WebOptions(operate=True))
    page, snapshot = page_of(path), StoreSnapshot(1, {OVERVIEW: Reading(large())})
    assert page is not None

    html = dashboard.draw(page, snapshot, None, notice=None, form_token="")

    assert len(html) < MAX_BYTES
    assert "more: <code>cq status</code> lists all." in html
    if path == "/aside":
        assert len(re.findall('<a href="/aside/queue-[0-9]+">queue', html)) == MAX_ROWS


@pytest.mark.parametrize("path", ["/workers", "/links", "/aside", "/feeds", "/cells", "/checks"])
def test_a_page_before_the_first_answer_says_nothing_about_the_store(db: Any, path: str) -> None:
    dashboard, page = Dashboard(db, WebAccess("token", 0), WebOptions(operate=True)), page_of(path)
    assert page is not None
    waiting = "The checks run now" if path == "/checks" else "The first answer of the store"
    for number, (error, text) in enumerate((("", waiting), ("it is away", "it is away"))):
        snapshot = StoreSnapshot(number, {page.topics[-1]: Reading(error=error)})

        html = dashboard.draw(page, snapshot, None, notice=None, form_token="")

        assert text in html
        assert not re.search("No (worker|queue|feed)|Nothing is set|is no directory", html)


def test_all_queues_are_on_the_pages_of_queues(db: Any) -> None:
    names = [f"queue-{number:03}" for number in range(2 * ROWS + 1)]
    for name in names:
        cq.configure(db, name, buckets=1)
    with serving(db) as found:
        seen, path = list[str](), "/"
        while path:
            outline = Outline(found.page(path))
            links = [each["href"] or "" for each in outline.all("a")]
            seen += [each.removeprefix("/queues/") for each in links if each.startswith("/queues/")]
            path = next((each for each in links if each.startswith("/page/") and each > path), "")
        assert seen == names
        assert '<a href="/">The rows before</a>' in found.page("/page/2")
        assert "There are fewer queues than this." in found.page("/page/4")
        for missing in ("/page/1", "/page/0", "/page/01", "/page/x", "/page/", "/page/9999999"):
            found.page(missing, status=404)


def test_a_page_that_is_made_keeps_no_other_request_waiting(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, original = threading.Event(), threading.Event(), Renderer.page

    def page(*args: Any, **more: Any) -> str:
        begun.set()
        assert goes_on.wait(SECONDS)
        return original(*args, **more)

    monkeypatch.setattr(Renderer, "page", page)
    with serving(db) as found:
        loading = threading.Thread(target=found.page, args=("/",))
        loading.start()
        try:
            assert begun.wait(SECONDS)
            found.page("/static/style.css")
        finally:
            goes_on.set()
            loading.join(SECONDS)


def set_one_aside(db: Any, encoded_key: bytes) -> None:
    cq.transact(
        db,
        lambda tr: set_aside(tr, QueueKeys("photos"), encoded_key, KeyFailure("an error"), [b"x" * 80_000]),
    )


def test_updates_set_aside_are_counted_a_few_at_a_time(db: Any) -> None:
    cq.configure(db, "photos", value=bytes, combiner="last", buckets=1)
    for number in range(MAX_ASIDE + 1):
        set_one_aside(db, b"a%03d" % number)
    tracemalloc.start()
    found = read_aside_of(db, "photos")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (len(found.keys), found.is_cut) == (MAX_ASIDE, True)
    assert {each.updates for each in found.keys} == {1}
    assert peak < 4_000_000
