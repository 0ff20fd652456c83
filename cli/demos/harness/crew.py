"""The processes of a demo: killed at random moments and started again, until each has done its work."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from random import Random
from threading import Event
from typing import Final

from cq import runtime
from cq.cli.shared.crew import Crew
from cq.cli.shared.exit_status import FoundDifference
from cq.cli.shared.processes import wait_for
from cq.errors import CqError

LOOK_SECONDS: Final = 0.1


class DemoFailed(CqError):
    """The demo exceeded its time limit, or its result differs from the recount."""


class DemoDiffers(DemoFailed, FoundDifference):
    """The result of the demo differs from the recount."""


DemoRole = Callable[[Event], object]
"""The work of a process, which ends when it is done or when the event is set.

It is pickled: a method of a dataclass, or a partial of a function. A process may be killed at any line. Another process
then runs the role from the start: it must find the finished work in the store.
"""


def run_role(role: DemoRole, stop: Event, parent: Connection) -> None:
    """Run a role in a process of a `Crew`; reports to the parent when it begins."""
    with suppress(OSError):  # the demo has ended in the meantime
        parent.send(None)
    role(stop)


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
        self._planned = 0.0
        self._next_kill = math.inf

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
            working = sorted(self._processes.keys() - self._starting)
            if self._next_kill <= now < self._spared and working:
                self._kill(self._rng.choice(working))
            wait_for(self._processes.values(), LOOK_SECONDS)
            self._hear()
            for name, process in list(self._processes.items()):
                if process.poll() is not None:
                    while process.wait() != 0:
                        self.receive(name)  # raises the error of the process, after older messages
                    del self._processes[name]
                    self.ended.add(name)

    def _hear(self) -> None:
        """Note which processes have begun their roles; the next kill comes when all have had some time to work.

        Starting takes seconds on a busy machine. With kills in that time, no process would ever get to its work.
        """
        for name in [*self._starting]:
            if self._processes[name].connection.poll():
                self.receive(name)
                self._starting.remove(name)
                if not self.kills and self._kill_every < math.inf:
                    self._next_kill = 0.0  # at once, so that short demos have a kill, too
                elif not self._starting:
                    self._next_kill = max(self._planned, runtime.monotonic() + self._kill_every / 2)

    def spare(self, after: float = 0.0) -> None:
        """Stop killing processes after some seconds."""
        self._spared = runtime.monotonic() + after

    def _start(self, name: str) -> None:
        super()._start(name)
        self._starting.add(name)
        self._next_kill = math.inf

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        if process.wait() == -signal.SIGKILL:  # otherwise it ended by itself just before the kill
            self.kills += 1
            self._planned = runtime.monotonic() + self._kill_every * self._rng.uniform(0.5, 1.5)
            self._start(name)
