"""Changelogs in real servers: in order, without loss or duplicates, for many followers, slow ones and old positions."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import islice
from typing import Any

import httpx
import pytest

import cq
from cq.cli.web import changelog
from cq.cli.web.changelog import Entry, EntryPage, entries_of
from cq.feeds.feed import Feed
from cq.observers.feeds.changelog import ChangelogPage
from cq.observers.feeds.observer import feed_spec
from cq.observers.feeds.trim import FeedTrimTask
from cq.testing import drain
from tests.cli.conftest import Cli
from tests.cli.web.conftest import BOTH_STORES
from tests.cli.web.dashboards import SECONDS, TOKEN, CountedReads, events, serving, stream_of
from tests.cli.web.followers import TOKEN_HEADER, ChangelogEvent, following

STREAMS = 100
END = "the end"


@pytest.fixture
def feed(db: Any) -> Feed[Any]:
    """The feed of the queue `words`."""
    made = Feed[Any]("changes")
    made.configure(db)
    cq.configure(db, "words", key=str, value=int, observers=[feed_spec("changes")])
    return made


def append(db: Any, feed: Feed[Any], *changes: list[Any]) -> None:
    """Write changes as one pass does."""
    cq.transact(db, lambda tr: feed.append_many(tr, "words", changes))


def add(db: Any, **updates: int) -> None:
    """Add, and combine."""
    cq.CombineQueue[str, int]("words").add_now(db, updates)
    drain(db, "words")


def taken(found: Iterator[ChangelogEvent], number: int) -> list[ChangelogEvent]:
    """The next events that are no comments."""
    return list(islice((event for event in found if event.name != ":"), number))


@BOTH_STORES
def test_a_follower_receives_each_change_in_the_order_of_its_key(db: Any, feed: Feed[Any]) -> None:
    add(db, a=1, b=1)
    with serving(db) as found, following(found.server.url, "words") as stream:
        first = taken(stream, 2)
        add(db, a=2)
        add(db, a=-3)
        later = taken(stream, 2)

        assert sorted(event.change for event in first) == [("a", None, 1), ("b", None, 1)]
        assert [event.change for event in later] == [("a", 1, 3), ("a", 3, None)]
        with following(found.server.url, "words", after=later[0].position) as second:
            assert taken(second, 1) == later[1:]
        with following(found.server.url, "words", after="latest") as third:
            add(db, c=1)
            assert [event.change for event in taken(third, 1)] == [("c", None, 1)]


def test_keys_and_values_are_those_of_json_output_and_large_changes_have_only_the_key(db: Any) -> None:
    feed = Feed[Any]("changes")
    feed.configure(db)
    queue = cq.configure(
        db, "pages", key=(str, bytes), value=str, combiner="last", observers=[feed_spec("changes")]
    )
    text = "two\r\nlines \N{SNOWFLAKE} \u2028 <script>"
    for value in (text, text + "x" * 50_000, text + "y" * 50_000):
        queue.add_now(db, {("a", b"\xff"): value})
        drain(db, "pages")
    cq.transact(db, lambda tr: feed.append(tr, "pages", "not a change"))
    queue.add_now(db, {("b", b""): "last"})
    drain(db, "pages")

    with serving(db) as found, following(found.server.url, "pages") as stream:
        first, second, large, last = (event.data for event in taken(stream, 4))
    assert first == {"key": ["a", "/w=="], "old": None, "new": text}
    assert (second["old"], second["new"]) == (text, text + "x" * 50_000)
    assert large == {"key": ["a", "/w=="]}
    assert last == {"key": ["b", ""], "old": None, "new": "last"}


def test_a_hundred_followers_cost_the_store_as_much_as_one(db: Any, feed: Feed[Any]) -> None:
    counted, rounds = CountedReads(db), 4
    add(db, a=1)

    async def follow() -> None:
        with serving(counted) as found:
            async with AsyncExitStack() as stack:
                readers = [
                    await stack.enter_async_context(stream_of(found, "/changelog/words"))
                    for _ in range(STREAMS)
                ]
                received = await asyncio.gather(*(events(reader, 2) for reader in readers))
                before = counted.transactions
                for _ in range(rounds):
                    await asyncio.to_thread(add, db, a=1)
                later = await asyncio.gather(*(events(reader, rounds) for reader in readers))
                assert all(each == later[0] for each in later)
                assert len({each[1] for each in received}) == 1
                # One read for each commit, and some of a machine that is so slow that streams become silent.
                assert counted.transactions - before < STREAMS / 2

    asyncio.run(follow())


def resumed_after_each_change(url: str, db: Any, feed: Feed[Any]) -> list[Any]:
    """The keys that a client receives that disconnects after each change, until the end."""
    append(db, feed, *([number, None, 1] for number in range(10)))
    found, position = list[Any](), ""
    while END not in found:
        with following(url, "words", position) as stream:
            (event,) = taken(stream, 1)
        if not found:
            append(db, feed, [END, None, 1])
        found.append(event.data["key"])
        position = event.position
    return found


@BOTH_STORES
def test_a_client_that_disconnects_after_each_change_loses_none(db: Any, feed: Feed[Any]) -> None:
    with serving(db) as found:
        assert resumed_after_each_change(found.server.url, db, feed) == [*range(10), END]


def test_a_position_that_runs_ahead_of_the_delivery_is_caught(
    db: Any, feed: Feed[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: each event has the position of its page, so a client resumes after changes it never got."""

    def ahead(page: ChangelogPage) -> EntryPage:
        made = entries_of(page)
        last = page.messages[-1].id.hex() if page.messages else ""
        entries = [
            Entry(each.position, each.text.replace(each.position.hex(), last)) for each in made.entries
        ]
        return made._replace(entries=entries)

    monkeypatch.setattr(changelog, "entries_of", ahead)
    with serving(db) as found:
        assert resumed_after_each_change(found.server.url, db, feed) != [*range(10), END]


