"""Cells for tasks: the transactions, locations and moves of users are those of the synchronous cells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cq
import cq.aio
from cq.aio.cells import AsyncUserData
from cq.cells import Cells, entries, search
from cq.store.embedded import Database
from cq.store.transact import transact

Run = Callable[[Any], Any]
WRITES = 30


@pytest.fixture
def cells(tmp_path: Path) -> Any:
    """Two cells, as another process has added them."""
    directory = Database(tmp_path / "directory.db", power_safe=False)
    with Cells(directory) as added:
        for name in ("north", "south"):
            added.add_cell(name, f"embedded:{tmp_path / name}.db")
    yield cq.aio.Cells(cq.aio.AsyncDatabase(directory))
    directory.close()


async def save(data: AsyncUserData) -> tuple[str, int]:
    """Write under the user's next id; returns the cell and the id."""
    number = await data.next_id()
    assert await data.tr.get(data.prefix + b"%d" % number) is None
    data.tr.set(data.prefix + b"%d" % number, data.cell.encode())
    return data.cell, number


async def test_writes_of_a_user_follow_its_moves(cells: cq.aio.Cells) -> None:
    async with cells:
        first = await cells.place("ada")
        other = "south" if first == "north" else "north"
        assert await cells.transact("ada", save) == (first, 1)
        writes = [asyncio.create_task(cells.transact("ada", save)) for _ in range(WRITES)]
        for cell in (other, first, other):
            await cells.move("ada", cell)
        saved = await asyncio.gather(*writes)

        assert sorted(number for _, number in saved) == list(range(2, WRITES + 2))
        assert (await cells.locate("ada")).cell == other
        assert await cells.transact("ada", save) == (other, WRITES + 2)
        db = await cells.store(other)
        assert transact(db.sync, lambda tr: tr.get(b"absent").value) is None


async def test_errors_are_those_of_the_synchronous_cells(cells: cq.aio.Cells) -> None:
    async def refuse(data: AsyncUserData) -> None:
        data.tr.set(data.prefix + b"lost", b"")
        raise ZeroDivisionError

    async with cells:
        with pytest.raises(cq.CqError, match="is in no cell"):
            await cells.transact("grace", save)
        with pytest.raises(cq.CqError, match="has no cell 'west'"):
            await cells.store("west")
        await cells.place("ada")
        with pytest.raises(ZeroDivisionError):
            await cells.transact("ada", refuse)
        assert await cells.transact("ada", lambda data: data.tr.get(data.prefix + b"lost")) is None


async def test_a_user_has_ids_and_entries_of_indexes(cells: cq.aio.Cells) -> None:
    async def register(data: AsyncUserData) -> tuple[int, int]:
        await data.put_entry("names", "Ada Lovelace", await data.next_id())
        await data.put_entry("names", "Ada")
        await data.clear_entry("names", "Ada")
        return await data.next_id(), await data.last_id()

    async with cells:
        await cells.place("ada")
        assert await cells.transact("ada", register) == (2, 2)
        found = await cq.aio.run(search, cells.sync, entries("names"), timeout=30)
        assert [tuple(each) for each in found.items] == [("ada", "Ada Lovelace", 1)]


async def test_a_cancelled_transaction_writes_nothing(cells: cq.aio.Cells) -> None:
    begun = asyncio.Event()

    async def wait(data: AsyncUserData) -> None:
        data.tr.set(data.prefix + b"lost", b"")
        begun.set()
        await asyncio.Event().wait()

    async with cells:
        await cells.place("ada")
        task = asyncio.create_task(cells.transact("ada", wait))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await cells.transact("ada", lambda data: data.tr.get(data.prefix + b"lost")) is None


async def test_users_are_adopted_found_by_name_and_deleted(cells: cq.aio.Cells) -> None:
    async def convert(data: AsyncUserData) -> bool:
        data.tr.set(data.prefix + b"old", b"row")
        return await data.next_id() < 2  # in two pieces

    async def final(data: AsyncUserData) -> None:
        data.tr.set(b"left", b"%d" % await data.next_id())

    async with cells:
        assert await cells.adopt("ada", "south", convert, names=["login:ada"]) == "south"
        await cells.place("grace", names=["login:grace"])
        assert [await cells.find(f"login:{name}") for name in ("ada", "eve")] == ["ada", None]
        assert await cells.transact("ada", save) == ("south", 3)
        await cells.delete("ada", final)
        await cells.delete("grace", keep_names=True)

        south = await cells.store("south")
        assert transact(south.sync, lambda tr: tr.get(b"left").value) == b"4"
        assert [await cells.find(f"login:{name}") for name in ("ada", "grace")] == [None, "grace"]
        with pytest.raises(cq.errors.UserDeleted):
            await cells.locate("ada")
