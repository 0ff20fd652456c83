"""Transactions of tasks: reads, writes, conflicts, retries, ranges and watches, on both stores and two event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cq
import cq.aio
from cq.aio import AsyncDatabase, AsyncReads, AsyncTransaction
from cq.intake import Documents
from cq.store import version_chain
from cq.store.api import error_code, is_local
from cq.testing import drain
from tests.kit.faults import WrappedDatabase

Run = Callable[[Any], Any]
ONE = (1).to_bytes(8, "little")


async def increment(tr: AsyncTransaction, key: bytes) -> int:
    """Add one to a number, after letting other tasks run between the read and the write."""
    number = int(await tr.get(key) or b"0") + 1
    await asyncio.sleep(0)
    tr.set(key, b"%d" % number)
    return number


async def watch(tr: AsyncTransaction) -> cq.aio.Call[None]:
    return tr.watch(b"cq/t/key")


async def test_tasks_that_conflict_in_one_thread_are_retried(adb: AsyncDatabase) -> None:
    tries: list[int] = []

    async def count(tr: AsyncTransaction) -> int:
        tries.append(1)
        return await increment(tr, b"cq/t/number")

    found = await asyncio.gather(*(adb.transact(count) for _ in range(12)))
    assert sorted(found) == list(range(1, 13))
    assert len(tries) > 12


async def test_an_error_of_the_function_is_raised_and_nothing_is_committed(adb: AsyncDatabase) -> None:
    async def fail(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/key", b"value")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await adb.transact(fail)
    assert await adb.transact(lambda tr: tr.get(b"cq/t/key")) is None


async def test_reads_begin_when_they_are_called(adb: AsyncDatabase) -> None:
    async def read(tr: AsyncTransaction) -> tuple[Any, ...]:
        before = tr.get(b"cq/t/key")
        tr.set(b"cq/t/key", b"new")
        after = tr.get(b"cq/t/key")
        return await after, await before, await before, before.is_ready()

    assert await adb.transact(read) == (b"new", None, None, True)


async def test_a_transaction_has_the_methods_of_the_store(adb: AsyncDatabase) -> None:
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

    stamp, tr = await adb.transact(write)
    last, every, stamped = await adb.transact(read)
    assert tr.get_committed_version() == int.from_bytes((await stamp)[:8], "big")
    assert last == [b"cq/t/k/6", b"cq/t/k/4", b"cq/t/k/3"]
    assert every == [b"cq/t/k/1", b"cq/t/k/2", b"cq/t/k/3", b"cq/t/k/4", b"cq/t/k/6"]
    assert stamped == await stamp


def test_a_method_that_could_block_the_event_loop_does_not_exist(adb: AsyncDatabase) -> None:
    with pytest.raises(AttributeError, match=r"`await tr\.call\(function"):
        adb.create_transaction().get_tag_throttled_duration()


async def test_calls_without_asyncio_say_how_to_call_them(adb: AsyncDatabase) -> None:
    wrong: Any = lambda given: given  # noqa: E731 - so that type checkers accept it
    words = cq.CombineQueue("words")
    with pytest.raises(AttributeError, match=r"await its reads, .* `await db\.call\(function"):
        cq.transact(wrong(adb), lambda tr: 5)
    mistakes: tuple[Callable[[], Any], ...] = (
        lambda: adb.transact(wrong(lambda tr: words.get(tr, "a"))),
        lambda: words.add_now(wrong(adb), {"a": 1}),
    )
    for mistake in mistakes:
        with pytest.raises(TypeError, match=r"use the class of this name in `cq\.aio`"):
            await mistake()
    with pytest.raises(TypeError, match=r"write `async def`, or .* `await db\.call\(function"):
        await adb.transact(wrong(lambda tr: 5))


async def test_a_range_is_read_piece_by_piece(adb: AsyncDatabase) -> None:
    async def write(tr: AsyncTransaction) -> None:
        for number in range(1000):
            tr.set(b"cq/t/r/%04d" % number, bytes(300))

    async def read(tr: AsyncTransaction) -> list[bytes]:
        return [row.key async for row in tr.get_range(b"cq/t/r/", b"cq/t/r0")]

    await adb.transact(write)
    assert await adb.transact(read) == [b"cq/t/r/%04d" % number for number in range(1000)]


async def test_a_transaction_can_be_committed_by_hand(adb: AsyncDatabase) -> None:
    tr, other = adb.create_transaction(), adb.create_transaction()
    await increment(tr, b"cq/t/number")
    await increment(other, b"cq/t/number")
    await tr.commit()
    with pytest.raises(Exception, match="1020") as refused:
        await other.commit()
    await other.on_error(error_code(refused.value))
    tr.reset()
    assert await tr.get(b"cq/t/number") == b"1"


async def test_a_watch_fires_after_a_commit(adb: AsyncDatabase) -> None:
    async def change(tr: AsyncTransaction) -> None:
        tr.set(b"cq/t/key", b"value")

    fired = await adb.transact(watch)
    assert not fired.is_ready()
    await adb.transact(change)
    await fired
    cancelled = await adb.transact(watch)
    cancelled.cancel()
    with pytest.raises(Exception, match=r"1101"):
        await cancelled


async def test_a_request_is_awaited_by_one_task_at_a_time(adb: AsyncDatabase) -> None:
    fired = await adb.transact(watch)
    first = asyncio.ensure_future(fired)
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task"):
        await fired
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()


async def test_a_read_keeps_its_transaction(adb: AsyncDatabase) -> None:
    """The futures of a transaction that is collected would fail with 1025."""
    tr = adb.create_transaction()
    tr.set(b"cq/t/key", b"value")
    value = tr.get(b"cq/t/key")
    row = tr.get_range(b"cq/t/", b"cq/t0")
    del tr
    gc.collect()
    assert [each.value async for each in row] == [b"value"]
    assert await value == b"value"


async def test_a_thousand_transactions_in_flight_need_no_thousand_threads(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int]
) -> None:
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
    assert max(most, threading.active_count() - before) <= 3
    await asyncio.to_thread(drain, adb.sync, words.name)
    assert await adb.transact(lambda tr: words.get(tr, "a")) == 1000


async def test_a_thousand_reading_transactions_take_turns(adb: AsyncDatabase) -> None:
    """An embedded store has at most 250 open snapshots: the other tasks are suspended, and the loop goes on."""

    async def read(tr: AsyncTransaction) -> bytes | None:
        await tr.get(b"cq/t/key")
        await asyncio.sleep(0.001)
        return await tr.get(b"cq/t/key")

    assert await asyncio.gather(*(adb.transact(read) for _ in range(1000))) == [None] * 1000


def test_a_loop_can_use_the_database_of_another(adb: AsyncDatabase, run: Run) -> None:
    for number in range(1, 4):
        assert run(adb.transact(lambda tr: increment(tr, b"cq/t/number"))) == number


# Write-only transactions


async def iterate(rows: cq.aio.AsyncRange[Any]) -> None:
    async for _ in rows:
        pass


READS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "get": lambda tr: tr.get(b"a"),
    "get_key": lambda tr: tr.get_key(None),
    "get_range": lambda tr: iterate(tr.get_range(b"a", b"b")),
    "get_range_startswith": lambda tr: tr.get_range_startswith(b"a").to_list(),
    "get_range_split_points": lambda tr: tr.get_range_split_points(b"a", b"b", 1),
    "get_estimated_range_size_bytes": lambda tr: tr.get_estimated_range_size_bytes(b"a", b"b"),
    "get_read_version": lambda tr: tr.get_read_version(),
    "called": lambda tr: tr.call(lambda tr: tr.get(b"a").value),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("of_snapshot", [False, True])
async def test_a_write_only_transaction_refuses_reads(
    adb: AsyncDatabase, name: str, read: Callable[[AsyncReads], Awaitable[Any]], of_snapshot: bool
) -> None:
    key = name.encode()  # the keys of a cluster are not the test's own

    async def write(tr: AsyncTransaction) -> None:
        tr.set(key, b"1")
        await read(tr.snapshot if of_snapshot else tr)

    with pytest.raises(TypeError, match="leave out `write_only`"):
        await adb.transact(write, write_only=True)
    assert await adb.transact(lambda tr: tr.get(key)) is None


async def test_a_queue_and_documents_cannot_be_read_in_it_either(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int]
) -> None:
    with pytest.raises(TypeError, match="leave out `write_only`"):
        await adb.transact(lambda tr: words.get(tr, "a"), write_only=True)
    documents = Documents(words.sync)
    with pytest.raises(TypeError, match="leave out `write_only`"):
        await adb.transact(lambda tr: tr.call(documents.set, b"a", {"x": 1}), write_only=True)


@pytest.mark.parametrize("begin", ["get", "watch"])
async def test_what_is_not_awaited_before_the_commit_is_refused_at_once(
    adb: AsyncDatabase, name: str, begin: str
) -> None:
    key = name.encode()

    async def write(tr: AsyncTransaction) -> Any:
        tr.set(key, b"1")
        return getattr(tr, begin)(key)

    with pytest.raises(TypeError, match="leave out `write_only`"):
        await adb.transact(write, write_only=True)
    assert await adb.transact(lambda tr: tr.get(key)) is None


async def test_a_write_only_transaction_writes_as_any_other(
    adb: AsyncDatabase, words: cq.aio.CombineQueue[str, int], name: str
) -> None:
    prefix = name.encode()

    async def write(tr: AsyncTransaction) -> Any:
        tr[prefix + b"a"] = b"1"
        tr.set(prefix + b"b", b"1")
        tr.add(prefix + b"c", b"\1\0")
        tr.byte_max(prefix + b"d", b"1")
        del tr[prefix + b"b"]
        tr.options.set_timeout(5_000)
        await words.add(tr, {"x": 1}, once="first")
        assert await tr.get_approximate_size() > 0
        return tr.get_versionstamp()

    async def read(tr: AsyncTransaction) -> Any:
        values = [await tr.get(prefix + key) for key in (b"a", b"b", b"c", b"d")]
        return values, await words.get(tr.snapshot, "x", pending=True)

    stamp = await adb.transact(write, write_only=True)
    assert len(await stamp) == 10
    assert await adb.transact(read) == ([b"1", None, b"\1\0", b"1"], 1)


async def test_a_write_only_transaction_begins_at_the_commit_before_it_in_its_process(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_chain, "CHAIN_SECONDS", 3600.0)
    wrapped = WrappedDatabase(db)
    wrapped.is_local = is_local(db)  # while it is opened: a cluster needs its client library
    remote = AsyncDatabase(wrapped)
    wrapped.is_local = False

    async def write(tr: AsyncTransaction) -> int:
        tr.set(b"a", b"1")
        return await tr.call(lambda tr: int(tr.inner.get_read_version().wait()))

    await remote.transact(write, write_only=True)
    other = AsyncDatabase(db).create_transaction()
    other.set(b"other", b"1")
    await other.commit()
    chained = await remote.transact(write, write_only=True)
    begun = await remote.transact(lambda tr: tr.get_read_version())
    assert chained < other.get_committed_version() <= begun
