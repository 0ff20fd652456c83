"""Transactions of tasks: reads, writes, conflicts, retries, ranges and watches, on both stores and two event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import cq
import cq.aio
from cq.aio import AsyncDatabase, AsyncTransaction
from cq.store.api import error_code
from cq.testing import drain

Run = Callable[[Any], Any]
ONE = (1).to_bytes(8, "little")


async def increment(tr: AsyncTransaction, key: bytes) -> int:
    """Add one to a number, after letting other tasks run between the read and the write."""
    number = int(await tr.get(key) or b"0") + 1
    await asyncio.sleep(0)
    tr.set(key, b"%d" % number)
    return number


def test_tasks_that_conflict_in_one_thread_are_retried(adb: AsyncDatabase, run: Run) -> None:
    tries: list[int] = []

    async def count(tr: AsyncTransaction) -> int:
        tries.append(1)
        return await increment(tr, b"cq/t/number")

    async def main() -> list[int]:
        return await asyncio.gather(*(adb.transact(count) for _ in range(12)))

    assert sorted(run(main())) == list(range(1, 13))
    assert len(tries) > 12


def test_an_error_of_the_function_is_raised_and_nothing_is_committed(adb: AsyncDatabase, run: Run) -> None:
    async def fail(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/key", b"value")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(adb.transact(fail))
    assert run(adb.transact(lambda tr: tr.get(b"cq/t/key"))) is None


def test_reads_begin_when_they_are_called(adb: AsyncDatabase, run: Run) -> None:
    async def read(tr: AsyncTransaction) -> tuple[Any, ...]:
        before = tr.get(b"cq/t/key")
        tr.set(b"cq/t/key", b"new")
        after = tr.get(b"cq/t/key")
        return await after, await before, await before, before.is_ready()

    assert run(adb.transact(read)) == (b"new", None, None, True)


def test_a_transaction_has_the_methods_of_the_store(adb: AsyncDatabase, run: Run) -> None:
    async def write(tr: AsyncTransaction) -> Any:
        tr[b"cq/t/k/1"] = b"1"
        tr.set(b"cq/t/k/2", b"2")
        tr.add(b"cq/t/k/3", ONE)
        tr.byte_max(b"cq/t/k/4", b"4")
        tr.set(b"cq/t/k/5", b"5")
        del tr[b"cq/t/k/5"]
        tr.set_versionstamped_value(b"cq/t/k/6", bytes(14))
        tr.add_read_conflict_key(b"cq/t/other")
        assert await tr.get_approximate_size() > 0
        return tr.get_versionstamp(), tr

    async def read(tr: AsyncTransaction) -> Any:
        assert await tr.get_read_version() > 0
        assert await tr.get_estimated_range_size_bytes(b"cq/t/k/", b"cq/t/k0") >= 0
        assert (await tr.get_range_split_points(b"cq/t/k/", b"cq/t/k0", 1000))[0] == b"cq/t/k/"
        rows = await tr.snapshot.get_range(b"cq/t/k/", b"cq/t/k0", limit=3, reverse=True).to_list()
        every = [row.key async for row in tr.get_range_startswith(b"cq/t/k/")]
        return [row.key for row in rows], every, await tr.get(b"cq/t/k/6")

    async def main() -> None:
        stamp, tr = await adb.transact(write)
        last, every, stamped = await adb.transact(read)
        assert tr.get_committed_version() == int.from_bytes((await stamp)[:8], "big")
        assert last == [b"cq/t/k/6", b"cq/t/k/4", b"cq/t/k/3"]
        assert every == [b"cq/t/k/1", b"cq/t/k/2", b"cq/t/k/3", b"cq/t/k/4", b"cq/t/k/6"]
        assert stamped == await stamp

    run(main())


def test_a_method_that_could_block_the_event_loop_does_not_exist(adb: AsyncDatabase) -> None:
    with pytest.raises(AttributeError, match=r"use `tr\.sync`"):
        adb.create_transaction().get_tag_throttled_duration()


def test_a_range_is_read_piece_by_piece(adb: AsyncDatabase, run: Run) -> None:
    async def write(tr: AsyncTransaction) -> None:
        for number in range(1000):
            tr.set(b"cq/t/r/%04d" % number, bytes(300))

    async def read(tr: AsyncTransaction) -> list[bytes]:
        return [row.key async for row in tr.get_range(b"cq/t/r/", b"cq/t/r0")]

    async def main() -> None:
        await adb.transact(write)
        assert await adb.transact(read) == [b"cq/t/r/%04d" % number for number in range(1000)]

    run(main())


def test_a_transaction_can_be_committed_by_hand(adb: AsyncDatabase, run: Run) -> None:
    async def main() -> tuple[int | None, bytes | None]:
        tr, other = adb.create_transaction(), adb.create_transaction()
        await increment(tr, b"cq/t/number")
        await increment(other, b"cq/t/number")
        await tr.commit()
        with pytest.raises(Exception, match="1020") as refused:
            await other.commit()
        code = error_code(refused.value)
        await other.on_error(code)
        tr.reset()
        return code, await tr.get(b"cq/t/number")

    assert run(main()) == (1020, b"1")


def test_a_watch_fires_after_a_commit(adb: AsyncDatabase, run: Run) -> None:
    async def watch(tr: AsyncTransaction) -> cq.aio.Call[None]:
        return tr.watch(b"cq/t/key")

    async def change(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/key", b"value")

    async def main() -> None:
        fired = await adb.transact(watch)
        assert not fired.is_ready()
        await adb.transact(change)
        await fired
        cancelled = await adb.transact(watch)
        cancelled.cancel()
        with pytest.raises(Exception, match=r"1101"):
            await cancelled

    run(main())


def test_a_request_is_awaited_by_one_task_at_a_time(adb: AsyncDatabase, run: Run) -> None:
    async def watch(tr: AsyncTransaction) -> cq.aio.Call[None]:
        return tr.watch(b"cq/t/key")

    async def main() -> None:
        fired = await adb.transact(watch)
        first = asyncio.ensure_future(fired)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await fired
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()

    run(main())


def test_a_read_keeps_its_transaction(adb: AsyncDatabase, run: Run) -> None:
    """The futures of a transaction that is collected would fail with 1025."""

    async def main() -> bytes | None:
        tr = adb.create_transaction()
        tr.set(b"cq/t/key", b"value")
        value = tr.get(b"cq/t/key")
        row = tr.get_range(b"cq/t/", b"cq/t0")
        del tr
        gc.collect()
        assert [each.value async for each in row] == [b"value"]
        return await value

    assert run(main()) == b"value"


def test_a_thousand_transactions_in_flight_need_no_thousand_threads(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], run: Run
) -> None:
    async def main() -> int:
        in_flight, go = 0, asyncio.Event()

        async def add(tr: AsyncTransaction) -> None:
            nonlocal in_flight
            await words.add(tr, {"a": 1})
            in_flight += 1
            if in_flight == 1000:
                go.set()
            await go.wait()

        before = threading.active_count()
        tasks = asyncio.gather(*(adb.transact(add) for _ in range(1000)))
        await go.wait()
        most = threading.active_count() - before
        await tasks
        return max(most, threading.active_count() - before)

    assert run(main()) <= 3
    drain(adb.sync, words.name)
    assert run(adb.transact(lambda tr: words.get(tr, "a"))) == 1000


def test_a_thousand_reading_transactions_take_turns(adb: AsyncDatabase, run: Run) -> None:
    """An embedded store has at most 250 open snapshots: the other tasks are suspended, and the loop goes on."""

    async def read(tr: AsyncTransaction) -> bytes | None:
        await tr.get(b"cq/t/key")
        await asyncio.sleep(0.001)
        return await tr.get(b"cq/t/key")

    async def main() -> list[bytes | None]:
        return await asyncio.gather(*(adb.transact(read) for _ in range(1000)))

    assert run(main()) == [None] * 1000


def test_a_loop_can_use_the_database_of_another(adb: AsyncDatabase, run: Run) -> None:
    for number in range(1, 4):
        assert run(adb.transact(lambda tr: increment(tr, b"cq/t/number"))) == number