def test_a_store_that_fails_for_a_while_loses_no_change(db: Any, feed: Feed[Any]) -> None:
    failing = CountedReads(db)
    with serving(failing) as found, following(found.server.url, "words") as stream:
        append(db, feed, ["a", None, 1])
        assert taken(stream, 1)[0].change == ("a", None, 1)
        failing.is_down, before = True, failing.transactions
        append(db, feed, ["a", 1, 2])
        while failing.transactions == before:  # the watch has fired, and the read fails
            threading.Event().wait(0.01)
        assert httpx.get(f"{found.server.url}/changelog/words", headers=TOKEN_HEADER).status_code == 503
        failing.is_down = False
        append(db, feed, ["a", 2, 3])

        assert [event.change for event in taken(stream, 2)] == [("a", 1, 2), ("a", 2, 3)]


@BOTH_STORES
def test_a_position_older_than_the_retention_gets_a_reset_and_the_kept_changes(
    db: Any, feed: Feed[Any]
) -> None:
    append(db, feed, ["a", None, 1], ["a", 1, 2])
    with serving(db) as found:
        with following(found.server.url, "words") as stream:
            old, last = taken(stream, 2)
        trim = FeedTrimTask(db, feed.configure(db, keep=1e-6))
        while cq.transact(db, lambda tr: feed.read(tr, "words")).messages:  # until the store's clock moves
            trim.run()
        feed.configure(db, keep=0)
        append(db, feed, ["a", 2, 3])

        with following(found.server.url, "words", last.position) as stream:
            (kept,) = taken(stream, 1)
            assert kept.change == ("a", 2, 3)
        with following(found.server.url, "words", old.position) as stream:
            reset, after = taken(stream, 2)
        assert after == kept
        assert (reset.name, reset.position, reset.data["given"]) == ("reset", last.position, old.position)
        assert reset.data["position"] == last.position
        assert "read all values" in reset.data["reason"]
        with following(found.server.url, "words", reset.position) as stream:
            assert taken(stream, 1) == [kept]


@BOTH_STORES
def test_a_feed_that_is_made_again_resets_open_and_new_streams(db: Any, feed: Feed[Any]) -> None:
    append(db, feed, ["a", None, 1])
    with serving(db) as found:
        with following(found.server.url, "words") as stream:
            (first,) = taken(stream, 1)
            feed.delete(db)
            (problem,) = taken(stream, 2)  # then the server ends the stream
            assert (problem.name, problem.position) == ("problem", "")
            assert "cq feed configure changes" in problem.data["reason"]
        refused = httpx.get(f"{found.server.url}/changelog/words", headers=TOKEN_HEADER)
        assert (refused.status_code, "cq feed configure changes" in refused.text) == (409, True)
        feed.configure(db)
        append(db, feed, ["a", 1, 2])
        with following(found.server.url, "words", first.position) as stream:
            reset, later = taken(stream, 2)
            assert (reset.name, later.change) == ("reset", ("a", 1, 2))


