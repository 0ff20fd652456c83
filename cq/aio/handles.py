"""Queues, windows, feeds, rankings and clouds for tasks of asyncio, with the methods of the synchronous ones.

Each method is made from the synchronous one and takes its arguments, with a database or a transaction of `cq.aio` in
the place of the store's. Type checkers and editors see the arguments and results of the synchronous method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from cq.aio.calls import Call, OwnLatch, run
from cq.aio.database import AsyncDatabase, AsyncRange, AsyncReads
from cq.combiners import Combiner
from cq.durations import Span
from cq.feeds.feed import Feed
from cq.observers.top.cloud import CloudReader
from cq.observers.top.ranking import Ranking
from cq.queue.combine_queue import CombineQueue
from cq.queue.packing import split_pairs
from cq.queue.shared_adds import AddCall, shared_adds
from cq.queue.shared_asks import AskCall, answer_to
from cq.store.api import Database
from cq.type_variables import K, M, V, W
from cq.windows.window import Window

S = TypeVar("S")  # the synchronous handle: as Any, pyright would lose its types of keys and values
P = ParamSpec("P")
T = TypeVar("T")

_Store = AsyncDatabase | AsyncReads


class _Made(Generic[S, P, T]):
    """A method of a handle for tasks, made from the method of the same name of its `sync`, whose class may override it.

    It is made once for each handle: to make it takes about as long as to call it.
    """

    def __init__(self, method: Callable[Concatenate[S, Any, P], T]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def _of(self, handle: Any) -> Any:
        """The method of the handle's `sync`; of the class, if there is no handle."""
        return self._method if handle is None else getattr(handle.sync, self._method.__name__)

    def _kept(self, handle: Any, call: Any) -> Any:
        """A function with the name and the signature of the method, kept in the handle."""
        made = wraps(self._method)(call)
        if handle is not None:
            handle.__dict__[self._method.__name__] = made
        return made


