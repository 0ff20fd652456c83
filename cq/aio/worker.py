"""A worker in the process of an event loop, for small deployments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cq import runtime
from cq.aio.calls import call_in
from cq.aio.database import AsyncDatabase
from cq.app import App
from cq.observers.worker.worker import Worker


class AsyncWorker:
    """A worker in threads of this process while an `async with` block runs: `async with cq.aio.Worker(db):`.

    The block begins after the worker's first successful turn, and ends when the worker has stopped completely. If the
    worker fails, the block is cancelled and raises the worker's error. Combining uses the process's CPU time and GIL:
    start processes with `cq worker` if the event loop must answer quickly under load.

    Args:
        db: the database.
        app: the code for queues that need more than built-in combiners and observers.
        queues: their names; empty for all queues of the store.
        settings: further settings of `cq.observers.worker.worker.Worker`.

    Usable once. Raises `QueueNotConfigured` if a queue named does not exist.
    """

    def __init__(
        self, db: AsyncDatabase, app: App | None = None, queues: Sequence[str] = (), **settings: Any
    ) -> None:
        self._worker = Worker(db.sync, app, queues, **settings)
        self._block: asyncio.Task[Any] | None = None
        self._cancelled_block = False
        self._running, self._ended = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None

    async def __aenter__(self) -> AsyncWorker:
        loop = asyncio.get_running_loop()
        runtime.start_thread(lambda: self._run(loop), "cq-worker")
        try:
            await self._running.wait()
        except BaseException:
            await self._stop()
            raise
        if self._error is not None:
            raise self._error
        self._block = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        block, self._block = self._block, None
        await self._stop()
        if self._cancelled_block and block is not None:
            if kind is None:  # the block ended before the cancellation reached it
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            if block.uncancel() > 0 and kind is asyncio.CancelledError:
                return  # others cancelled the task, too
        if self._error is not None and (kind is None or self._cancelled_block):
            raise self._error

    async def _stop(self) -> None:
        """Stop the worker and await its end; if the task is cancelled meanwhile, raise `CancelledError` after it."""
        self._worker.stop()
        cancelled: asyncio.CancelledError | None = None
        while not self._ended.is_set():
            try:
                await self._ended.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _end(self, error: BaseException | None) -> None:
        """Note the end of the worker; called in the thread of the event loop."""
        self._error = error
        self._running.set()
        self._ended.set()
        if self._block is not None and error is not None:
            self._cancelled_block = True
            self._block.cancel()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the worker, in its thread."""
        error: BaseException | None = None
        try:
            self._worker.run(lambda: call_in(loop, self._running.set))
        except BaseException as raised:  # noqa: BLE001 - the block raises it
            error = raised
        call_in(loop, self._end, error)
