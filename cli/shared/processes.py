"""Child processes: started, stopped and restarted by their parent, which each of them notices to end.

The processes are new ones, not forked, because a store's client does not survive a fork. Those of benchmarks and demos
do the work of roles, which their parent gives them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from threading import Event
from types import FrameType
from typing import Any, Final, NamedTuple, Self

from cq import runtime
from cq.backoff import delay_after
from cq.errors import CqError
from cq.observers.telemetry.bus import emit

log = logging.getLogger("cq.worker")

STEADY_SECONDS: Final = 3.0
"""A process that has lived this long has started well: its count of deaths starts again."""
START_SECONDS: Final = 30.0
"""How long a process may take to start. One that ends with an error within this time shows that the command fails."""
_KILL_SECONDS: Final = 5.0  # granted in addition to the grace period before a process is killed
_TURN_SECONDS: Final = 0.1


class Child(subprocess.Popen[bytes]):
    """A process of a command, which can notice the end of its parent by `at_end_of_input`; settings are of `Popen`.

    Attributes:
        begun: the time of its start, by the monotonic clock.
        lifeline: a socket to its standard input, for `multiprocessing.connection.wait`: each side reads the end of the
            other one, even if that is killed.
    """

    def __init__(self, command: Sequence[str], **settings: Any) -> None:
        self.begun = runtime.monotonic()
        self.lifeline, theirs = socket.socketpair()
        with theirs:
            # In its own session: ^C in a terminal must reach only the parent, which stops its processes in good order.
            super().__init__(command, stdin=theirs.fileno(), start_new_session=True, **settings)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        status = super().wait(timeout)
        self.lifeline.close()
        return status


def wait_for(children: Iterable[Child], seconds: float, others: Sequence[Any] = ()) -> None:
    """Wait until one of these processes ends, or one of the other objects is ready, for up to `seconds` seconds.

    The other objects are those of `multiprocessing.connection.wait`. A process whose end is known has no lifeline.
    """
    wait([*others, *(each.lifeline for each in children if each.returncode is None)], seconds)


def end(children: Collection[Child], seconds: float) -> list[Child]:
    """Stop processes in good order; kill and return those that have not ended after `seconds` seconds."""
    for child in children:
        child.terminate()
    until = runtime.monotonic() + seconds
    while (late := [each for each in children if each.poll() is None]) and runtime.monotonic() < until:
        # In turns: a process that a child has left behind keeps the child's input open.
        wait_for(late, min(_TURN_SECONDS, seconds))
    for child in late:
        child.kill()
    for child in children:
        child.wait()
    return late


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
        environments: Sequence[Mapping[str, str]],
        *,
        grace: float,
        ends: Collection[int] = (),
    ) -> None:
        self._command, self._environments, self._grace, self._ends = command, environments, grace, ends
        self._running: dict[int, Child] = {}  # by their places in `environments`, as are the following two
        self._due: dict[int, float] = {}  # the times of restarts
        self._deaths: Counter[int] = Counter()  # consecutive ones
        self._status = 0  # the highest of those with which processes are done
        self._stopped, self._stop = Pipe(duplex=False)

    def run(self, after_turn: Callable[[], object] = lambda: None) -> int:
        """Keep the processes running until `stop` is called, or all are done.

        If a process ends with an error before any has run for `START_SECONDS`, all are stopped: the command cannot
        run here. Returns the exit status for the parent: that of the error, or the highest of all ended processes.
        Calls `after_turn` after each poll of the processes.
        """
        failed: int | None = None
        try:
            for place in range(len(self._environments)):
                self._start(place)
            while (self._running or self._due) and failed is None and not self._stopped.poll():
                wait_for(self._running.values(), _TURN_SECONDS, [self._stopped])
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
        for child in list(self._running.values()):
            child.kill()

    def _start(self, place: int) -> None:
        self._running[place] = Child(self._command, env=self._environments[place])

    def _poll(self) -> int | None:
        """Restart dead processes; returns the status of one whose restart would be useless."""
        for place, child in list(self._running.items()):
            if child.poll() is None:
                continue
            status = child.wait()
            if status in self._ends:
                self._status = max(self._status, status)
            elif status in (1, 2) and not self._is_started():
                return status
            else:
                emit("process_ended", status=status, pause=self._restart_later(place, child))
            del self._running[place]
        for place, due in list(self._due.items()):
            if runtime.monotonic() >= due:
                del self._due[place]
                self._start(place)
        return None

    def _restart_later(self, place: int, dead: Child) -> float:
        """Plan the restart of a dead process; returns the seconds until it."""
        steady = runtime.monotonic() - dead.begun >= STEADY_SECONDS
        self._deaths[place] = 1 if steady else self._deaths[place] + 1
        pause = delay_after(self._deaths[place])
        self._due[place] = runtime.monotonic() + pause
        return pause

    def _is_started(self) -> bool:
        """Whether any process has run for `START_SECONDS`, or has been restarted before."""
        before = runtime.monotonic() - START_SECONDS
        return bool(self._deaths) or any(child.begun <= before for child in self._running.values())

    def _end(self) -> None:
        children = self._running.values()
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


def end_signals() -> list[signal.Signals]:
    """The signals that ask for an end: SIGTERM, SIGINT, and SIGHUP of a closed terminal, unless `nohup` ignores it."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *(() if is_ignored else (signal.SIGHUP,))]


def stop_on_signals(stop: Callable[[], object], end: Callable[[], object] = lambda: None) -> None:
    """Stop at the first of `end_signals`; end the process at a second SIGTERM or SIGINT, after `end`."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, second)
        signal.signal(signal.SIGINT, second)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell and its terminal send one each
        # In a thread: the signal may have interrupted the main thread while it holds a lock that `stop` needs.
        threading.Thread(target=stop).start()

    def second(number: int, frame: FrameType | None) -> None:
        end()
        os._exit(128 + number)

    for number in end_signals():
        signal.signal(number, first)


STOP_SECONDS: Final = 10.0
_PROGRAM: Final = """
import sys
sys.path[:] = sys.argv[3:]
from cq.cli.shared.processes import run_role
run_role(int(sys.argv[2]))
"""

Work = Callable[[Any, Event, Connection], object]
"""The work of a process: called with its role, an event that is set to stop it, and a connection to the parent."""


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
