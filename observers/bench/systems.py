"""Which systems there are to measure, and where they work: in temporary stores and servers, or in those given."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from cq.config import queue_names
from cq.observers.bench import postgresserver, redisserver
from cq.observers.bench.errors import CannotMeasure, Unavailable
from cq.observers.bench.names import AGAINST
from cq.observers.bench.postgres import Rollup, Upsert
from cq.observers.bench.queued import QueueSystem
from cq.observers.bench.rediscounts import RedisHash
from cq.observers.bench.stored import AtomicAdd, ReadModifyWrite, close_opened, opened
from cq.observers.bench.system import System
from cq.store import located
from cq.store.transact import transact

QUEUE_PREFIX: Final = "bench-"


@dataclass(frozen=True, slots=True)
class Locations:
    """Where systems work.

    Args:
        folder: for temporary stores and servers.
        store: the URL of a store to use in place of temporary embedded ones.
        postgres_env: the environment variable with the URL of a PostgreSQL database to use in place of a server of
            the benchmark's own.
    """

    folder: Path
    store: str | None = None
    postgres_env: str | None = None


class Backends:
    """Makes systems, and starts each server when the first system needs it.

    Attributes:
        versions: {what a system runs on: its version}, of the servers that are running.
    """

    def __init__(self, where: Locations, stack: ExitStack) -> None:
        self._where, self._stack = where, stack
        self._numbers = count()
        self._conninfo: str | None = None
        self._socket: str | None = None
        self.versions: dict[str, str] = {}

    def store(self) -> tuple[str, str]:
        """URL and kind of a store: a new one, unless one is given."""
        if self._where.store is None:
            return f"embedded:{self._where.folder / f'{next(self._numbers)}.db'}", "embedded"
        scheme, _ = located(self._where.store)
        return self._where.store, "foundationdb" if scheme == "fdb" else scheme

    def postgres(self) -> str:
        """The connection string of the PostgreSQL database; raises `Unavailable`."""
        if self._conninfo is None:
            if self._where.postgres_env is None:
                folder = self._where.folder / "postgres"
                self._conninfo = self._stack.enter_context(postgresserver.own_server(folder))
            else:
                self._conninfo = postgresserver.given_server(self._where.postgres_env)
            self.versions["postgresql"] = postgresserver.version(self._conninfo)
        return self._conninfo

    def redis(self) -> str:
        """The socket of the Redis server; raises `Unavailable`."""
        if self._socket is None:
            self._socket = self._stack.enter_context(redisserver.own_server(self._where.folder / "redis"))
            self.versions["redis"] = redisserver.version(self._socket)
        return self._socket

    def reporting(self, kind: str) -> str:
        """The URL of a database to export to, of a kind of `names.REPORTING`; raises `CannotMeasure`."""
        if kind == "sqlite":
            return f"sqlite:///{self._where.folder / f'{next(self._numbers)}-reporting.db'}"
        if self._where.postgres_env is not None:  # it would be left with cq's own tables in it
            raise CannotMeasure(
                "exporting into a PostgreSQL database that is given cannot be measured: use sqlite"
            )
        return self.postgres()


Maker = Callable[[Backends, str], System]
_MAKERS: Final[Mapping[str, Maker]] = {
    ReadModifyWrite.name: lambda places, _: ReadModifyWrite(*places.store()),
    AtomicAdd.name: lambda places, _: AtomicAdd(*places.store()),
    Upsert.name: lambda places, kind: Upsert(places.postgres(), kind),
    Rollup.name: lambda places, kind: Rollup(places.postgres(), kind),
    RedisHash.name: lambda places, _: RedisHash(places.redis()),
}
_INTEGERS_ONLY: Final = (ReadModifyWrite.name, AtomicAdd.name, RedisHash.name)


@contextmanager
def places(where: Locations) -> Iterator[Backends]:
    """Where systems work; stops and removes in the end what was started and made.

    Raises `CannotMeasure` when the store that is given holds queues that are not a benchmark's.
    """
    with ExitStack() as stack:
        stack.callback(close_opened)
        if where.store is not None:
            _refuse_used(where.store)
        yield Backends(where, stack)


def make_queue(
    places: Backends, kind: str, buckets: int | None, *, cloud: bool = False, export: str | None = None
) -> QueueSystem:
    """A queue of a name of its own, with a cloud, and with an export into a kind of database, if asked for."""
    url, store = places.store()
    name = f"{QUEUE_PREFIX}{secrets.token_hex(4)}"
    return QueueSystem(
        url, store, name, kind, buckets, cloud, None if export is None else places.reporting(export)
    )


def make_against(places: Backends, name: str, kind: str) -> System:
    """A system to compare with.

    Raises:
        CannotMeasure: there is none of this name, or it does not know such values.
        Unavailable: its driver or server is missing.
    """
    if name not in AGAINST:
        raise CannotMeasure(f"expected something to compare with of {', '.join(AGAINST)}, got: {name!r}")
    if kind != "int" and name in _INTEGERS_ONLY:
        raise Unavailable(f"{name} knows integers only")
    return _MAKERS[name](places, kind)


def _refuse_used(store: str) -> None:
    names = transact(opened(store), lambda tr: queue_names(tr.snapshot))
    others = [name for name in names if not name.startswith(QUEUE_PREFIX)]
    if others:
        raise CannotMeasure(
            f"the store {store!r} holds queues, such as {others[0]!r}: a benchmark would disturb them, "
            "and they it; give it a store of its own"
        )
