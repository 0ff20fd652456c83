"""Processes of their own that work at a common signal: started, and ready, before anything is timed."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

from cq import machine
from cq.errors import CqError
from cq.observers.bench.errors import CannotMeasure
from cq.observers.spawning import end_with_parent, keep_no_semaphores, starting

_AHEAD_SECONDS: Final = 0.05  # the signal is for so much later, that it reaches all in time
_END_SECONDS: Final = 10.0


class BenchRole(Protocol):
    """What a process does. It is sent there, and opens there what it needs."""

    def prepare(self) -> None:
        """Get ready, before anything is timed."""
        ...

    def run(self, begin: float, end: float) -> Any:
        """Work; `begin` and `end` are times of the machine's monotonic clock, which all processes share."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class _Failure(NamedTuple):
    message: str


class BenchCrew:
    """A process for each role; a context manager, which ends them.

    Raises `CannotMeasure` with what a process has raised, when it is made and in `run` and `results`.
    """

    def __init__(self, roles: Sequence[BenchRole]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        try:
            for role in roles:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, role), daemon=True)
                with starting():
                    process.start()
                    self._connections.append(ours)
                    self._processes.append(process)
                theirs.close()
            self.results()
        except BaseException:
            self._end(0.0)
            raise

    def __enter__(self) -> BenchCrew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(_END_SECONDS if error is None else 0.0)  # what they do is of no use any more

    def run(self, seconds: float = 0.0) -> tuple[float, list[Any]]:
        """Have all work, for so many seconds where they work by time; returns when they began, and their results."""
        begin = self.start(seconds)
        return begin, self.results()

    def start(self, seconds: float, begin: float | None = None) -> float:
        """Have all work, without waiting for them; returns when they begin, at the time that is given or soon."""
        begin = machine.monotonic() + _AHEAD_SECONDS if begin is None else begin
        for connection in self._connections:
            connection.send((begin, begin + seconds))
        return begin

    def results(self) -> list[Any]:
        """What they have returned; waits for all of them."""
        results = []
        for connection in self._connections:
            try:
                results.append(connection.recv())
            except EOFError:
                raise CannotMeasure(
                    "a process of the benchmark has ended: its own message is above"
                ) from None
        for result in results:
            if isinstance(result, _Failure):
                raise CannotMeasure(result.message)
        return results

    def _end(self, seconds: float) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(seconds)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(connection: Connection, role: BenchRole) -> None:
    """In a process of its own: work when told to, until the one that has started this one closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the parent, which ends its processes
    logging.getLogger("cq.worker").setLevel(logging.ERROR)  # a queue is paused and deleted under its workers
    keep_no_semaphores()
    machine.start_thread(end_with_parent, "parent")
    with suppress(EOFError, ConnectionError):  # it is gone
        if not _answer(connection, role.prepare):
            return
        try:
            while True:
                begin, end = connection.recv()
                machine.sleep(max(0.0, begin - machine.monotonic()))
                _answer(connection, partial(role.run, begin, end))
        finally:
            role.close()


def _answer(connection: Connection, function: Callable[[], Any]) -> bool:
    """Send what a function returns, or has failed with; returns whether it has not failed."""
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - the parent raises it
        said = str(error) if isinstance(error, CqError) else f"{type(error).__name__}: {error}"
        connection.send(_Failure(said))
        return False
    connection.send(result)
    return True
