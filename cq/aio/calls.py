"""Calls of synchronous code that suspend a task of asyncio wherever the code would block its thread.

The code runs in a greenlet: a stack of its own in the thread of the event loop. Where it waits for a future of a store,
sleeps, or waits for an event of `cq.runtime`, the greenlet hands an awaitable to the coroutine that runs it, and
continues with the result. So all of cq is written once, without coroutines. SQLAlchemy runs its synchronous code for
asyncio in the same way (`greenlet_spawn` and `await_only`).

Waits are intercepted in the futures of both stores (`runtime.suspend`), not in views of databases and transactions: a
view must know every method that returns a future, range or iterator, and a method that it misses would block the event
loop without an error. Views would also cost each call, and the futures cost only waits.

No code of cq waits while it holds a lock, so calls that alternate in one thread cannot deadlock. A cancelled task
raises `CancelledError` in the greenlet, where the code waits; this cancels the future, too.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from cq import runtime
from cq.distribution import install_command
from cq.store.api import error_code

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise ImportError(f"cq.aio needs the package greenlet: run `{install_command('aio')}`") from error

P = ParamSpec("P")
T = TypeVar("T")


class Caller(greenlet):  # type: ignore[misc]
    """The greenlet of one call.

    Attributes:
        pending: the awaitable that the call waits for; its result once it has ended.
        future: the future of the store that it waits for, if it waits for one.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        parent = getcurrent()
        super().__init__(fn, parent)
        self.gr_context = parent.gr_context
        self.pending: Any = None
        self.future: runtime.Waitable | None = None

    def start(self, *args: Any, **kwargs: Any) -> Caller:
        """Run until the first wait, or to the end."""
        self.pending = self.switch(*args, **kwargs)
        return self

    async def end(self) -> Any:
        """The result of the call; awaits what it waits for."""
        while not self.dead:
            try:
                found = await self.pending
            except GeneratorExit:
                # An abandoned coroutine may be closed in any thread. Its greenlet, which loses its last reference now,
                # ends in its own thread.
                raise
            except BaseException as error:  # noqa: BLE001 - the call handles it, or raises it here
                self.parent = getcurrent()
                self.pending = self.throw(error)
            else:
                self.parent = getcurrent()
                self.pending = self.switch(found)
        return self.pending


