"""The systems that can be measured, on temporary stores and servers or on given ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Final

from cq.cli.bench.systems import servers
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.cq_variants import DistinctQueue, RollupQueue
from cq.cli.bench.systems.postgres import Rollup, Upsert
from cq.cli.bench.systems.postgres_jobs import DistinctPairs, Periods
from cq.cli.bench.systems.redis import RedisHash
from cq.cli.bench.systems.stored import AtomicAdd, ReadModifyWrite, close_opened, opened
from cq.cli.bench.systems.system import AGAINST, CannotMeasure, System, Unavailable
from cq.config.queue import queue_names
from cq.store import located
from cq.store.transact import transact

QUEUE_PREFIX: Final = "bench-"


class Backends:
    """Stores and servers for systems; a server is started when the first system needs it.

    Args:
        stack: stops and removes them.
        folder: folder for temporary stores and servers.
        given: URL of a store that replaces temporary embedded stores.
        postgres_env: environment variable with the URL of a PostgreSQL database that replaces a temporary server.

    Attributes:
        versions: {name of a running server: its version}.
    """

    def __init__(self, stack: ExitStack, folder: Path, given: str | None, postgres_env: str | None) -> None:
        self._stack, self._folder, self._given, self._postgres_env = stack, folder, given, postgres_env
        self._numbers = count()
        self.versions: dict[str, str] = {}

    def store(self) -> tuple[str, str]:
        """URL and kind of a store: the given one, otherwise a new one."""
        if self._given is None:
            return f"embedded:{self._folder / f'{next(self._numbers)}.db'}", "embedded"
        scheme, _ = located(self._given)
        return self._given, "foundationdb" if scheme == "fdb" else scheme

    @cached_property
    def postgres(self) -> str:
        """The connection string of the PostgreSQL database; raises `Unavailable`."""
        if self._postgres_env is None:
            conninfo = self._stack.enter_context(servers.own_postgres(self._folder / "postgres"))
        else:
            conninfo = servers.given_postgres(self._postgres_env)
        self.versions["postgresql"] = servers.postgres_version(conninfo)
        return conninfo

    @cached_property
    def redis(self) -> str:
        """The socket of the Redis server; raises `Unavailable`."""
        socket = self._stack.enter_context(servers.own_redis(self._folder / "redis"))
        self.versions["redis"] = servers.redis_version(socket)
        return socket

    def reporting(self, kind: str) -> str:
        """The URL of a database to export to, of a kind in `REPORTING`; raises `CannotMeasure`."""
        if kind == "sqlite":
            return f"sqlite:///{self._folder / f'{next(self._numbers)}-reporting.db'}"
        if self._postgres_env is not None:  # the export would leave tables of cq in it
            raise CannotMeasure("an export into a given PostgreSQL database cannot be measured: use sqlite")
        return self.postgres

    def queue(self, kind: str, buckets: int | None, *, cloud: bool, export: str | None) -> QueueSystem:
        """A queue with a new name, and with the requested cloud and export."""
        reporting = export and self.reporting(export)
        return QueueSystem(*self.store(), new_name(), kind, buckets, cloud, reporting)

    def rollup_queue(
        self, kind: str, buckets: int | None, rollup: str, *, cloud: bool = False, export: str | None = None
    ) -> RollupQueue:
        """A queue with a new name and a roll-up, and with the requested cloud and export."""
        reporting = export and self.reporting(export)
        return RollupQueue(*self.store(), new_name(), kind, buckets, cloud, reporting, rollup)

    def distinct_queue(self, buckets: int | None) -> DistinctQueue:
        """A queue of distinct visitors with a new name; raises `Unavailable` without the package for sketches."""
        if find_spec("datasketches") is None:
            raise Unavailable(
                'sketches need the package datasketches: run `pip install "combine-queue[sketches]"`'
            )
        return DistinctQueue(*self.store(), new_name(), "int", buckets)


def new_name() -> str:
    """A name for a queue of a benchmark."""
    return f"{QUEUE_PREFIX}{secrets.token_hex(4)}"


Maker = Callable[[Backends, str, Sequence[int]], System]
_MAKERS: Final[Mapping[str, Maker]] = {
    ReadModifyWrite.name: lambda backends, *_: ReadModifyWrite(*backends.store()),
    AtomicAdd.name: lambda backends, *_: AtomicAdd(*backends.store()),
    Upsert.name: lambda backends, kind, _: Upsert(backends.postgres, kind),
    Rollup.name: lambda backends, kind, _: Rollup(backends.postgres, kind),
    Periods.name: lambda backends, kind, periods: Periods(backends.postgres, kind, periods),
    DistinctPairs.name: lambda backends, kind, _: DistinctPairs(backends.postgres, kind),
    RedisHash.name: lambda backends, *_: RedisHash(backends.redis),
}
_INTEGERS_ONLY: Final = (ReadModifyWrite.name, AtomicAdd.name, RedisHash.name)


@contextmanager
def open_backends(
    folder: Path, store: str | None = None, postgres_env: str | None = None
) -> Iterator[Backends]:
    """Open the stores and servers; stops and removes them at exit. Arguments as for `Backends`.

    Raises `CannotMeasure` if the given store has queues of another program.
    """
    with ExitStack() as stack:
        stack.callback(close_opened)  # last: systems are removed through opened stores
        if store is not None:
            _refuse_used(store)
        yield Backends(stack, folder, store, postgres_env)


def make_against(backends: Backends, name: str, kind: str, periods: Sequence[int] = ()) -> System:
    """The system with this name, to compare cq with; `periods` in seconds are those of a roll-up.

    Raises:
        CannotMeasure: the name is unknown.
        Unavailable: its driver or server is missing, or it does not support the type of the values.
    """
    if name not in AGAINST:
        raise CannotMeasure(f"expected a system to compare with of {', '.join(AGAINST)}, got: {name!r}")
    if kind != "int" and name in _INTEGERS_ONLY:
        raise Unavailable(f"{name} supports integers only")
    return _MAKERS[name](backends, kind, periods)


def _refuse_used(store: str) -> None:
    names = transact(opened(store), lambda tr: queue_names(tr.snapshot))
    others = [name for name in names if not name.startswith(QUEUE_PREFIX)]
    if others:
        raise CannotMeasure(
            f"the store {store!r} has queues, such as {others[0]!r}: they and the benchmark "
            "would disturb each other; name a store without queues"
        )
