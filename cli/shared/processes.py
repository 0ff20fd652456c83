"""Child processes: started, stopped and restarted by their parent, which each of them notices to end.

The processes are new ones, not forked, because a store's client does not survive a fork.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.connection import Pipe, wait
from types import FrameType
from typing import Final

from cq import runtime
from cq.backoff import delay_after
from cq.observers.telemetry.bus import emit

log = logging.getLogger("cq.worker")

STEADY_SECONDS: Final = 3.0
"""A process that has lived this long has started well: its count of deaths starts again."""
START_SECONDS: Final = 30.0
"""How long a process may take to start. One that ends with an error within this time shows that the command fails."""
_KILL_SECONDS: Final = 5.0  # granted in addition to the grace period before a process is killed
_TURN_SECONDS: Final = 0.1


class Child(subprocess.Popen[bytes]):
    """A process of a command, which notices the end of its parent by `at_end_of_input`.

    Args:
        environment: its environment; None: the one of this process.
        output: where its output and its errors go, as in `subprocess`; None: where those of this process go.
        pass_fds: descriptors of this process that it receives.

    Attributes:
        begun: the time of its start, by the monotonic clock.
        lifeline: a socket to its standard input: each side reads the end of the other one, even if that is killed. Of
            use with `multiprocessing.connection.wait`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        output: int | None = None,
        pass_fds: Collection[int] = (),
    ) -> None:
        self.begun = runtime.monotonic()
        self.lifeline, theirs = socket.socketpair()
        with theirs:
            super().__init__(
                command,
                env=environment,
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                # ^C in a terminal must reach only the parent, which stops its processes in good order.
                start_new_session=True,
            )

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        status = super().wait(timeout)
        self.lifeline.close()
        return status


def end(children: Collection[Child], seconds: float) -> list[Child]:
    """Stop processes in good order; kill and return those that have not ended after `seconds` seconds."""
    for child in children:
        child.terminate()
    deadline = runtime.monotonic() + seconds
    running = list(children)
    while (
        running := [child for child in running if child.poll() is None]
    ) and runtime.monotonic() < deadline:
        # In turns: a process that a child has left behind keeps the child's input open.
        wait(
            [child.lifeline for child in running],
            min(_TURN_SECONDS, max(0.0, deadline - runtime.monotonic())),
        )
    for child in running:
        child.kill()
    for child in children:
        child.wait()
    return running


class _Slot:
    """One of several processes, which may be restarted, and its count of consecutive deaths."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self.deaths = 0
        self.start()

    def start(self) -> None:
        self.child = Child(self._command, self._environment)
        self.due: float | None = None  # the time of its restart

    def died(self) -> float:
        """Record its death; returns the seconds until its restart."""
        steady = runtime.monotonic() - self.child.begun >= STEADY_SECONDS
        self.deaths = 1 if steady else self.deaths + 1
        pause = delay_after(self.deaths)
        self.due = runtime.monotonic() + pause
        return pause


class Processes:
    """Several running processes of one command; a process that dies is restarted.

    Args:
        command: must stop in good order on SIGTERM, and at the end of its standard input.
        environments: one for each process.
        grace: how many seconds a process may take to stop.
        ends: the statuses of processes that are done; a process that ends with another one is restarted.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Iterable[Mapping[str, str]],
        *,
        grace: float,
        ends: Collection[int] = (),
    ) -> None:
        self._command, self._environments, self._grace, self._ends = command, environments, grace, ends
        self._slots: list[_Slot] = []
        self._status = 0  # the highest of those with which processes are done
        self._stopped, self._stop = Pipe(duplex=False)

    def run(self, after_turn: Callable[[], object] = lambda: None) -> int:
        """Keep the processes running until `stop` is called, or all are done.

        If a process ends with an error before any has run for `START_SECONDS`, all are stopped: the command cannot
        run here. Returns the exit status for the parent: that error's, or the highest of the processes that are done.
        Calls `after_turn` after each poll of the processes.
        """
        failed: int | None = None
        try:
            self._slots += (_Slot(self._command, environment) for environment in self._environments)
            while self._slots and failed is None and not self._stopped.poll():
                wait([self._stopped, *(child.lifeline for child in self._children())], _TURN_SECONDS)
                failed = self._poll()
                after_turn()
        finally:
            self._end()
        return self._status if failed is None else failed

    def stop(self) -> None:
        """Make `run` end its processes in good order and return; from any thread."""
        self._stop.close()

    def kill(self) -> None:
        """End the processes at once."""
        for child in self._children():
            child.kill()

    def _children(self) -> list[Child]:
        return [slot.child for slot in self._slots if slot.due is None]

    def _poll(self) -> int | None:
        """Restart dead processes; returns the status of one whose restart would be useless."""
        for slot in list(self._slots):
            if slot.due is not None:
                if runtime.monotonic() >= slot.due:
                    slot.start()
                continue
            if slot.child.poll() is None:
                continue
            status = slot.child.wait()
            if status in self._ends:
                self._slots.remove(slot)
                self._status = max(self._status, status)
            elif status in (1, 2) and not self._is_started():
                return status
            else:
                emit("process_ended", status=status, pause=slot.died())
        return None

    def _is_started(self) -> bool:
        """Whether any process has run for `START_SECONDS`, or has been restarted before."""
        before = runtime.monotonic() - START_SECONDS
        return any(slot.deaths or slot.child.begun <= before for slot in self._slots)

    def _end(self) -> None:
        children = self._children()
        for _ in end(children, self._grace + _KILL_SECONDS):
            log.warning("a worker process has not ended in time: it was killed")
        self._status = max([self._status, *({child.returncode for child in children} & {*self._ends})])


def at_end_of_input(call: Callable[[], object]) -> None:
    """Call a function, in a thread, at the end of standard input; for a `Child`, that is the end of its parent."""

    def read() -> None:
        while os.read(0, 4096):
            pass
        call()

    runtime.start_thread(read, "input")


def stop_on_signals(stop: Callable[[], object], end: Callable[[], object] = lambda: None) -> None:
    """Stop at the first SIGTERM or SIGINT; end the process at the second, after `end`."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, second)
        signal.signal(signal.SIGINT, second)
        # In a thread: the signal may have interrupted the main thread while it holds a lock that `stop` needs.
        threading.Thread(target=stop).start()

    def second(number: int, frame: FrameType | None) -> None:
        end()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, first)
    signal.signal(signal.SIGINT, first)
