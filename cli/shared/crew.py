"""The child processes of benchmarks and demos: each does the work of a role, which its parent gives it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from threading import Event
from typing import Any, Final, NamedTuple, Self

from cq import runtime
from cq.cli.shared.processes import Child, at_end_of_input, end, stop_on_signals
from cq.errors import CqError

STOP_SECONDS: Final = 10.0
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[3:]
from cq.cli.shared.crew import run_role
run_role(int(sys.argv[2]))
"""

Work = Callable[[Any, Event, Connection], object]
"""What a process does, given its role, an event that is set when it must stop, and a connection to the parent."""


class ProcessFailed(CqError):
    """A child process has failed; the message has the reason."""


class _Failure(NamedTuple):
    message: str


class RoleProcess(Child):
    """A process that does the work of a role.

    Attributes:
        connection: the connection to the process.
    """

    def __init__(self, name: str, work: Work, role: Any) -> None:
        self.connection, theirs = Pipe()
        with theirs:  # as long as this process has it open, `recv` cannot notice the child's death
            descriptor = theirs.fileno()
            # With -P and the path: no module of the current folder is imported that this process would not import.
            command = [sys.executable, "-P", "-c", _PROGRAM, name, str(descriptor), *sys.path]
            super().__init__(command, pass_fds=[descriptor])
        with suppress(ConnectionError):  # it has died: `Crew.receive` reports why
            self.connection.send((work, role))


class Crew:
    """A process for each role; a context manager that ends the processes.

    Args:
        roles: {name for messages: role}; roles are pickled, and open their resources in the process.
        work: a function of a module, which is imported in the process.
    """

    def __init__(self, roles: Mapping[str, Any], work: Work) -> None:
        self._roles, self._work = dict(roles), work
        self._processes: dict[str, RoleProcess] = {}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self._stop(0.0)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._stop(STOP_SECONDS if error is None else 0.0)  # after an error their work is not needed

    def is_any_alive(self) -> bool:
        """Whether a process is running."""
        return any(process.poll() is None for process in self._processes.values())

    def receive(self, name: str) -> Any:
        """The next message of a process; raises `ProcessFailed` with its error, also if it has died."""
        try:
            message = self._processes[name].connection.recv()
        except (EOFError, ConnectionError):
            message = _Failure(f"exit status {self._processes[name].wait()}")
        if isinstance(message, _Failure):
            raise ProcessFailed(f"the process {name!r} has failed: {message.message}")
        return message

    def _start_all(self) -> None:
        for name in self._roles:
            self._start(name)

    def _start(self, name: str) -> None:
        self._processes[name] = RoleProcess(name, self._work, self._roles[name])

    def _stop(self, seconds: float) -> None:
        for process in self._processes.values():
            process.connection.close()  # ends a process that waits for a message
        end(self._processes.values(), seconds)


def run_role(descriptor: int) -> None:
    """Do the work of a role, in a `RoleProcess`, until its end, SIGTERM, or the end of the parent."""
    stop, parent = runtime.event(), Connection(descriptor)
    stop_on_signals(stop.set)
    at_end_of_input(partial(os._exit, 1))
    # Warnings are expected: demos kill workers, and the benchmark deletes queues of running workers.
    logging.getLogger("cq.worker").setLevel(logging.ERROR)
    # The binding creates a semaphore for each thread that waits for a cluster. With this start method it loses its name
    # at once, and ends with the process, even if that is killed. This process never forks.
    multiprocessing.set_start_method("fork", force=True)
    try:
        work, role = parent.recv()
    except EOFError:
        return  # the parent was interrupted while it started this process
    try:
        work(role, stop, parent)
    except Exception as error:
        message = str(error) if isinstance(error, CqError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the parent may have closed its end, because it stops the processes
            parent.send(_Failure(message))
        if isinstance(error, CqError):
            raise SystemExit(1) from None
        raise  # a bug: its traceback is needed
