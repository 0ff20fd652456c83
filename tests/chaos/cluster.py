"""A FoundationDB cluster of several processes on this machine, which can be killed and stopped one by one."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.kit.processes import free_ports

PROCESSES: Final = 5
COORDINATORS: Final = 3
SECONDS: Final = 120.0
"""After which a cluster that does not answer never will."""


class Cluster:
    """The cluster, with double redundancy: it survives the loss of any one process. One process has single redundancy.

    Args:
        server: path of `fdbserver`; `fdbcli` is beside it or on the path.
        folder: an empty folder for its data.
        processes: the number of its processes.
        tls: options of `fdbserver` and `fdbcli` with the certificates; empty without TLS.
    """

    def __init__(
        self, server: Path, folder: Path, processes: int = PROCESSES, tls: Sequence[str] = ()
    ) -> None:
        self._server, self._folder, self._tls = server, folder, tls
        beside = server.with_name("fdbcli")
        self._cli = str(beside) if beside.exists() else shutil.which("fdbcli") or "fdbcli"
        suffix = ":tls" if tls else ""
        first = free_ports(processes)
        self._addresses = [f"127.0.0.1:{port}{suffix}" for port in range(first, first + processes)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.file = folder / "fdb.cluster"
        self.file.write_text(f"chaos:chaos@{','.join(self._addresses[:COORDINATORS])}\n")

    @property
    def url(self) -> str:
        """Its URL for cq."""
        return f"fdb:{self.file}"

    def start(self) -> None:
        """Start all processes, and create the database."""
        for number in range(len(self._addresses)):
            self.start_process(number)
        redundancy = "single" if len(self._addresses) == 1 else "double"
        self._until(lambda: "created" in self._exec(f"configure new {redundancy} ssd"))
        self._until(lambda: "is available" in self._exec("status minimal"))

    def start_process(self, number: int) -> None:
        """Start a process that is not running, on the data that it had."""
        address = self._addresses[number]
        data = self._folder / str(number)
        data.mkdir(exist_ok=True)
        # Each process is a zone of its own: the cluster keeps two copies in two of them.
        zone = (f"--locality-zoneid=z{number}", f"--locality-machineid=m{number}")
        self._processes[number] = subprocess.Popen(
            [
                str(self._server),
                *("-p", address, "-l", address, "-C", str(self.file), *self._tls),
                *("-d", str(data), "-L", str(data), "--memory", "2GiB", "--cache-memory", "200MiB", *zone),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self, number: int) -> None:
        """Kill a process."""
        self._processes[number].kill()
        self._processes[number].wait(SECONDS)

    def send_signal(self, number: int, sent: signal.Signals) -> None:
        """Send a signal to a process."""
        self._processes[number].send_signal(sent)

    def lock(self) -> None:
        """Lock the database, as a restore does."""
        assert "Database locked" in self._exec("lock")

    def close(self) -> None:
        """Kill all processes."""
        for number in self._processes:
            self.kill(number)

    def _exec(self, command: str) -> str:
        done = subprocess.run(
            [self._cli, "-C", str(self.file), *self._tls, "--timeout", "10", "--exec", command],
            capture_output=True,
            check=False,
        )
        return (done.stdout + done.stderr).decode()

    def _until(self, condition: object) -> None:
        assert callable(condition)
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self._exec("status details")
            time.sleep(0.2)  # the cluster tells nobody when it is ready
