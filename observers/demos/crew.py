"""The processes of a demo: killed at random, and started again, until each has done what it is to do."""

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

from cq import machine
from cq.errors import CqError
from cq.observers.demos.errors import DemoFailed
from cq.observers.spawning import end_with_parent, keep_no_semaphores, starting

LOOK_SECONDS: Final = 0.1
STOP_SECONDS: Final = 10.0


class DemoRole(Protocol):
    """What a process does; sent to it by pickle, so it opens there what it needs."""

    def run(self, stop: Event) -> None:
        """Work to the end, or until `stop` is set.

        It may be killed anywhere and is then begun anew in another process: what it has done it must find in the store.
        """
        ...


class DemoCrew:
    """A process for each role; a context manager, which stops them.

    Args:
        roles: by the names that messages use.
        rng: draws who is killed, and when.
        kill_every: after how many seconds on average one is killed, with SIGKILL; infinite for never.

    Attributes:
        kills: how many were killed.
        ended: the names of those that have done all they were to do.
    """

    def __init__(self, roles: Mapping[str, DemoRole], rng: Random, kill_every: float = math.inf) -> None:
        self.kills = 0
        self.ended: set[str] = set()
        self._roles, self._rng, self._kill_every = dict(roles), rng, kill_every
        self._processes: dict[str, SpawnProcess] = {}
        self._last_words: dict[str, Connection] = {}
        self._next_kill = machine.monotonic() + self._pause() / 3  # what is short has one, too

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
        self._stop(STOP_SECONDS if error is None else 0.0)  # what they do is of no use any more

    def run(self, is_done: Callable[[], bool], seconds: float = math.inf) -> None:
        """Keep them running, and kill one now and then, until it is done.

        Args:
            is_done: asked about ten times a second; may as well show how far it is.
            seconds: how long it may take.

        Raises `DemoFailed` when it takes longer, or a process fails.
        """
        until = machine.monotonic() + seconds
        while not is_done():
            now = machine.monotonic()
            if now >= until:
                raise DemoFailed(f"the demo is not done after {seconds:,.0f} s")
            if now >= self._next_kill and self._processes:
                self._kill(self._rng.choice(sorted(self._processes)))
                self._next_kill = machine.monotonic() + self._pause()
            wait([process.sentinel for process in self._processes.values()], LOOK_SECONDS)
            for name, process in list(self._processes.items()):
                if process.exitcode is not None:
                    self._has_ended(name, process)

    def spare(self) -> None:
        """Kill no more."""
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
        if process.exitcode == -signal.SIGKILL:  # else it had just ended by itself
            self.kills += 1
            self._start(name)

    def _has_ended(self, name: str, process: SpawnProcess) -> None:
        if process.exitcode != 0:
            raise DemoFailed(f"the process {name!r} has failed: {self._said(name, process)}")
        del self._processes[name]
        self.ended.add(name)

    def _said(self, name: str, process: SpawnProcess) -> str:
        try:
            return str(self._last_words[name].recv())
        except EOFError:
            return f"exit status {process.exitcode}"

    def _stop(self, seconds: float) -> None:
        for process in self._processes.values():
            process.terminate()
        until = machine.monotonic() + seconds
        for process in self._processes.values():
            process.join(max(0.0, until - machine.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _run(role: DemoRole, last_words: Connection) -> None:
    """In a process of its own: work until all is done, or told to stop, or nobody is left to tell."""
    stop = machine.event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the parent, which ends its processes
    # In a thread: the main one may be holding just the lock that this needs.
    signal.signal(signal.SIGTERM, lambda number, frame: Thread(target=stop.set).start())
    logging.getLogger("cq.worker").setLevel(logging.ERROR)  # that others are gone is meant
    keep_no_semaphores()
    machine.start_thread(end_with_parent, "parent")
    try:
        role.run(stop)
    except CqError as error:
        last_words.send(str(error))
        raise SystemExit(1) from None