async def run(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a synchronous function without blocking the event loop: its waits for stores suspend the task.

    `fn` may be any function of cq, or of the application, that waits only for stores; computations, files and SQL
    databases still block the loop.
    """
    found: T = await Caller(fn).start(*args, **kwargs).end()
    return found


def result_of(awaitable: Awaitable[T]) -> T:
    """Return the result of `awaitable` in synchronous code that runs by `run`; elsewhere raises `RuntimeError`."""
    if _in_call():
        if not hasattr(awaitable, "__await__"):
            raise TypeError(
                "a function that cq.aio awaits is no coroutine function: write `async def`, or call a plain function "
                "by `await db.call(function, ...)`"
            )
        found: T = getcurrent().parent.switch(awaitable)
        return found
    if inspect.iscoroutine(awaitable):
        awaitable.close()  # else Python warns that it was never awaited
    raise RuntimeError("result_of works only in functions that cq.aio.run calls")


def missing(what: str, name: str) -> AttributeError:
    """The error for what code without asyncio asks of an object of cq.aio."""
    return AttributeError(
        f"a {what} of cq.aio has no {name!r}: await its reads, take a handle such as `cq.aio.CombineQueue(...)`, or "
        "call a function without asyncio by `await db.call(function, ...)` or `await tr.call(function, ...)`"
    )


class Call(Generic[T], Awaitable[T]):
    """A read or another request that has begun: await it for its result.

    Begin several before you await the first, and they are under way at the same time. One that is dropped is cancelled.
    Tasks may await it one after the other, but not at the same time. An error of the store is raised when it is
    awaited, as by the store's futures; a request that cannot begin raises at once.
    """

    def __init__(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> None:
        self._caller = Caller(fn)
        self._is_awaited = False
        self._error: BaseException | None = None
        try:
            self._caller.start(*args, **kwargs)
        except Exception as error:
            if error_code(error) is None:
                raise
            self._error = error

    def __await__(self) -> Generator[Any, None, T]:
        if not self._caller.dead:
            yield from self._end().__await__()
        if self._error is not None:
            raise self._error
        found: T = self._caller.pending
        return found

    if not TYPE_CHECKING:  # type checkers report an unknown attribute themselves

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("read", name)

    def is_ready(self) -> bool:
        """Whether awaiting it does not suspend the task."""
        future = self._caller.future
        return self._caller.dead or (future is not None and future.is_ready())

    def cancel(self) -> None:
        """Cancel the request: awaiting it raises `FDBError` 1101, unless it is ready."""
        if not self._caller.dead and self._caller.future is not None:
            self._caller.future.cancel()

    async def _end(self) -> None:
        if self._is_awaited:
            raise RuntimeError("another task awaits this request: begin one for each task")
        self._is_awaited = True
        try:
            await self._caller.end()
        except BaseException as error:  # noqa: BLE001 - `__await__` raises it
            self._error = error
        finally:
            self._is_awaited = False


class LoopMachine(runtime.Machine):
    """The real machine, on which calls suspend their tasks where threads block."""

    def is_task(self) -> bool:
        """Whether the caller runs by `run`."""
        return _in_call()

    def event_loop(self) -> object | None:
        """The event loop of the calling task; None for a thread."""
        return asyncio.get_running_loop() if _in_call() else None

    def is_interruptible(self) -> bool:
        """Whether ^C may raise `KeyboardInterrupt` anywhere in the calling code; a task ends with its event loop."""
        return not _in_call() and super().is_interruptible()

    def suspend(self, future: runtime.Waitable) -> bool:
        """See `Machine.suspend`."""
        if not _in_call():
            return False
        if not future.is_ready():
            waiter = _waiter()
            future.on_ready(lambda _: _wake(waiter))
            # No variable for the greenlet: the frame of a dropped one would keep it, and Python could not collect it.
            getcurrent().future = future
            try:
                getcurrent().parent.switch(waiter[1])
            except BaseException:
                future.cancel()
                raise
            finally:
                getcurrent().future = None
        return True

    def sleep(self, seconds: float) -> None:
        """Suspend the calling task or thread."""
        if _in_call():
            result_of(asyncio.sleep(seconds))
        else:
            super().sleep(seconds)

    def event(self) -> threading.Event:
        """An event for threads and tasks."""
        return LoopEvent()

    def latch(self) -> runtime.Latch:
        """An event for many threads and tasks that is set once."""
        return LoopLatch()

    def own_latch(self) -> runtime.Latch:
        """An event for which only the calling thread or task waits."""
        return OwnLatch() if _in_call() else runtime.Latch()


class TaskEvent:
    """A mixin for events: `wait` suspends tasks, and blocks threads."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: list[_Waiter] = []

    def set(self) -> None:
        event: Any = super()
        event.set()
        for waiter in list(self._tasks):
            _wake(waiter)

    def wait(self, timeout: float | None = None) -> bool:
        event: Any = super()
        if not _in_call() or event.is_set():
            return bool(event.wait(timeout))
        waiter = _waiter()
        self._tasks.append(waiter)
        try:
            if not event.is_set():  # it may have been set before the waiter was listed
                result_of(asyncio.wait([waiter[1]], timeout=timeout))
        finally:
            self._tasks.remove(waiter)
        return bool(event.is_set())


class LoopEvent(TaskEvent, runtime.InterruptibleEvent):
    """An event for threads and tasks."""


class LoopLatch(TaskEvent, runtime.Latch):
    """An event for many threads and tasks that is set once."""


class OwnLatch(runtime.Latch):
    """An event for which one task waits, and which is set in its event loop's thread.

    Attributes:
        future: resolved when the event is set.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no task awaits any more
            _resolve(self.future)

    def wait(self, timeout: float | None = None) -> bool:
        result_of(self.future if timeout is None else asyncio.wait([self.future], timeout=timeout))
        return self.is_set()

    def is_set(self) -> bool:
        return self.future.done()


_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


def _waiter() -> _Waiter:
    loop = asyncio.get_running_loop()
    return loop, loop.create_future()


def call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: Any) -> None:
    """Make a call in the thread of a loop, from any thread."""
    with suppress(RuntimeError):  # the loop is closed, so no task awaits any more
        loop.call_soon_threadsafe(call, *args)


def _wake(waiter: _Waiter) -> None:
    """Resolve a future of a loop, from any thread, which wakes the tasks that await it."""
    call_in(waiter[0], _resolve, waiter[1])


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # it is done if its task was cancelled
        future.set_result(None)


def _in_call() -> bool:
    return isinstance(getcurrent(), Caller)


runtime.install(LoopMachine())
