"""Processes that work at common times, after all of them are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from threading import Event
from typing import Any, Final

from cq import runtime
from cq.cli.bench.systems.stored import close_opened
from cq.cli.shared.crew import Crew

# The work begins this long after the signal, which must reach all processes first.
_AHEAD_SECONDS: Final = 0.05

TimedWork = Callable[[float, float], Any]
"""Works from a begin to an end, times of the monotonic clock, which all processes of the machine share."""
BenchRole = Callable[[ExitStack], TimedWork]
"""The role of a process: prepares it, which is not timed, and returns its work. The stack closes its resources."""


class BenchCrew(Crew):
    """Processes with the same kind of role.

    `__enter__`, `run` and `results` raise `ProcessFailed` if a process fails.

    Args:
        what: name of each process, for messages.
        roles: the roles, which are pickled.
    """

    def __init__(self, what: str, roles: Sequence[BenchRole]) -> None:
        super().__init__({f"{what} {number + 1}": role for number, role in enumerate(roles)}, _serve)

    def run(self, seconds: float = 0.0) -> tuple[float, list[Any]]:
        """Run all roles, for `seconds` seconds if they work by time; returns their begin and their results."""
        begin = self.start(seconds)
        return begin, self.results()

    def start(self, seconds: float, begin: float | None = None) -> float:
        """Start all roles at the time `begin`, or soon; returns that time, without waiting for the work."""
        begin = runtime.monotonic() + _AHEAD_SECONDS if begin is None else begin
        for process in self._processes.values():
            with suppress(BrokenPipeError):  # the process has died: `results` reports why
                process.connection.send((begin, begin + seconds))
        return begin

    def results(self) -> list[Any]:
        """The results of all roles; waits for all of them."""
        return [self.receive(name) for name in self._roles]

    def _start_all(self) -> None:
        super()._start_all()
        self.results()  # each process reports when it is ready


def _serve(prepare: BenchRole, stop: Event, parent: Connection) -> None:
    """Run a role in a child process at each signal, until the parent closes its end of the pipe."""
    with suppress(EOFError, ConnectionError), ExitStack() as stack:
        stack.callback(close_opened)
        work = prepare(stack)
        parent.send(None)
        while True:
            begin, end = parent.recv()
            runtime.sleep(max(0.0, begin - runtime.monotonic()))
            parent.send(work(begin, end))
