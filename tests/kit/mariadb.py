"""A MariaDB server of the tests' own, where one is installed; it can be killed and started again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

START_SECONDS = 120.0
_SERVER = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
_INSTALLER = shutil.which("mariadb-install-db")
# Small, and without waits for the disk: what is killed here are processes, not machines.
_OPTIONS = (
    *("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M", "--innodb-doublewrite=0"),
    *("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--performance-schema=0"),
)


class MariadbServer:
    """The server, which listens on a socket in the folder; skips the test where it is not installed."""

    def __init__(self, folder: Path) -> None:
        if _SERVER is None or _INSTALLER is None:
            pytest.skip("the server of MariaDB is not installed: Debian's package is mariadb-server-core")
        # Without the machine's configuration, which can name other folders. As root, mariadbd wants to be told so.
        root = ("--user=root",) if os.geteuid() == 0 else ()
        self._options = ("--no-defaults", f"--datadir={folder / 'data'}", *root, *_OPTIONS)
        self._log = folder / "log"
        self._socket = folder / "socket"
        with self._log.open("ab") as log:
            installing = (_INSTALLER, *self._options, "--auth-root-authentication-method=normal")
            subprocess.run(installing, stdout=log, stderr=log, check=True)
        self.start()

    @property
    def url(self) -> str:
        """For SQLAlchemy. Without TLS: the driver would read all certificates of the system for each connection."""
        return f"mysql://root@localhost/?unix_socket={self._socket}&ssl_disabled=true"

    def start(self) -> None:
        """Start it, and wait until it has recovered."""
        assert _SERVER is not None
        with self._log.open("ab") as log:
            command = (_SERVER, *self._options, f"--socket={self._socket}", "--skip-networking")
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0
