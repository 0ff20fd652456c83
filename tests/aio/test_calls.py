"""Calls of synchronous code in tasks: waits suspend the task, and block threads as before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import cq
import cq.aio
from cq import runtime
from cq.aio import AsyncDatabase, AsyncTransaction
from cq.store.embedded import Database
from cq.testing import drain
from tests.kit.processes import run_code

Run = Callable[[Any], Any]


def test_awaiting_in_a_synchronous_function_needs_a_task() -> None:
    with pytest.raises(RuntimeError, match=r"cq\.aio\.run"):
        cq.aio.result_of(asyncio.sleep(0))


async def test_a_call_has_the_context_of_its_task_and_raises_its_errors() -> None:
    user: ContextVar[str] = ContextVar("user")

    def call() -> str:
        cq.aio.result_of(asyncio.sleep(0))
        if user.get() == "none":
            raise ValueError("no user")
        return user.get()

    async def main(name: str) -> str:
        user.set(name)
        return await cq.aio.run(call)

    assert [*await asyncio.gather(main("anne"), main("bert"))] == ["anne", "bert"]
    with pytest.raises(ValueError, match="no user"):
        await main("none")


@pytest.mark.parametrize("make", [runtime.event, runtime.latch])
async def test_an_event_suspends_tasks_and_blocks_threads(make: Callable[[], Any]) -> None:
    event, passed = make(), list[bool]()
    assert not await cq.aio.run(event.wait, 0.001)
    threads = [threading.Thread(target=lambda: passed.append(event.wait())) for _ in range(3)]
    tasks = [asyncio.create_task(cq.aio.run(event.wait)) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(0)
    threading.Thread(target=event.set).start()
    assert await asyncio.gather(*tasks) == [True] * 3
    assert await cq.aio.run(event.wait, 60)
    for thread in threads:
        thread.join()
    assert passed == [True] * 3


async def test_a_sleep_suspends_only_its_task() -> None:
    done: list[str] = []

    def sleep() -> None:
        runtime.sleep(0.02)
        done.append("sleeper")

    async def go_on() -> None:
        done.append("other task")

    await asyncio.gather(cq.aio.run(sleep), go_on())
    assert done == ["other task", "sleeper"]


async def test_the_loop_goes_on_while_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    async def write(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/key", b"value")

    with Database(tmp_path / "store.db") as db:
        with db._engine.committer._leader:  # another thread commits
            commits = [asyncio.create_task(AsyncDatabase(db).transact(write)) for _ in range(3)]
            for _ in range(100):
                await asyncio.sleep(0)
            assert not any(each.done() for each in commits)
        # Its next step would commit the requests that it found.
        await asyncio.to_thread(db._engine.committer.lead, None)
        await asyncio.gather(*commits)
        assert db.get(b"cq/t/key") == b"value"


async def test_a_thread_can_wait_and_commit_as_before(tmp_path: Path) -> None:
    """Also while tasks of an event loop use the same store."""
    with Database(tmp_path / "store.db", power_safe=False) as db:
        adb, stop = AsyncDatabase(db), threading.Event()

        def add(tr: Any) -> None:
            tr.add(b"cq/t/threads", (1).to_bytes(8, "little"))

        def adds() -> int:
            number = 0
            while not stop.is_set():
                db.transact(add)
                number += 1
            return number

        async def add_too(tr: AsyncTransaction) -> None:
            tr.add(b"cq/t/tasks", (1).to_bytes(8, "little"))

        threads = [asyncio.create_task(asyncio.to_thread(adds)) for _ in range(3)]
        for _ in range(20):
            await asyncio.gather(*(adb.transact(add_too) for _ in range(10)))
        while await adb.transact(lambda tr: tr.get(b"cq/t/threads")) is None:
            await asyncio.sleep(0.001)
        stop.set()
        added = sum(await asyncio.gather(*threads))
        assert int.from_bytes(db.get(b"cq/t/tasks") or b"", "little") == 200
        assert int.from_bytes(db.get(b"cq/t/threads") or b"", "little") == added > 0


async def test_the_loop_turns_while_a_store_is_opened_and_closed(tmp_path: Path) -> None:
    async with await cq.aio.open(f"embedded:{tmp_path / 'new.db'}") as db:
        assert await db.transact(lambda tr: tr.get(b"cq/t/key")) is None
    with pytest.raises(cq.errors.InvalidUrl):
        await cq.aio.open("nowhere")


def test_a_call_that_ends_the_loop_meets_no_error(adb: AsyncDatabase, run: Run) -> None:
    """The watch of the first loop fires when its loop is closed."""

    async def watch(tr: AsyncTransaction) -> cq.aio.Call[None]:
        return tr.watch(b"cq/t/key")

    async def change(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/key", b"%f" % time.time())

    kept = run(adb.transact(watch))
    run(adb.transact(change))
    deadline = time.monotonic() + 60
    while not kept.is_ready() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert kept.is_ready()


def test_a_task_commits_while_the_interpreter_shuts_down(tmp_path: Path) -> None:
    """Threads may run on after the main thread has ended, and then no executor takes any work."""
    code = """
import asyncio, sys, threading
import cq, cq.aio

db = cq.open(sys.argv[1])
words = cq.configure(db, "words")

async def count(word):
    await cq.aio.CombineQueue("words").add_now(cq.aio.AsyncDatabase(db), {word: 1})

def last():
    threading.main_thread().join()
    asyncio.run(count("late"))

asyncio.run(count("early"))
threading.Thread(target=last).start()
"""
    path = tmp_path / "end.db"
    assert run_code(code, f"embedded:{path}").err == ""
    with Database(path) as db:
        drain(db)
        assert dict(cq.CombineQueue("words").scan(db)) == {"early": 1, "late": 1}


def test_without_greenlet_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['greenlet'] = None; import cq; print('imported'); import cq.aio"
    found = run_code(code)

    assert found.out == "imported\n"
    assert "cq.aio needs the package greenlet: run `pip install" in found.err.splitlines()[-1]
