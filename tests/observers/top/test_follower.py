"""A follower of a cloud tells all who wait of the newest one, with one watch, whatever becomes of the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cq
import cq.testing
from cq import admin
from cq.admin.configure import remove_observer
from cq.observers.top.cloud import Cloud
from cq.observers.top.follower import CloudFollower
from cq.observers.top.index import top
from tests.kit.faults import TIMED_OUT, WrappedDatabase, WrappedTransaction
from tests.kit.queues import is_ended
from tests.observers.top.tops import ToldTop, publish, publisher

SECONDS = 60.0


class Store(WrappedDatabase):
    """A database that counts watches, and fails while it is told to."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.watches: list[Any] = []
        self.failure: Exception | None = None

    def create_transaction(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().create_transaction()

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        result = super().call(tr, what, *args, **kwargs)
        if what == "watch":
            self.watches.append(result)
        return result


def tell(told: ToldTop, updates: dict[str, Any]) -> None:
    """Change the values, and publish what comes of it."""
    told.tell(updates)
    publish(publisher(told))


def until(follower: CloudFollower, is_so: Callable[[], bool]) -> None:
    """Wait, in the pauses that the follower makes itself, until something is so."""
    while not is_so():
        follower.wait(follower.latest.version if follower.latest else 0, 0.01)


def version_of(cloud: Cloud | None) -> int:
    assert cloud is not None
    return cloud.version


def test_all_who_wait_are_told_by_one_watch(db: Any) -> None:
    """Threads and tasks, of the first cloud and of those after it."""
    told, store = ToldTop(db, every=0), Store(db)

    async def pages(version: int) -> list[Cloud | None]:
        return await asyncio.gather(*(follower.wait_async(version, SECONDS) for _ in range(50)))

    with CloudFollower(store, told.name) as follower, ThreadPoolExecutor(5) as pool:
        for round_ in range(3):
            waiting = [pool.submit(follower.wait, round_, SECONDS) for _ in range(4)]
            tasks = pool.submit(asyncio.run, pages(round_))
            until(follower, lambda: len(follower._listeners) == 54)
            tell(told, {"a": round_ + 1})
            clouds = [each.result() for each in waiting] + tasks.result()
            assert {version_of(cloud) for cloud in clouds} == {round_ + 1}
            assert sum(not watch.is_ready() for watch in store.watches) <= 1
        assert follower.wait(2) == follower.wait(0) == follower.latest

    assert not follower._listeners
    assert all(map(is_ended, store.watches))


def test_nobody_goes_back_to_a_version_that_this_process_knows_only(db: Any) -> None:
    """Who comes from a server that is ahead waits for what the store has; a top that was begun anew is newer."""
    told, store = ToldTop(db, every=0), Store(db)
    for number in range(1, 4):
        tell(told, {"a": number})
    with CloudFollower(store, told.name) as follower:
        assert version_of(follower.wait(0, SECONDS)) == 3
        follower.latest = Cloud(told.name, None, 2, follower.latest.created, ())  # type: ignore[union-attr]
        assert follower.wait(3, 0.05) is None
        until(follower, lambda: version_of(follower.latest) == 3)

        assert version_of(follower.wait(57, SECONDS)) == 3, "what the store has is the newest"


def test_the_cloud_of_a_queue_that_was_made_again_is_another_one(db: Any, name: str) -> None:
    """Its versions begin again, with those that the follower knows."""

    def make(key: str) -> None:
        made = cq.configure(db, name, key=str, value=int, observers=[top(every=0)])
        made.add_now(db, {key: 1})
        cq.testing.drain(db, name)

    make("old")
    with CloudFollower(db, name) as follower:
        assert version_of(follower.wait(0, SECONDS)) == 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(follower.wait, 1, SECONDS)
            until(follower, lambda: bool(follower._listeners))
            admin.delete(db, name)
            make("new")
            found = waiting.result(SECONDS)
        assert found is not None
        assert (found.version, found.entries[0].key) == (1, "new")


def test_it_goes_on_when_the_store_does(db: Any, caplog: pytest.LogCaptureFixture) -> None:
    told, store = ToldTop(db, every=0), Store(db)
    tell(told, {"a": 1})
    store.failure = store.error(TIMED_OUT)
    with CloudFollower(store, told.name) as follower:
        until(follower, lambda: bool(follower.problem))
        store.failure = None
        assert version_of(follower.wait(0, SECONDS)) == 1
        until(follower, lambda: bool(store.watches) and not follower.problem)

        store.failure = OSError("the disk is gone")
        store.watches[-1].cancel()  # as a connection that is lost does
        until(follower, lambda: bool(follower.problem))
        assert version_of(follower.latest) == 1
        tell(told, {"a": 2})
        store.failure = None
        assert version_of(follower.wait(1, SECONDS)) == 2
        until(follower, lambda: not follower.problem)

    assert len([each for each in caplog.records if "cannot be read" in each.message]) == 2
    assert "OSError: the disk is gone" in caplog.text


def test_a_top_that_is_taken_out_and_put_in_again_is_followed(db: Any) -> None:
    told = ToldTop(db, every=0)
    tell(told, {"a": 1})
    tell(told, {"a": 2})
    with CloudFollower(db, told.name) as follower:
        assert version_of(follower.wait(0, SECONDS)) == 2
        remove_observer(db, told.name, "top")
        cq.testing.drain(db, told.name)
        until(follower, lambda: "keeps no top" in follower.problem)
        admin.put_observer(db, told.name, top(every=0))
        cq.testing.drain(db, told.name)

        assert version_of(follower.wait(2, SECONDS)) == 1


def test_closing_lets_everybody_go(db: Any) -> None:
    told = ToldTop(db)
    follower = CloudFollower(db, told.name)
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(follower.wait),
            pool.submit(lambda: asyncio.run(follower.wait_async())),
        ]
        until(follower, lambda: len(follower._listeners) == 2)
        follower.close()
        assert [each.result(SECONDS) for each in waiting] == [None, None]
    follower.close()

    assert follower.is_closed
    assert follower.wait() is None
    for thread in threading.enumerate():
        if thread.name == f"cq-cloud-{told.name}":
            thread.join(SECONDS)
            assert not thread.is_alive()


def test_a_task_that_is_cancelled_leaves_nothing_behind(db: Any) -> None:
    told = ToldTop(db)

    async def cancelled() -> None:
        waiting = asyncio.create_task(follower.wait_async())
        await asyncio.sleep(0)
        assert len(follower._listeners) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with CloudFollower(db, told.name) as follower:
        asyncio.run(cancelled())
        assert not follower._listeners
