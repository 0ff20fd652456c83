"""Write-only transactions of tasks: they write as any other, and each read and watch in them is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cq.aio
from cq.aio import AsyncDatabase, AsyncReads, AsyncTransaction
from cq.intake import Documents
from cq.store import version_chain
from cq.store.api import is_local
from tests.kit.faults import WrappedDatabase

Run = Callable[[Any], Any]


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
    "value": lambda tr: cq.aio.CombineQueue[str, int]("words").get(tr, "a"),
    "called": lambda tr: tr.call(lambda tr: tr.get(b"a").value),
}


@pytest.fixture(autouse=True)
def _words(db: Any) -> None:
    cq.configure(db, "words", key=str, value=int, combiner="sum")


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("of_snapshot", [False, True])
def test_a_write_only_transaction_refuses_reads(
    adb: AsyncDatabase, name: str, run: Run, read: Callable[[AsyncReads], Awaitable[Any]], of_snapshot: bool
) -> None:
    key = name.encode()  # the keys of a cluster are not the test's own

    async def write(tr: AsyncTransaction) -> None:
        tr.set(key, b"1")
        await read(tr.snapshot if of_snapshot else tr)

    with pytest.raises(TypeError, match="leave out `write_only`"):
        run(adb.transact(write, write_only=True))
    assert run(adb.transact(lambda tr: tr.get(key))) is None


def test_a_function_that_reads_before_it_writes_is_refused(adb: AsyncDatabase, run: Run) -> None:
    documents = Documents(cq.CombineQueue("words"))
    with pytest.raises(TypeError, match="leave out `write_only`"):
        run(adb.transact(lambda tr: tr.call(documents.set, b"a", {"x": 1}), write_only=True))


@pytest.mark.parametrize("begin", ["get", "watch"])
def test_what_is_not_awaited_before_the_commit_is_refused_at_once(
    adb: AsyncDatabase, name: str, run: Run, begin: str
) -> None:
    key = name.encode()

    async def write(tr: AsyncTransaction) -> Any:
        tr.set(key, b"1")
        return getattr(tr, begin)(key)

    with pytest.raises(TypeError, match="leave out `write_only`"):
        run(adb.transact(write, write_only=True))
    assert run(adb.transact(lambda tr: tr.get(key))) is None


def test_a_write_only_transaction_writes_as_any_other(adb: AsyncDatabase, name: str, run: Run) -> None:
    words, prefix = cq.aio.CombineQueue[str, int]("words"), name.encode()

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

    async def main() -> Any:
        stamp = await adb.transact(write, write_only=True)
        assert len(await stamp) == 10
        return await adb.transact(read)

    assert run(main()) == ([b"1", None, b"\1\0", b"1"], 1)


def test_a_write_only_transaction_begins_at_the_commit_before_it_in_its_process(
    db: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_chain, "CHAIN_SECONDS", 3600.0)
    wrapped = WrappedDatabase(db)
    wrapped.is_local = is_local(db)  # while it is opened: a cluster needs its client library
    remote = AsyncDatabase(wrapped)
    wrapped.is_local = False

    async def write(tr: AsyncTransaction) -> int:
        tr.set(b"a", b"1")
        return await tr.call(lambda tr: int(tr.inner.get_read_version().wait()))

    async def main() -> tuple[int, int, int]:
        await remote.transact(write, write_only=True)
        other = AsyncDatabase(db).create_transaction()
        other.set(b"other", b"1")
        await other.commit()
        chained = await remote.transact(write, write_only=True)
        begun = await remote.transact(lambda tr: tr.get_read_version())
        return chained, other.get_committed_version(), begun

    chained, committed, begun = run(main())
    assert chained < committed <= begun
