"""The processes of a demo: killed at random moments and started again, until each has done its work."""

from __future__ import annotations

import logging
import math
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from random import Random
from threading import Event, Thread
from types import TracebackType
from typing import Final, Protocol

from cq import runtime
from cq.cli.demos.crew.errors import DemoFailed
from cq.errors import CqError
from cq.observers.worker.spawn import exit_with_parent, keep_no_semaphores, starting

LOOK_SECONDS: Final = 0.1
STOP_SECONDS: Final = 10.0


class DemoRole(Protocol):
    """The work of a process. It is pickled, and opens its resources in the process."""

    def run(self, stop: Event) -> None:
        """Work to the end, or until `stop` is set.

        A process may be killed at any line. Another process then runs the role from the start: it must find the
        finished work in the store.
        """
        ...


class DemoCrew:
    """A process for each role; a context manager that stops the processes.

    Args:
        roles: {name for messages: role}.
        rng: random source of the kills.
        kill_every: average seconds between two kills by SIGKILL; infinite: no kills.

    Attributes:
        kills: number of killed processes.
        ended: names of the roles that have done all their work.
    """

    def __init__(self, roles: Mapping[str, DemoRole], rng: Random, kill_every: float = math.inf) -> None:
        self.kills = 0
        self.ended: set[str] = set()
        self._roles, self._rng, self._kill_every = dict(roles), rng, kill_every
        self._processes: dict[str, SpawnProcess] = {}
        self._last_words: dict[str, Connection] = {}
        # Early, so that short demos have a kill, too.
        self._next_kill = runtime.monotonic() + self._pause() / 3

    def __enter__(self) -> DemoCrew:
        try:
            for name in self._roles:
                self._start(name)
        except BaseException:
            self._stop(0.0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop(STOP_SECONDS if error is None else 0.0)  # after an error their work is not needed

    def run(self, is_done: Callable[[], bool], seconds: float = math.inf) -> None:
        """Keep the processes running, and kill some of them, until `is_done`.

        Args:
            is_done: called about ten times per second; it may also show progress.
            seconds: time limit.

        Raises `DemoFailed` after the time limit, or if a process fails.
        """
        until = runtime.monotonic() + seconds
        while not is_done():
            now = runtime.monotonic()
            if now >= until:
                raise DemoFailed(f"the demo is not done after {seconds:,.0f} s")
            if now >= self._next_kill and self._processes:
                self._kill(self._rng.choice(sorted(self._processes)))
                self._next_kill = runtime.monotonic() + self._pause()
            wait([process.sentinel for process in self._processes.values()], LOOK_SECONDS)
            for name, process in list(self._processes.items()):
                if process.exitcode is not None:
                    self._has_ended(name, process)

    def spare(self) -> None:
        """Stop killing processes."""
        self._kill_every = self._next_kill = math.inf

    def _pause(self) -> float:
        return math.inf if math.isinf(self._kill_every) else self._kill_every * self._rng.uniform(0.5, 1.5)

    def _start(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._last_words[name], theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(self._roles[name], theirs), name=name, daemon=True)
        with starting():
            process.start()
            self._processes[name] = process
        theirs.close()

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:  # otherwise it ended by itself just before the kill
            self.kills += 1
            self._start(name)

    def _has_ended(self, name: str, process: SpawnProcess) -> None:
        if process.exitcode != 0:
            raise DemoFailed(f"the process {name!r} has failed: {self._reason(name, process)}")
        del self._processes[name]
        self.ended.add(name)

    def _reason(self, name: str, process: SpawnProcess) -> str:
        try:
            return str(self._last_words[name].recv())
        except EOFError:
            return f"exit status {process.exitcode}"

    def _stop(self, seconds: float) -> None:
        for process in self._processes.values():
            process.terminate()
        until = runtime.monotonic() + seconds
        for process in self._processes.values():
            process.join(max(0.0, until - runtime.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _run(role: DemoRole, last_words: Connection) -> None:
    """Run a role in a child process, until its work is done, SIGTERM, or the end of the parent."""
    stop = runtime.event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the parent, too, which ends its processes
    # In a thread: the signal may interrupt the main thread while it holds the lock of `stop`.
    signal.signal(signal.SIGTERM, lambda number, frame: Thread(target=stop.set).start())
    logging.getLogger("cq.worker").setLevel(logging.ERROR)  # warnings about dead workers are expected
    keep_no_semaphores()
    runtime.start_thread(exit_with_parent, "parent")
    try:
        role.run(stop)
    except CqError as error:
        last_words.send(str(error))
        raise SystemExit(1) from None
