"""A pseudo-terminal on which tests run commands and read what people see."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress

from tests.cli.conftest import Cli
from tests.kit.processes import SECONDS

CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")
"""The sequences that control colours and the cursor."""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)[0-7](?:;\d+)*m")
"""The sequences that begin a colour."""
HOME = "\x1b[H"


class Terminal:
    """A terminal with a command on it; a context manager that closes the terminal."""

    def __init__(self, cli: Cli, *args: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(*size)
        plain = {
            key: value
            for key, value in cli.environment.items()
            if key not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        settings = {"env": {**plain, "TERM": "xterm-256color", **environment}}
        self.process = cli.start(*args, stdin=theirs, stdout=theirs, stderr=theirs, **settings)
        os.close(theirs)
        self._read = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ours)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def output(self) -> str:
        """Everything that the command prints until it ends."""
        while self._more():
            pass
        self.process.wait(SECONDS)
        return self._read.decode()

    def prompt(self, end: str) -> None:
        """Wait until it has printed a text that ends like this."""
        while not self._read.decode(errors="replace").endswith(end):
            assert self._more(), self._read

    def interrupt(self) -> None:
        """Press ^C until the command ends: the first one may come between its question and its wait for an answer."""
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5.0)

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._ours, text.encode())

    def frame(self, is_wanted: Callable[[list[str]], bool]) -> list[str]:
        """The lines, without control sequences, of the first complete screen that is wanted and not returned yet."""
        while self._more():
            frames = self._read.decode(errors="replace").split(HOME)
            for at, each in enumerate(frames[1:-1], start=1):
                lines = [line.rstrip() for line in plain(each).split("\n")]
                if is_wanted(lines):
                    self._read = HOME.join(frames[at + 1 :]).encode()
                    self._read = HOME.encode() + self._read
                    return lines
        raise AssertionError(f"no such screen: {self._read.decode(errors='replace')}")

    def _more(self) -> bool:
        assert select.select([self._ours], [], [], SECONDS)[0], "the command hangs"
        try:
            found = os.read(self._ours, 65_536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux reports the end so
                raise
            found = b""
        self._read += found
        return bool(found)


def plain(text: str) -> str:
    """The text without control sequences and carriage returns."""
    return CONTROL.sub("", text).replace("\r", "")
