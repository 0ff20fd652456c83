"""Processes that start work at a common signal, after all of them are ready."""

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

from cq import runtime
from cq.cli.bench.systems.errors import CannotMeasure
from cq.errors import CqError
from cq.observers.worker.spawn import exit_with_parent, keep_no_semaphores, starting

# The work begins this long after the signal, which must reach all processes first.
_AHEAD_SECONDS: Final = 0.05
_END_SECONDS: Final = 10.0


class BenchRole(Protocol):
    """The work of a process. It is pickled, and opens its resources in the process."""

    def prepare(self) -> None:
        """Prepare for `run`; this is not timed."""
        ...

    def run(self, begin: float, end: float) -> Any:
        """Work from `begin` to `end`, times of the monotonic clock, which all processes of the machine share."""
        ...

    def close(self) -> None:
        """Close the opened resources."""
        ...


class _BenchFailure(NamedTuple):
    message: str


class BenchCrew:
    """A process for each role; a context manager that ends the processes.

    The constructor, `run` and `results` raise `CannotMeasure` with the message of an exception in a process.
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
                theirs.close()  # else `recv` would not notice the end of the process
            self.results()
        except BaseException:
            self._end(0.0)
            raise

    def __enter__(self) -> BenchCrew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(_END_SECONDS if error is None else 0.0)  # after an error their results are not needed

    def run(self, seconds: float = 0.0) -> tuple[float, list[Any]]:
        """Run all roles, for `seconds` seconds if they work by time; returns their begin and their results."""
        begin = self.start(seconds)
        return begin, self.results()

    def start(self, seconds: float, begin: float | None = None) -> float:
        """Start all roles at the time `begin`, or soon; returns that time, without waiting for the work."""
        begin = runtime.monotonic() + _AHEAD_SECONDS if begin is None else begin
        for connection in self._connections:
            connection.send((begin, begin + seconds))
        return begin

    def results(self) -> list[Any]:
        """The results of all roles; waits for all of them."""
        results = []
        for connection in self._connections:
            try:
                results.append(connection.recv())
            except EOFError:
                raise CannotMeasure("a process of the benchmark has ended: see its message above") from None
        for result in results:
            if isinstance(result, _BenchFailure):
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
    """Run a role in a child process at each signal, until the parent closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the parent, too, which ends its processes
    logging.getLogger("cq.worker").setLevel(logging.ERROR)  # the benchmark deletes queues of live workers
    keep_no_semaphores()
    runtime.start_thread(exit_with_parent, "parent")
    with suppress(EOFError, ConnectionError):  # the parent has ended
        if not _answer(connection, role.prepare):
            return
        try:
            while True:
                begin, end = connection.recv()
                runtime.sleep(max(0.0, begin - runtime.monotonic()))
                _answer(connection, partial(role.run, begin, end))
        finally:
            role.close()


def _answer(connection: Connection, function: Callable[[], Any]) -> bool:
    """Send the result or the error of a function to the parent; returns whether it succeeded."""
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - the parent raises it again
        message = str(error) if isinstance(error, CqError) else f"{type(error).__name__}: {error}"
        connection.send(_BenchFailure(message))
        return False
    connection.send(result)
    return True
