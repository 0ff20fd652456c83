"""Users in cells for tasks of asyncio: transactions, locations and moves of users without waiting threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from cq import runtime, store
from cq.aio.calls import result_of, run
from cq.aio.database import AsyncDatabase, AsyncTransaction
from cq.aio.handles import AsyncHandle
from cq.cells.cells import Cells, Location
from cq.cells.user_data import UserData
from cq.durations import Span

T = TypeVar("T")


class AsyncUserData:
    """`cq.cells.UserData` for tasks; valid only within its transaction.

    Args:
        data: the data for synchronous code.

    Attributes:
        sync: the same data, for synchronous code that `tr.call` runs.
        tr: the transaction in the cell's store.
        user, cell, prefix: as in `cq.cells.UserData`.
    """

    def __init__(self, data: UserData) -> None:
        self.sync = data
        self.tr = AsyncTransaction(data.tr)
        self.user, self.cell, self.prefix = data.user, data.cell, data.prefix

    async def next_id(self) -> int:
        """Return the user's next id, as `cq.cells.UserData.next_id`."""
        return await run(self.sync.next_id)

    async def last_id(self) -> int:
        """Return the user's latest id, as `cq.cells.UserData.last_id`."""
        return await run(self.sync.last_id)

    async def map_id(self, old: Any, new: Any) -> None:
        """Store the new id of an old one, as `cq.cells.UserData.map_id`."""
        await run(self.sync.map_id, old, new)

    async def new_id(self, old: Any) -> Any:
        """Return the new id of an old one, as `cq.cells.UserData.new_id`."""
        return await run(self.sync.new_id, old)

    async def put_entry(self, index: str, text: str, value: Any = None) -> None:
        """Add the user to an index under a text, with a value, as `cq.cells.UserData.put_entry`."""
        self.sync.put_entry(index, text, value)

    async def clear_entry(self, index: str, text: str) -> None:
        """Remove the user's entry of this text from an index, as `cq.cells.UserData.clear_entry`."""
        self.sync.clear_entry(index, text)


class AsyncCells(AsyncHandle):
    """`cq.cells.Cells` for tasks: `await cells.transact("ada", save)`. Use it in `async with`, or await `close`.

    Its stores are opened in short-lived threads, everything else runs in the thread of the event loop. Operators'
    methods are those of `sync`: `await cq.aio.run(cells.sync.add_cell, "eu-1", url)`.

    Args:
        directory: the database of the directory.

    Attributes:
        sync: the cells, for synchronous code in tasks and in threads.
    """

    def __init__(self, directory: AsyncDatabase) -> None:
        self.sync = Cells(directory.sync, opener=_open)

    def __repr__(self) -> str:
        return f"cq.aio.Cells({self.sync.directory.db!r})"

    async def __aenter__(self) -> AsyncCells:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the stores of the cells; the directory's database stays open."""
        await asyncio.to_thread(self.sync.close)

    async def store(self, name: str) -> AsyncDatabase:
        """Return the store of a cell, as `cq.cells.Cells.store`."""
        return AsyncDatabase(await run(self.sync.store, name))

    async def place(self, user: Any, *, names: Sequence[str] = ()) -> str:
        """Place a user with these second `names`, as `cq.cells.Cells.place`; returns the name of the cell."""
        return await run(partial(self.sync.place, user, names=names))

    async def find(self, name: str) -> Any:
        """Return the user of a second name, as `cq.cells.Names.find`: None if nobody has it."""
        return await run(self.sync.names.find, name)

    async def locate(self, user: Any) -> Location:
        """Return the user's location, as `cq.cells.Cells.locate`."""
        return await run(self.sync.locate, user)

    async def transact(
        self, user: Any, fn: Callable[[AsyncUserData], Awaitable[T]], *, timeout: Span = 10.0
    ) -> T:
        """Await `fn(data)` in a transaction of the user's cell, commit it, and return what `fn` returned.

        `fn` may run several times, and in different cells. Retries, waits for moves and errors are those of
        `cq.cells.Cells.transact`. If the task is cancelled, so is the transaction.
        """
        return await run(
            self.sync.transact, user, lambda data: result_of(fn(AsyncUserData(data))), timeout=timeout
        )

    async def move(self, user: Any, cell: str) -> None:
        """Move a user to another cell, as `cq.cells.Cells.move`; another process can continue a cancelled move."""
        await run(self.sync.move, user, cell)

    async def adopt(
        self,
        user: Any,
        cell: str,
        convert: Callable[[AsyncUserData], Awaitable[bool]],
        *,
        names: Sequence[str] = (),
    ) -> str:
        """Place a user where the user's data are, as `cq.cells.Cells.adopt`, with the same `names`.

        Awaits `convert(data)` in a transaction for each piece. Returns the name of the user's cell.
        """

        def run_convert(data: UserData) -> bool:
            return result_of(convert(AsyncUserData(data)))

        return await run(partial(self.sync.adopt, user, cell, run_convert, names=names))

    async def delete(
        self,
        user: Any,
        final: Callable[[AsyncUserData], Awaitable[object]] | None = None,
        *,
        keep_names: bool = False,
    ) -> None:
        """Delete a user, as `cq.cells.Cells.delete`; another process can continue a cancelled deletion.

        Awaits `final(data)` in the transaction that decides the deletion; `keep_names` as there.
        """

        def run_final(data: UserData) -> object:
            return None if final is None else result_of(final(AsyncUserData(data)))

        await run(partial(self.sync.delete, user, run_final, keep_names=keep_names))


def _open(url: str, *, create: bool) -> Any:
    """Open a store, without blocking the event loop of a task, such that tasks may wait for it."""
    opening = partial(store.open_exactly, url, create=create)
    opened = result_of(asyncio.to_thread(opening)) if runtime.is_task() else opening()
    return AsyncDatabase(opened).sync
