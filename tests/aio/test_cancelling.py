"""Tasks that are cancelled at any await: transactions commit as a whole or not at all, and nothing of them remains."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

import cq
import cq.aio
from cq import runtime
from cq.aio import AsyncDatabase, AsyncTransaction
from cq.aio.calls import Caller, OwnLatch
from cq.testing import drain
from tests.kit.queues import aside

pytestmark = pytest.mark.sampled(2)

Run = Callable[[Any], Any]
STEPS = 400


@types.coroutine
def cancelled_at(coroutine: Coroutine[Any, Any, Any], at: int) -> Generator[Any, Any, Any]:
    """Await a coroutine, and cancel the task while it is suspended for the `at`-th time."""
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    for number in range(1, STEPS):
        try:
            awaited = step(given)
        except StopIteration as end:
            return end.value
        if number == at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            given, step = (yield awaited), coroutine.send
        except BaseException as error:  # noqa: BLE001 - the coroutine gets it
            given, step = error, coroutine.throw
    raise AssertionError("it awaits without end")


async def is_cancelled(make: Callable[[], Coroutine[Any, Any, Any]], at: int) -> bool:
    """Run a coroutine in a task that is cancelled at its `at`-th await; False if it ended before."""
    task = asyncio.ensure_future(_awaited(cancelled_at(make(), at)))
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def watch(tr: AsyncTransaction) -> cq.aio.Call[None]:
    return tr.watch(b"cq/t/key")


def open_things() -> dict[str, int]:
    """Suspended greenlets, transactions and pending watches of this process."""
    gc.collect()
    counts = {"calls": 0, "transactions": 0, "watches": 0}
    for each in gc.get_objects():
        kind = type(each)
        if kind is Caller:
            counts["calls"] += not each.dead
        elif kind.__name__ == "Transaction" and kind.__module__.startswith(("fdb", "cq.store.embedded")):
            counts["transactions"] += 1
        elif kind.__name__ == "Watch":
            counts["watches"] += not each.is_ready()
    return counts


async def left_open(before: dict[str, int]) -> dict[str, int]:
    """What is open in addition to `before`, once all has ended that other threads end a moment later."""
    until = runtime.monotonic() + 60
    while True:
        more = {kind: number for kind, number in open_things().items() if number > before[kind]}
        if not more or runtime.monotonic() >= until:
            return more
        await asyncio.sleep(0.005)


def test_a_transaction_is_committed_as_a_whole_or_not_at_all(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], run: Run
) -> None:
    rng = random.Random(1)
    attempts: list[bytes] = []

    async def disturb(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/read", b"%d" % rng.randrange(1 << 40))

    async def move(tr: AsyncTransaction) -> None:
        """Write two keys and add to a queue; the first try conflicts."""
        await asyncio.gather(tr.get(b"cq/t/read"), tr.get(b"cq/t/other"))
        if rng.random() < 0.5:
            await adb.transact(disturb)
        async for _ in tr.snapshot.get_range(b"cq/", b"cq0", limit=rng.randrange(1, 3)):
            await asyncio.sleep(0)
        mark = b"%d" % len(attempts)
        attempts.append(mark)
        tr.set(b"cq/t/first/" + mark, b"")
        await words.add(tr, {"moved": 1})
        await words.get(tr, "another", pending=False)
        tr.set(b"cq/t/second/" + mark, b"")

    async def main() -> None:
        before = open_things()
        await adb.transact(disturb)
        at, cancelled = 0, True
        while cancelled:
            at += 1
            cancelled = await is_cancelled(lambda: adb.transact(move), at)
            assert await left_open(before) == {}, f"left after a cancellation at await {at}"
        assert at > 1  # an embedded store suspends only for delays, and for commits that are not made at once

    run(main())
    firsts = [row.key.removeprefix(b"cq/t/first/") for row in adb.sync.get_range_startswith(b"cq/t/first/")]
    seconds = [
        row.key.removeprefix(b"cq/t/second/") for row in adb.sync.get_range_startswith(b"cq/t/second/")
    ]
    drain(adb.sync, words.name)
    assert firsts == seconds
    assert run(adb.transact(lambda tr: words.get(tr, "moved"))) == len(firsts) > 0


async def test_a_cancelled_wait_cancels_its_watch(adb: AsyncDatabase, name: str) -> None:
    feed: cq.aio.Feed[str] = cq.aio.Feed(name)

    before = open_things()
    await feed.configure(adb)
    for at in range(1, 4):
        waiting = asyncio.ensure_future(_awaited(feed.wait(adb, "anne")))
        for _ in range(5 * at):
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        del waiting
        assert await left_open(before) == {}


async def test_a_timeout_ends_a_wait(adb: AsyncDatabase) -> None:
    before = open_things()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(await adb.transact(watch), 0.01)
    assert await left_open(before) == {}


async def test_a_dropped_request_is_cancelled(adb: AsyncDatabase) -> None:
    before = open_things()
    await adb.transact(watch)  # nobody awaits the watch
    assert await left_open(before) == {}


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_an_abandoned_call_ends_in_its_own_thread(is_elsewhere: bool) -> None:
    """A coroutine that is left behind by its event loop may be collected in any thread."""
    ended: list[threading.Thread] = []

    class Never:
        def __await__(self) -> Generator[None, None, None]:
            yield

    def call() -> None:
        try:
            cq.aio.result_of(Never())
        finally:
            ended.append(threading.current_thread())

    abandoned = [cq.aio.run(call)]
    abandoned[0].send(None)
    if is_elsewhere:
        thread = threading.Thread(target=abandoned.clear)
        thread.start()
        thread.join()
    else:
        abandoned.clear()
    Caller(list).start()  # a thread ends such calls when it switches to another one
    assert ended == [threading.current_thread()]


def test_a_closed_loop_is_not_woken() -> None:
    """The call that follows one that is collected after the end of their loop has no task to wake."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is collected, too

    async def begin() -> tuple[OwnLatch, asyncio.Task[Any]]:
        latch = OwnLatch()
        task = asyncio.ensure_future(_awaited(latch.future))
        await asyncio.sleep(0)
        return latch, task

    latch, _ = loop.run_until_complete(begin())
    loop.close()
    latch.set()
    assert latch.is_set()


