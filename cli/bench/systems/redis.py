"""Counts in Redis: all updates of a transaction in one atomic round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cq.cli.bench.systems.system import Drainer

if TYPE_CHECKING:
    import redis

_KEY: Final = "cq-bench"
_SCRIPT: Final = """
for i = 1, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
"""


@dataclass(frozen=True)
class RedisHash:
    """A hash of counts, changed by a script: as atomic as MULTI, with far less data to send.

    Args:
        socket: path of the socket of the server.
    """

    socket: str
    name: ClassVar[str] = "redis"
    store: ClassVar[str] = "redis"
    defers: ClassVar[bool] = False

    def connect(self) -> redis.Redis:
        """A new client with its own connection."""
        import redis

        return redis.Redis(unix_socket_path=self.socket)

    def prepare(self) -> None:
        self.remove()

    def adder(self) -> HashAdder:
        return HashAdder(self.connect())

    def drainer(self, place: int, of: int) -> Drainer:
        raise NotImplementedError

    def total(self) -> int:
        with self.connect() as client:
            return sum(int(count) for _, count in client.hscan_iter(_KEY, count=10_000))

    def settle(self) -> None:
        """Do nothing: there is no work after a measurement."""

    def remove(self) -> None:
        with self.connect() as client:
            client.delete(_KEY)


class HashAdder:
    """Adds updates through one connection."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._script = str(client.script_load(_SCRIPT))

    def add(self, updates: Mapping[str, Any]) -> None:
        arguments = [part for pair in updates.items() for part in pair]
        self._client.evalsha(self._script, 1, _KEY, *arguments)

    def close(self) -> None:
        self._client.close()
