"""Several worker processes under a parent that starts those again that die.

The processes are started afresh, not forked off: nothing that a store's client has opened survives a fork. Each has a
pipe for its standard input that ends with the parent, however that ends.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cq.observers.telemetry.bus import emit

log = logging.getLogger("cq.worker")

FIRST_SECONDS: Final = 0.2
LAST_SECONDS: Final = 5.0
"""The pauses before a process that died is started again: they double with each death in a row."""
STEADY_SECONDS: Final = 3.0
"""A process that has lived for so long has started well: deaths are counted anew."""
_KILL_SECONDS: Final = 5.0  # what a process gets beyond its time to end
_LOOK_SECONDS: Final = 0.1


class _ProcessSlot:
    """One of the processes, and how often it has died in a row."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self.process: subprocess.Popen[bytes] | None = None
        self.begun = 0.0
        self.again = 0.0
        self.deaths = 0

    def start(self) -> None:
        # In a session of its own: ^C in a terminal is for the parent, which stops its processes in good order.
        self.process = subprocess.Popen(  # noqa: S603 - the command is the caller's
            self._command, env=self._environment, stdin=subprocess.PIPE, start_new_session=True
        )
        self.begun = time.monotonic()

    def died(self) -> float:
        """It has died; returns after how many seconds it is to be started again."""
        steady = time.monotonic() - self.begun >= STEADY_SECONDS
        self.deaths = 1 if steady else self.deaths + 1
        pause: float = min(LAST_SECONDS, FIRST_SECONDS * 2.0 ** (self.deaths - 1))
        self.process, self.again = None, time.monotonic() + pause
        return pause


class Processes:
    """Runs so many processes of one command.

    Args:
        command: which is to stop in good order on SIGTERM, and at the end of its standard input.
        environments: one for each process.
        grace: how many seconds it takes to stop at most.
        may_end: whether a process that ends with status 0 has done all that it was to do; else it is started again.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        grace: float,
        may_end: bool = False,
    ) -> None:
        self._places = [_ProcessSlot(command, environment) for environment in environments]
        self._grace, self._may_end = grace, may_end
        self._stopping = threading.Event()

    def run(self, after_turn: Callable[[], object] = lambda: None) -> int:
        """Keep them running until `stop` is called, or all have ended by themselves with status 0.

        A process that ends with an error before any has run for long ends all: nothing would become of the others.
        Returns the exit status for the parent. `after_turn` is called after each look at them.
        """
        for place in self._places:
            place.start()
        try:
            while not self._stopping.wait(_LOOK_SECONDS):
                status = self._look()
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
        for place in self._places:
            if place.process is not None:
                place.process.kill()

    def _look(self) -> int | None:
        """Start those that have died again; returns an exit status when that is of no use."""
        for place in list(self._places):
            if place.process is None:
                if time.monotonic() >= place.again:
                    place.start()
                continue
            status = place.process.poll()
            if status is None:
                continue
            if status == 0 and self._may_end:
                self._places.remove(place)
            elif status in (1, 2) and not self._is_steady():
                return status
            else:
                pause = place.died()
                emit("process_ended", status=status, pause=pause)
        return None if self._places else 0

    def _is_steady(self) -> bool:
        """Whether any process has run for long."""
        return any(place.deaths or time.monotonic() - place.begun >= STEADY_SECONDS for place in self._places)

    def _end(self) -> None:
        running = [place.process for place in self._places if place.process is not None]
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
