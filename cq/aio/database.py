"""Databases and transactions for tasks of asyncio: requests are awaited, writes are plain calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeVar

from cq import store
from cq.aio.calls import Call, missing, result_of, run
from cq.store.api import is_local
from cq.store.foundationdb import replace_wait
from cq.store.transact import transact

P = ParamSpec("P")
T = TypeVar("T")

_AT_ONCE: Final = 100  # items of an iteration: one call in a greenlet costs as much as several rows
_BLIND: Final = frozenset(
    (
        *("bit_and", "bit_or", "bit_xor", "max", "min", "byte_max", "byte_min"),
        *("append_if_fits", "compare_and_clear", "clear_range_startswith"),
        *("add_read_conflict_key", "add_read_conflict_range"),
        *("add_write_conflict_key", "add_write_conflict_range"),
    )
)
"""Methods of the store's transactions that return nothing and never wait."""


async def open(  # noqa: A001 - as `cq.open`
    url: str | None = None, *, create: bool = True, read_only: bool = False, prefix: Any = None
) -> AsyncDatabase:
    """Open the store of `url`, as `cq.open` does, in a short-lived thread.

    `create`, `read_only`, `prefix` and the errors are those of `cq.open`.
    """
    opened = await asyncio.to_thread(store.open, url, create=create, read_only=read_only, prefix=prefix)
    return AsyncDatabase(opened)


