"""The child processes of benchmarks and demos: started, heard, restarted and stopped by their parent."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from cq import runtime
from cq.errors import CqError
from cq.observers.worker.spawn import exit_with_parent, keep_no_semaphores, starting

STOP_SECONDS: Final = 10.0

Work = Callable[[Any, Event, Connection], object]
"""What a process does, given its role, an event that is set when it must stop, and a connection to the parent."""


class ProcessFailed(CqError):
    """A child process has failed; the message has the reason."""


class _Failure(NamedTuple):
    message: str


class Crew:
    """A process for each role; a context manager that ends the processes.

    Args:
        roles: {name for messages: role}; roles are pickled, and open their resources in the process.
        work: a function of a module, which is imported in the process.
    """

    def __init__(self, roles: Mapping[str, Any], work: Work) -> None:
        self._roles, self._work = dict(roles), work
        self._processes: dict[str, SpawnProcess] = {}
        self._connections: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self._stop(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop(STOP_SECONDS if error is None else 0.0)  # after an error their work is not needed

    def is_any_alive(self) -> bool:
        """Whether a process is running."""
        return any(process.is_alive() for process in self._processes.values())

    def receive(self, name: str) -> Any:
        """The next message of a process; raises `ProcessFailed` with its error, also if it has died."""
        try:
            message = self._connections[name].recv()
        except (EOFError, ConnectionError):
            process = self._processes[name]
            process.join()
            message = _Failure(f"exit status {process.exitcode}")
        if isinstance(message, _Failure):
            raise ProcessFailed(f"the process {name!r} has failed: {message.message}")
        return message

    def _start_all(self) -> None:
        for name in self._roles:
            self._start(name)

    def _start(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = self._work, self._roles[name], theirs
        process = context.Process(target=_run, args=arguments, name=name, daemon=True)
        with starting():
            process.start()
            self._processes[name], self._connections[name] = process, ours
        theirs.close()  # as long as this process has the other end open, `recv` cannot notice the child's death

    def _stop(self, seconds: float) -> None:
        for name, process in self._processes.items():
            process.terminate()
            self._connections[name].close()  # ends a process that waits for a message
        until = runtime.monotonic() + seconds
        for process in self._processes.values():
            process.join(max(0.0, until - runtime.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _run(work: Work, role: Any, parent: Connection) -> None:
    """Do the work of a role in a child process, until its end, SIGTERM, or the end of the parent."""
    stop = runtime.event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the parent, too, which ends its processes
    # In a thread: the signal may interrupt the main thread while it holds the lock of `stop`.
    signal.signal(signal.SIGTERM, lambda number, frame: Thread(target=stop.set).start())
    # Warnings are expected: demos kill workers, and the benchmark deletes queues of running workers.
    logging.getLogger("cq.worker").setLevel(logging.ERROR)
    keep_no_semaphores()
    runtime.start_thread(exit_with_parent, "parent")
    try:
        work(role, stop, parent)
    except Exception as error:
        message = str(error) if isinstance(error, CqError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the parent may have closed its end, because it stops the processes
            parent.send(_Failure(message))
        if isinstance(error, CqError):
            raise SystemExit(1) from None
        raise  # a bug: its traceback is needed
