"""Several worker processes under a parent process that restarts those that die.

The processes are spawned, not forked, because a store's client does not survive a fork. Each reads a pipe as its
standard input; the pipe closes when the parent ends, even if the parent is killed.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
        may_end: whether a process that ends with status 0 is done; else it is restarted.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        grace: float,
        may_end: bool = False,
    ) -> None:
        self._slots = [_ProcessSlot(command, environment) for environment in environments]
        self._grace, self._may_end = grace, may_end
        self._stopping = threading.Event()

    def run(self, after_turn: Callable[[], object] = lambda: None) -> int:
        """Keep the processes running until `stop` is called, or all have ended by themselves with status 0.

        If a process ends with an error before any has run for `START_SECONDS`, all are stopped: the command cannot
        run here. Returns the exit status for the parent. Calls `after_turn` after each poll of the processes.
        """
        for slot in self._slots:
            slot.start()
        try:
            while not self._stopping.wait(_POLL_SECONDS):
                status = self._poll()
                if status is not None:
                    return status
                after_turn()
            return 0
        finally:
            self._end()

    def stop(self) -> None:
        """Make `run` end its processes in good order and return; from any thread."""
        self._stopping.set()

    def kill(self) -> None:
        """End the processes at once."""
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()

    def _poll(self) -> int | None:
        """Restart dead processes; returns the parent's exit status if a restart would be useless."""
        for slot in list(self._slots):
            if slot.process is None:
                if time.monotonic() >= slot.again:
                    slot.start()
                continue
            status = slot.process.poll()
            if status is None:
                continue
            if status == 0 and self._may_end:
                self._slots.remove(slot)
            elif status in (1, 2) and not self._is_started():
                return status
            else:
                pause = slot.died()
                emit("process_ended", status=status, pause=pause)
        return None if self._slots else 0

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