@BOTH_STORES
def test_slow_clients_are_bounded_and_receive_everything(
    db: Any, feed: Feed[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "MAX_PAGES", 3)
    count, text = 160, "x" * 80_000  # more than the buffers of sockets
    with serving(db) as found, ExitStack() as stack:
        url = httpx.URL(found.server.url)
        slow = stack.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(SECONDS)
        slow.connect((url.host, url.port))
        slow.sendall(
            f"GET /changelog/words HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        lines = slow.makefile("rb")
        while next(lines) != b"event: start\n":
            pass
        fast = stack.enter_context(following(found.server.url, "words"))
        for begin in range(0, count, 10):
            append(db, feed, *([number, None, text] for number in range(begin, begin + 10)))
        assert [event.data["key"] for event in taken(fast, count)] == [*range(count)]

        (queue,) = found.server.dashboard.changelogs._followed.values()
        assert sum(page.done() for page in queue._pages.values()) <= 3 + 1, "and one that has just ended"
        keys = (line.split(b",")[0] for line in lines if line.startswith(b'data: {"key"'))
        assert list(islice(keys, count)) == [b'data: {"key": %d' % number for number in range(count)]


def test_silent_streams_get_comments(db: Any, feed: Feed[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "SILENCE_SECONDS", 0.01)
    with serving(db) as found, following(found.server.url, "words") as stream:
        assert [event.name for event in islice(stream, 2)] == [":", ":"]


def test_a_changelog_needs_the_token_and_refuses_other_sites(db: Any, feed: Feed[Any]) -> None:
    def status(path: str = "/changelog/words?after=none", **headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with httpx.stream("GET", f"{found.server.url}{path}", headers=names, timeout=SECONDS) as answer:
            return answer.status_code

    allowed = 400  # the position is invalid, so the answer ends
    with serving(db) as found:
        assert status() == 401
        assert status(authorization="Bearer wrong") == 401
        assert status(authorization=f"Basic {TOKEN}") == 401
        assert status(f"/changelog/words?token={TOKEN}") == 401
        assert status(**TOKEN_HEADER) == allowed
        assert status(cookie=found.cookie) == allowed
        assert status(cookie=found.cookie, sec_fetch_site="same-origin") == allowed
        for foreign in (
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"origin": "http://localhost:3000"},
        ):
            assert status(cookie=found.cookie, **foreign) == 403
        assert status(host="evil.example", **TOKEN_HEADER) == 421
        # The header opens no page, so it cannot act either.
        for path in ("/", "/queues/words", "/events?path=/"):
            assert status(path, **TOKEN_HEADER) == 401


def test_requests_that_cannot_be_served_say_why(
    db: Any, feed: Feed[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cq.configure(db, "silent", key=str, value=int)
    with serving(db) as found:
        for path, status, text in (
            ("words?after=12", 400, "36 hexadecimal digits"),
            ("none", 404, "'none' is not configured"),
            ("a%2Fb", 404, "no such"),
            ("silent", 404, "cq configure silent --feed NAME"),
        ):
            answer = found.client.get(f"/changelog/{path}")
            assert answer.status_code == status, answer.text
            assert text in answer.text
        assert found.client.post("/changelog/words").status_code in (403, 405)
        monkeypatch.setattr(changelog, "MAX_STREAMS", 1)
        with following(found.server.url, "words"):
            assert found.client.get("/changelog/words").status_code == 503
        monkeypatch.setattr(changelog, "MAX_QUEUES", 0)
        assert found.client.get("/changelog/words").status_code == 503


def test_followers_lose_nothing_while_workers_are_killed_and_servers_change(
    db: Any, feed: Feed[Any], cli: Cli
) -> None:
    environment = {**cli.environment, "CQ_STORE": f"embedded:{cli.folder}/web.db"}
    rounds, keys = 60, [f"k{number}" for number in range(5)]
    queue = cq.CombineQueue[str, int]("words")

    def start() -> Any:
        with (cli.folder / "workers.log").open("ab") as log:
            return cli.start("worker", "words", stdout=log, stderr=log, env=environment)

    def add_all() -> None:
        for _ in range(rounds):
            cq.transact(db, lambda tr: queue.add(tr, dict.fromkeys(keys, 1)))

    chains, position = defaultdict[str, list[tuple[Any, Any]]](list), ""
    worker = start()
    queue.add_now(db, dict.fromkeys(keys, 1))
    adder = threading.Thread(target=add_all)
    for life in range(3):
        with serving(db) as found, following(found.server.url, "words", position) as stream:
            while set(chains) < set(keys) or any(
                chain[-1][1] <= rounds * life / 3 for chain in chains.values()
            ):
                (event,) = taken(stream, 1)
                assert event.name == "message"
                key, old, new = event.change
                chains[key].append((old, new))
                position = event.position
            if life == 0:
                adder.start()  # so the worker is killed while it has work
            if life < 2:
                worker.kill()
                worker = start()
    with serving(db) as found, following(found.server.url, "words", position) as stream:
        while any(chain[-1][1] < rounds + 1 for chain in chains.values()):
            (event,) = taken(stream, 1)
            chains[event.data["key"]].append(event.change[1:])
    adder.join(SECONDS)

    for chain in chains.values():
        assert chain[0][0] is None
        assert chain[-1][1] == rounds + 1
        assert [old for old, _ in chain[1:]] == [new for _, new in chain[:-1]]
