"""Other processes that tests start: programs, and Python with code of a test."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 150.0
"""After which a process hangs: far more than any of these takes."""


class Outcome(NamedTuple):
    """How a process ended, and what it printed."""

    status: int
    out: str
    err: str

    def rows(self) -> list[Any]:
        """Its output as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


def ended(process: subprocess.Popen[bytes], stdin: bytes = b"") -> Outcome:
    """Wait for the end of a process, and return all that it printed to pipes."""
    out, err = process.communicate(stdin, timeout=SECONDS)
    return Outcome(process.returncode, (out or b"").decode(), (err or b"").decode())


def wait_until(
    holds: Callable[[], object], *running: subprocess.Popen[bytes], seconds: float = SECONDS
) -> None:
    """Wait until this holds, while these processes run; fails after some seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it does not hold after {seconds:,.0f} s"
        assert [process for process in running if process.poll() is not None] == []
        time.sleep(0.01)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process at once."""
    process.kill()
    process.communicate()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process until it gets SIGCONT; returns once it is stopped or has died, as a signal takes time to act."""
    process.send_signal(signal.SIGSTOP)
    with suppress(ChildProcessError):  # it has died meanwhile
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def wait_for_line(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Read the lines of a process on standard error until one has this text."""
    assert process.stderr is not None
    limit = threading.Timer(SECONDS, process.kill)  # ends the lines, too
    limit.start()
    is_there = any(text in line for line in process.stderr)
    limit.cancel()
    assert is_there, f"it ended with {process.wait()} and has not said {text!r}"


class StartedProcesses:
    """Starts processes; a context manager that kills those that are left.

    Args:
        folder: their current folder.
        environment: variables of their environment, in addition to those of this process.
    """

    def __init__(self, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._started:
            kill(process)

    def launch(self, *command: str | bytes, **settings: Any) -> subprocess.Popen[bytes]:
        """A process of a program, with pipes for what it prints unless the settings of `Popen` say otherwise."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        settings = {"cwd": self.folder, "env": self.environment, **pipes, **settings}
        self._started.append(subprocess.Popen(command, **settings))
        return self._started[-1]

    def python(self, *args: object, **settings: Any) -> subprocess.Popen[bytes]:
        """A process of Python with these arguments."""
        return self.launch(sys.executable, *map(str, args), **settings)


def run_program(*command: str | bytes, **settings: Any) -> Outcome:
    """Run a program to its end, with settings of `Popen`; its output is read unless they say otherwise."""
    with StartedProcesses() as processes:
        return ended(processes.launch(*command, **settings))


def run_code(code: str, *args: object, **settings: Any) -> Outcome:
    """Run code in a Python of its own, to its end."""
    return run_program(sys.executable, "-c", code, *map(str, args), **settings)


@contextmanager
def another_process(code: str, *args: object) -> Iterator[int]:
    """A process from its first line of output on, until it may end, which its standard input says; its number."""
    with StartedProcesses() as processes:
        process = processes.python("-c", code, *args, stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        ended(process)


def free_ports(number: int = 1) -> int:
    """The first of `number` successive ports of 127.0.0.1 on which no program listens.

    They lie below those that systems give to other connections and to programs that ask for any port, so another
    process is not likely to get one before the caller listens on it.
    """
    while True:
        first = 10_000 + secrets.randbelow(20_000)
        with ExitStack() as opened, suppress(OSError):
            for port in range(first, first + number):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
