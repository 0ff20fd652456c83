"""The processes of a demo: killed at random moments and started again, until each has done its work."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from random import Random
from threading import Event
from typing import Final, Protocol

from cq import runtime
from cq.cli.shared.crew import Crew
from cq.errors import CqError

LOOK_SECONDS: Final = 0.1


class DemoFailed(CqError):
    """The demo exceeded its time limit, or its result differs from the recount."""


class DemoRole(Protocol):
    """The work of a process. It is pickled, and opens its resources in the process."""

    def run(self, stop: Event) -> None:
        """Work to the end, or until `stop` is set.

        A process may be killed at any line. Another process then runs the role from the start: it must find the
        finished work in the store.
        """
        ...


def run_role(role: DemoRole, stop: Event, parent: Connection) -> None:
    """Run a role in a process of a `Crew`; reports to the parent when it begins."""
    parent.send(None)
    role.run(stop)


class DemoCrew(Crew):
    """Processes that are killed and started again.

    Args:
        roles: {name for messages: role}.
        rng: random source of the kills.
        kill_every: average seconds between two kills by SIGKILL; infinite: no kills.

    Attributes:
        kills: number of killed processes.
        ended: names of the roles that have done all their work.
    """

    def __init__(self, roles: Mapping[str, DemoRole], rng: Random, kill_every: float = math.inf) -> None:
        super().__init__(roles, run_role)
        self.kills = 0
        self.ended: set[str] = set()
        self._rng, self._kill_every = rng, kill_every
        self._spared = math.inf
        self._starting: set[str] = set()
        self._next_kill = math.inf
        # Early, so that short demos have a kill, too.
        self._next_pause = self._pause() / 3

    def run(self, is_done: Callable[[], bool], seconds: float = math.inf) -> None:
        """Keep the processes running, and kill some of them, until `is_done`.

        Args:
            is_done: called about ten times per second; it may also show progress.
            seconds: time limit.

        Raises `DemoFailed` after the time limit, and `ProcessFailed`.
        """
        until = runtime.monotonic() + seconds
        while not is_done():
            now = runtime.monotonic()
            if now >= until:
                raise DemoFailed(f"the demo is not done after {seconds:,.0f} s")
            if self._next_kill <= now < self._spared and self._processes:
                self._kill(self._rng.choice(sorted(self._processes)))
            wait([process.sentinel for process in self._processes.values()], LOOK_SECONDS)
            self._hear()
            for name, process in list(self._processes.items()):
                if process.exitcode is not None:
                    while process.exitcode != 0:
                        self.receive(name)  # raises the error of the process, after older messages
                    del self._processes[name]
                    self.ended.add(name)

    def _hear(self) -> None:
        """Note which processes have begun their roles; plan the next kill when all have.

        Starting takes seconds on a busy machine. With kills in that time, no process would ever get to its work.
        """
        for name in [*self._starting]:
            if self._connections[name].poll():
                self.receive(name)
                self._starting.remove(name)
                if not self._starting:
                    self._next_kill = runtime.monotonic() + self._next_pause
                    self._next_pause = self._pause()

    def spare(self, after: float = 0.0) -> None:
        """Stop killing processes after some seconds."""
        self._spared = runtime.monotonic() + after

    def _pause(self) -> float:
        return math.inf if math.isinf(self._kill_every) else self._kill_every * self._rng.uniform(0.5, 1.5)

    def _start(self, name: str) -> None:
        super()._start(name)
        self._starting.add(name)
        self._next_kill = math.inf

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:  # otherwise it ended by itself just before the kill
            self.kills += 1
            self._start(name)
