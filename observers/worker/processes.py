"""Several worker processes under a parent process that restarts those that die.

The processes are spawned, not forked, because a store's client does not survive a fork. Each reads a pipe as its
standard input; the pipe closes when the parent ends, even if the parent is killed.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from cq.backoff import delay_after
from cq.observers.telemetry.bus import emit

log = logging.getLogger("cq.worker")

STEADY_SECONDS: Final = 3.0
"""A process that has lived this long has started well: its count of deaths starts again."""
START_SECONDS: Final = 30.0
"""How long a process may take to start. One that ends with an error within this time shows that the command fails."""
_KILL_SECONDS: Final = 5.0  # granted in addition to the grace period before a process is killed
_POLL_SECONDS: Final = 0.1


class _ProcessSlot:
    """One of the processes, which may be restarted, and its count of consecutive deaths."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self.process: subprocess.Popen[bytes] | None = None
        self.begun = 0.0
        self.again = 0.0
        self.deaths = 0

    def start(self) -> None:
        # In its own session: ^C in a terminal must reach only the parent, which stops its processes in good order.
        self.process = subprocess.Popen(  # noqa: S603 - the command is the caller's
            self._command, env=self._environment, stdin=subprocess.PIPE, start_new_session=True
        )
        self.begun = time.monotonic()

    def died(self) -> float:
        """Record its death; returns the seconds until its restart."""
        steady = time.monotonic() - self.begun >= STEADY_SECONDS
        self.deaths = 1 if steady else self.deaths + 1
        pause = delay_after(self.deaths)
        self.process, self.again = None, time.monotonic() + pause
        return pause


class Processes:
    """Several running processes of one command.

    Args:
        command: must stop in good order on SIGTERM, and at the end of its standard input.
        environments: one for each process.
        grace: how many seconds a process may take to stop.
        ends: the statuses of processes that are done; a process that ends with another one is restarted.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        grace: float,
        ends: Collection[int] = (),
    ) -> None:
        self._slots = [_ProcessSlot(command, environment) for environment in environments]
        self._grace, self._ends = grace, ends
        self._status = 0  # the highest of those with which processes are done
        self._stopping = threading.Event()

    def run(self, after_turn: Callable[[], object] = lambda: None) -> int:
        """Keep the processes running until `stop` is called, or all are done.

        If a process ends with an error before any has run for `START_SECONDS`, all are stopped: the command cannot
        run here. Returns the exit status for the parent: that error's, or the highest of the processes that are done.
        Calls `after_turn` after each poll of the processes.
        """
        for slot in self._slots:
            slot.start()
        failed: int | None = None
        try:
            while self._slots and failed is None and not self._stopping.wait(_POLL_SECONDS):
                failed = self._poll()
                after_turn()
        finally:
            self._end()
        return self._status if failed is None else failed

    def stop(self) -> None:
        """Make `run` end its processes in good order and return; from any thread."""
        self._stopping.set()

    def kill(self) -> None:
        """End the processes at once."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()

    def _poll(self) -> int | None:
        """Restart dead processes; returns the status of one whose restart would be useless."""
        for slot in list(self._slots):
            if slot.process is None:
                if time.monotonic() >= slot.again:
                    slot.start()
                continue
            status = slot.process.poll()
            if status is None:
                continue
            if status in self._ends:
                self._slots.remove(slot)
                self._status = max(self._status, status)
            elif status in (1, 2) and not self._is_started():
                return status
            else:
                pause = slot.died()
                emit("process_ended", status=status, pause=pause)
        return None

    def _is_started(self) -> bool:
        """Whether any process has run for `START_SECONDS`, or has been restarted before."""
        return any(slot.deaths or time.monotonic() - slot.begun >= START_SECONDS for slot in self._slots)

    def _end(self) -> None:
        running = [slot.process for slot in self._slots if slot.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + self._grace + _KILL_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("a worker process has not ended in time: it is killed")
                process.kill()
                process.wait()
            if process.returncode in self._ends:
                self._status = max(self._status, process.returncode)