async def test_a_cancelled_transaction_ends_the_reads_of_its_other_tasks(adb: AsyncDatabase) -> None:
    began = asyncio.Event()
    others: list[AsyncTransaction] = []

    async def wait(tr: AsyncTransaction) -> None:
        others.append(tr)
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(adb.transact(wait))
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    with pytest.raises(Exception, match="1025"):
        await others[0].get(b"cq/t/key")


def test_an_asyncio_run_that_ends_leaves_nothing(adb: AsyncDatabase, name: str) -> None:
    """The loop cancels the tasks that are left."""
    before = open_things()

    async def main() -> None:
        feed: cq.aio.Feed[str] = cq.aio.Feed(name)
        await feed.configure(adb)
        tasks = [asyncio.create_task(feed.wait(adb, "anne")) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)

    asyncio.run(main())
    assert asyncio.run(left_open(before)) == {}


async def test_an_observer_whose_task_is_cancelled_sets_nothing_aside(
    adb: AsyncDatabase, db: Any, name: str
) -> None:
    called, never, app = asyncio.Event(), asyncio.Event(), cq.App()

    def wait(tr: Any, changes: list[cq.Change]) -> None:
        called.set()
        cq.aio.result_of(never.wait())

    queue = app.queue(name, key=str, value=int, combiner="sum", observers=[cq.Observer("waiting", 1, wait)])
    app.configure(db, name)
    cq.transact(db, lambda tr: queue.add(tr, {"a": 1}))
    task = asyncio.ensure_future(adb.call(drain, name, app=app))
    await called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert aside(db, name) == []
