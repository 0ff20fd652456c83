"""The stores and servers of a benchmark, temporary or given ones, and the systems on them to compare cq with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from cq.cli.bench.systems import postgres, servers
from cq.cli.bench.systems.redis import RedisHash
from cq.cli.bench.systems.stored import ADDITIONS, StoredCounts, close_opened, opened
from cq.cli.bench.systems.system import CannotMeasure, System, Unavailable
from cq.config.queue import queue_names
from cq.store import located
from cq.store.transact import transact

QUEUE_PREFIX: Final = "bench-"
REPORTING: Final = ("sqlite", "postgresql")
"""Kinds of reporting databases."""


class Backends(ExitStack):
    """Stores and servers for systems; a server is started when the first system needs it. Removes them at exit.

    Args:
        folder: folder for temporary stores and servers.
        given: URL of a store that replaces temporary embedded stores.
        postgres_env: environment variable with the URL of a PostgreSQL database that replaces a temporary server.

    Attributes:
        versions: {name of a running server: its version}.
    """

    def __init__(self, folder: Path, given: str | None = None, postgres_env: str | None = None) -> None:
        super().__init__()
        self.callback(close_opened)  # last: systems are removed through opened stores
        self._folder, self._given, self._postgres_env = folder, given, postgres_env
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
        if self._postgres_env is None:
            conninfo = self.enter_context(servers.own_postgres(self._folder / "postgres"))
        else:
            conninfo = servers.given_postgres(self._postgres_env)
        self.versions["postgresql"] = servers.postgres_version(conninfo)
        return conninfo

    @cached_property
    def redis(self) -> str:
        """The socket of the Redis server; raises `Unavailable`."""
        socket, self.versions["redis"] = self.enter_context(servers.own_redis(self._folder / "redis"))
        return socket

    def reporting(self, kind: str) -> str:
        """The URL of a database to export to, of a kind in `REPORTING`; raises `CannotMeasure`."""
        if kind == "sqlite":
            return f"sqlite:///{self._folder / f'{next(self._numbers)}-reporting.db'}"
        if self._postgres_env is not None:  # the export would leave tables of cq in it
            raise CannotMeasure("an export into a given PostgreSQL database cannot be measured: use sqlite")
        return self.postgres

    def rival(self, name: str, kind: str, periods: Sequence[int] = ()) -> System:
        """A system to compare cq with, one of `RIVALS`, for values of a kind and the periods of a roll-up in seconds.

        Raises `Unavailable` if its driver or server is missing, or it does not support the kind of the values.
        """
        rival = RIVALS[name]
        if kind != "int" and rival.is_for_integers:
            raise Unavailable(f"{name} supports integers only")
        return rival.make(self, kind, periods)


class Rival(NamedTuple):
    """A system to compare cq with.

    Attributes:
        make: returns the system, given the backends, the kind of the values and the periods of a roll-up in seconds.
        is_for_integers: whether it supports no other values.
        needs: the option for a queue that has the same results as the system; "": every queue has them.
    """

    make: Callable[[Backends, str, Sequence[int]], System]
    is_for_integers: bool = False
    needs: str = ""


def _stored(name: str) -> Rival:
    return Rival(lambda backends, *_: StoredCounts(name, *backends.store()), is_for_integers=True)


RIVALS: Final[Mapping[str, Rival]] = {
    **{name: _stored(name) for name in ADDITIONS},
    "postgres-upsert": Rival(lambda backends, kind, _: postgres.upsert(backends.postgres, kind)),
    "postgres-rollup": Rival(lambda backends, kind, _: postgres.periods(backends.postgres, kind)),
    "postgres-periods": Rival(
        lambda backends, kind, periods: postgres.periods(backends.postgres, kind, periods), needs="rollup"
    ),
    "postgres-distinct": Rival(lambda backends, *_: postgres.distinct(backends.postgres), needs="distinct"),
    "redis": Rival(lambda backends, *_: RedisHash(backends.redis), is_for_integers=True),
}
"""{name: system that cq can be compared with}."""