class Awaited(_Made[S, P, T]):
    """A method that awaits where the synchronous method of the handle's `sync` blocks.

    Args:
        method: the synchronous method.
        by: a coroutine function that does the same, if it takes less than a greenlet in which the method runs.
    """

    def __init__(
        self,
        method: Callable[Concatenate[S, Any, P], T],
        by: Callable[Concatenate[S, Any, P], Coroutine[Any, Any, T]] | None = None,
    ) -> None:
        super().__init__(method)
        self._by = by

    def __get__(
        self, handle: Any, owner: Any = None
    ) -> Callable[Concatenate[_Store, P], Coroutine[Any, Any, T]]:
        method = self._of(handle)
        is_own = (
            getattr(method, "__func__", None) is not self._method
        )  # of a class of queues that overrides it
        start = partial(run, method) if self._by is None or is_own else partial(self._by, handle.sync)

        def call(store: _Store, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            return start(store.sync, *args, **kwargs)

        kept: Callable[Concatenate[_Store, P], Coroutine[Any, Any, T]] = self._kept(handle, call)
        return kept


class Iterated(_Made[S, P, Iterator[T]]):
    """A method that returns an asynchronous iterator where the synchronous method returns an iterator."""

    def __get__(
        self, handle: Any, owner: Any = None
    ) -> Callable[Concatenate[AsyncDatabase, P], AsyncRange[T]]:
        method = self._of(handle)

        def call(db: AsyncDatabase, /, *args: P.args, **kwargs: P.kwargs) -> AsyncRange[T]:
            return AsyncRange(Call(method, db.sync, *args, **kwargs))

        kept: Callable[Concatenate[AsyncDatabase, P], AsyncRange[T]] = self._kept(handle, call)
        return kept


async def _add_now(
    queue: CombineQueue[K, V],
    db: Database,
    updates: Mapping[K, V] | Collection[tuple[K, V]],
    once: str | bytes | None = None,
) -> None:
    """`CombineQueue.add_now`; a call that waits for that of another task is no more than a future."""
    await _shared(queue.name, db, AddCall(*split_pairs(updates), once))


async def _ask_now(queue: CombineQueue[K, V], db: Database, *args: Any, **kwargs: Any) -> Any:
    """`CombineQueue.ask_now`, as `_add_now`."""
    call = AskCall(*args, **kwargs)
    await _shared(queue.name, db, call)
    if not call.is_late:
        return answer_to(db, queue.name, call)
    return await run(answer_to, db, queue.name, call)


async def _shared(queue: str, db: Database, call: AddCall) -> None:
    shared = shared_adds(db, queue, asyncio.get_running_loop())
    latch = shared.join(call, OwnLatch)
    if latch is not None:
        try:
            await latch.future
        except BaseException:  # the task is cancelled
            shared.leave(call)
            raise
    if call.group is None:
        shared.finish(db, call)
    else:
        await run(shared.finish, db, call)


class AsyncHandle:
    """A handle for tasks, made from a synchronous one.

    Attributes:
        sync: the synchronous handle.
    """

    sync: Any

    def __repr__(self) -> str:
        return f"cq.aio.{self.sync!r}"

    @property
    def name(self) -> str:
        """The name of the queue or feed."""
        name: str = self.sync.name
        return name


class AsyncCombineQueue(AsyncHandle, Generic[K, V]):
    """`cq.CombineQueue` for tasks: `await words.add(tr, {"hello": 1})`.

    Args:
        queue: its name, or a `cq.CombineQueue`.
        combiner: with a name: the queue's combiner if it is one of your own.
    """

    def __init__(self, queue: CombineQueue[K, V] | str, *, combiner: Combiner | None = None) -> None:
        self.sync: CombineQueue[K, V] = (
            CombineQueue(queue, combiner=combiner) if isinstance(queue, str) else queue
        )

    add = Awaited(CombineQueue[K, V].add)
    add_now = Awaited(CombineQueue[K, V].add_now, _add_now)
    ask = Awaited(CombineQueue[K, V].ask)
    answer = Awaited(CombineQueue[K, V].answer)
    ask_many = Awaited(CombineQueue[K, V].ask_many)
    ask_now = Awaited(CombineQueue[K, V].ask_now, by=_ask_now)
    withdraw = Awaited(CombineQueue[K, V].withdraw)
    get = Awaited(CombineQueue[K, V].get)
    get_many = Awaited(CombineQueue[K, V].get_many)
    merged = Awaited(CombineQueue[K, V].merged)
    items = Awaited(CombineQueue[K, V].items)
    scan = Iterated(CombineQueue[K, V].scan)
    series = Awaited(CombineQueue[K, V].series)
    series_of_many = Awaited(CombineQueue[K, V].series_of_many)
    merged_series = Awaited(CombineQueue[K, V].merged_series)


class AsyncWindow(AsyncHandle, Generic[K, W]):
    """`cq.windows.Window` for tasks.

    Args:
        queue: a queue, or its name.
        late: as for `cq.windows.Window`.
    """

    def __init__(
        self, queue: AsyncCombineQueue[K, W] | CombineQueue[K, W] | str, *, late: Span | None = None
    ) -> None:
        inner = queue.sync if isinstance(queue, AsyncCombineQueue) else queue
        self.sync: Window[K, W] = Window(inner, late=late)

    add = Awaited(Window[K, W].add)
    add_each = Awaited(Window[K, W].add_each)
    get = Awaited(Window[K, W].get)
    get_many = Awaited(Window[K, W].get_many)
    items = Awaited(Window[K, W].items)
    statistics = Awaited(Window[K, W].statistics)


class AsyncFeed(AsyncHandle, Generic[M]):
    """`cq.feeds.Feed` for tasks: `await feed.wait(db, receiver, after)` holds no thread.

    Args:
        feed: its name, or a `Feed`.
    """

    def __init__(self, feed: Feed[M] | str) -> None:
        self.sync: Feed[M] = Feed(feed) if isinstance(feed, str) else feed

    configure = Awaited(Feed[M].configure)
    delete = Awaited(Feed[M].delete)
    append = Awaited(Feed[M].append)
    append_many = Awaited(Feed[M].append_many)
    append_now = Awaited(Feed[M].append_now)
    send = Awaited(Feed[M].send)
    edit = Awaited(Feed[M].edit)
    recall = Awaited(Feed[M].recall)
    read = Awaited(Feed[M].read)
    read_numbered = Awaited(Feed[M].read_numbered)
    wait = Awaited(Feed[M].wait)
    latest = Awaited(Feed[M].latest)
    forget = Awaited(Feed[M].forget)
    advance = Awaited(Feed[M].advance)
    position = Awaited(Feed[M].position)
    unread = Awaited(Feed[M].unread)
    set_online = Awaited(Feed[M].set_online)
    online = Awaited(Feed[M].online)
    join = Awaited(Feed[M].join)
    leave = Awaited(Feed[M].leave)
    append_to_group = Awaited(Feed[M].append_to_group)
    is_member = Awaited(Feed[M].is_member)
    members = Awaited(Feed[M].members)


class AsyncRanking(AsyncHandle, Generic[K, V]):
    """`Ranking` for tasks: the top of a queue.

    Args:
        ranking: the queue's name, or a `Ranking`, which `rank` needs if the top has functions of the application.
    """

    def __init__(self, ranking: Ranking[K, V] | str) -> None:
        self.sync: Ranking[K, V] = Ranking(ranking) if isinstance(ranking, str) else ranking

    page = Awaited(Ranking[K, V].page)
    scan = Iterated(Ranking[K, V].scan)
    count = Awaited(Ranking[K, V].count)
    groups = Awaited(Ranking[K, V].groups)
    rank = Awaited(Ranking[K, V].rank)
    ranks = Awaited(Ranking[K, V].ranks)


class AsyncCloudReader(AsyncHandle):
    """`CloudReader` for tasks; `CloudFollower.wait_async` shares one watch among all tasks of a process.

    Args:
        name: the queue's name.
        group: whose cloud, for a queue with groups.
    """

    def __init__(self, name: str, group: str | None = None) -> None:
        self.sync = CloudReader(name, group)

    read = Awaited(CloudReader.read)
    oldest = Awaited(CloudReader.oldest)
    wait = Awaited(CloudReader.wait)
