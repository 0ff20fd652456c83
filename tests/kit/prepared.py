"""The command `cq` without the time that Python takes to import it: each run is a fork of a process that has done so.

`python -m tests.kit.prepared SOCKET` is this process. A `client` is run in place of `cq`: it passes on its arguments,
folder, environment, standard streams and signals, and ends as the command does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

import cq.observers.tasks
import cq.observers.worker
from cq.cli.main import command_line, main

_CLIENT: Final = """
import json, os, signal, socket, sys
forwarded = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
server = socket.socket(socket.AF_UNIX)
server.connect(SOCKET)
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
server.sendall(asked)
answers = server.makefile("rb")
pid = int(answers.readline())
for each in forwarded:
    signal.signal(each, lambda number, frame: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
status = int(answers.readline())
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def client(path: Path) -> str:
    """An executable file that has the process at this socket run `cq`."""
    return f"#!{sys.executable} -IS\nSOCKET = {str(path)!r}\n{_CLIENT}"


@contextmanager
def prepared() -> Iterator[Path]:
    """The process, until the end of the block; its socket."""
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket is short
        path = Path(folder, "cq")
        command = [sys.executable, "-m", "tests.kit.prepared", str(path)]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield path
            process.kill()


def _serve(path: str) -> None:
    """Returns in each fork that is to run the command."""
    line: Any = get_command(command_line())
    dict(line.commands)  # imports the modules of all commands
    for package in (cq.observers.tasks, cq.observers.worker):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    gc.freeze()  # else a collection in a fork copies all pages
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(16)
    print("ready", flush=True)  # noqa: T201
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return _answer(connection)
        connection.close()
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _answer(connection: socket.socket) -> None:
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as asked:
        arguments, folder, environment = json.loads(asked.read(int.from_bytes(size, "big")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["cq", *arguments]
        return
    for stream in streams:
        os.close(stream)
    connection.sendall(b"%d\n" % pid)
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:  # the client was killed
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % status)
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
    main()