class AsyncDatabase:
    """A database of either store, for any task of any event loop; closed at the end of `async with`.

    Args:
        db: what `cq.open` returns, an `fdb.Database`, or a view of either from `cq.store.Space`.

    Attributes:
        sync: this database, for synchronous code.
    """

    def __init__(self, db: Any) -> None:
        self.sync = db
        if "fdb" in sys.modules and not is_local(db):
            replace_wait()

    async def __aenter__(self) -> AsyncDatabase:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def transact(
        self, fn: Callable[[AsyncTransaction], Awaitable[T]], *, write_only: bool = False
    ) -> T:
        """Await `fn(tr)` in a transaction, commit it, and return what `fn` returned; retries as `cq.transact` does.

        `fn` may run several times. If the task is cancelled, so is the transaction. A transaction whose commit has
        begun may have committed then, as a whole.

        Args:
            fn: a function of the transaction.
            write_only: whether `fn` only writes; then each read in it raises `TypeError`, as in `cq.transact`.

        Raises:
            FDBError: the store's error, as `cq.transact` raises it.
            Exception: any exception of `fn`, without a commit.
        """
        return await run(
            transact, self.sync, lambda tr: result_of(fn(AsyncTransaction(tr))), write_only=write_only
        )

    async def call(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a synchronous function of a database, such as `cq.configure`; see `run` for what it may do."""
        return await run(fn, self.sync, *args, **kwargs)

    def create_transaction(self) -> AsyncTransaction:
        """A new transaction, which the caller commits; `transact` does so with retries."""
        return AsyncTransaction(self.sync.create_transaction())

    async def close(self) -> None:
        """Close an embedded store, as `cq.store.close` does: watches and later calls fail."""
        await asyncio.to_thread(store.close, self.sync)


class AsyncReads:
    """Reads of a transaction. Those of a transaction add read conflicts, those of its `.snapshot` do not.

    A read begins when it is called, before it is awaited, as in the official binding.

    Attributes:
        sync: these reads, for synchronous code.
    """

    def __init__(self, tr: Any) -> None:
        self.sync = tr

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("snapshot", name)

    def get(self, key: bytes) -> Call[bytes | None]:
        """The value of a key; None if it is absent."""
        return Call(_value, self.sync, "get", key)

    def get_key(self, selector: Any) -> Call[bytes]:
        """The key that a selector resolves to."""
        return Call(_value, self.sync, "get_key", selector)

    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> AsyncRange[Any]:
        """The rows from `begin` to before `end`, with `.key` and `.value`: `async for row in tr.get_range(...)`.

        `limit`, `reverse` and `streaming_mode` are those of the official binding.
        """
        return AsyncRange(Call(self.sync.get_range, begin, end, limit, reverse, streaming_mode))

    def get_range_startswith(self, prefix: bytes, *args: Any, **kwargs: Any) -> AsyncRange[Any]:
        """The rows whose keys begin with `prefix`; further arguments as for `get_range`."""
        return AsyncRange(Call(self.sync.get_range_startswith, prefix, *args, **kwargs))

    def get_read_version(self) -> Call[int]:
        """The version that reads see."""
        return Call(_waited, self.sync, "get_read_version")

    def get_estimated_range_size_bytes(self, begin: bytes, end: bytes) -> Call[int]:
        """An estimate of the bytes in a range."""
        return Call(_waited, self.sync, "get_estimated_range_size_bytes", begin, end)

    def get_range_split_points(self, begin: bytes, end: bytes, chunk_size: int) -> Call[list[bytes]]:
        """Keys that cut a range into parts of about `chunk_size` bytes."""
        return Call(_waited, self.sync, "get_range_split_points", begin, end, chunk_size)

    async def call(self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a synchronous function of a transaction; see `run` for what it may do."""
        return await run(fn, self.sync, *args, **kwargs)


class AsyncTransaction(AsyncReads):
    """A transaction. Its writes return at once, and `cq.aio.AsyncDatabase.transact` commits it.

    The other blind methods of the store's transactions exist, too: atomic operations, and conflict ranges.
    """

    @property
    def options(self) -> Any:
        """The options of the transaction, as in the official binding."""
        return self.sync.options

    @property
    def snapshot(self) -> AsyncReads:
        """Reads that add no read conflicts."""
        return AsyncReads(self.sync.snapshot)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key to a value."""
        self.sync.set(key, value)

    def clear(self, key: bytes) -> None:
        """Clear a key."""
        self.sync.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Clear the keys from `begin` to before `end`."""
        self.sync.clear_range(begin, end)

    def add(self, key: bytes, param: bytes) -> None:
        """Add `param` to the value; both are little-endian numbers."""
        self.sync.add(key, param)

    def set_versionstamped_key(self, key: bytes, param: bytes) -> None:
        """Set a key to `param`; the commit puts its versionstamp into the key, at the offset in its last four bytes."""
        self.sync.set_versionstamped_key(key, param)

    def set_versionstamped_value(self, key: bytes, param: bytes) -> None:
        """Set a key to `param`, into which the commit puts its versionstamp, at the offset in its last four bytes."""
        self.sync.set_versionstamped_value(key, param)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.sync[key] = value

    def __delitem__(self, key: bytes | slice) -> None:
        del self.sync[key]

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in _BLIND:
            raise missing("transaction", name)
        found: Callable[..., None] = getattr(self.sync, name)
        return found

    def watch(self, key: bytes) -> Call[None]:
        """A watch: `await` it after the commit, until the key has another value than in this transaction."""
        return Call(_watched, self.sync, key)

    def get_versionstamp(self) -> Call[bytes]:
        """The versionstamp: call this before the commit, and await the result after it."""
        return Call(_value, self.sync, "get_versionstamp")

    def get_approximate_size(self) -> Call[int]:
        """The bytes that count for the size limit so far."""
        return Call(_waited, self.sync, "get_approximate_size")

    def get_committed_version(self) -> int:
        """The version of the commit; -1 before it, and for a read-only transaction."""
        return int(self.sync.get_committed_version())

    def commit(self) -> Call[None]:
        """Commit."""
        return Call(_waited, self.sync, "commit")

    def on_error(self, error: Any) -> Call[None]:
        """Prepare a retry after an error, or raise it if it is not retryable."""
        return Call(_waited, self.sync, "on_error", error)

    def reset(self) -> None:
        """Reset the transaction and its options."""
        self.sync.reset()

    def cancel(self) -> None:
        """Cancel the transaction: its reads under way, and every call until `reset`, raise 1025."""
        self.sync.cancel()


class AsyncRange(Generic[T]):
    """Rows or other items, for `async for`."""

    def __init__(self, items: Awaitable[Iterable[T]]) -> None:
        self._items = items

    async def __aiter__(self) -> AsyncIterator[T]:
        iterator = await run(iter, await self._items)
        while some := await run(_some, iterator):
            for item in some:
                yield item

    async def to_list(self) -> list[T]:
        """All of them."""
        return [item async for item in self]


def _some(iterator: Iterator[T]) -> list[T]:
    return list(islice(iterator, _AT_ONCE))


# Each holds the transaction while it waits: the futures of a dropped transaction fail.


def _value(tr: Any, method: str, *args: Any) -> Any:
    return getattr(tr, method)(*args).value


def _waited(tr: Any, method: str, *args: Any) -> Any:
    return getattr(tr, method)(*args).wait()


def _watched(tr: Any, key: bytes) -> None:
    watch = tr.watch(key)
    del tr  # a watch outlives its transaction, which need not stay in memory
    watch.wait()
