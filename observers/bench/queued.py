"""cq's queue, as a system that is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import cq
from cq.observers.bench.stored import opened
from cq.observers.worker import Worker
from cq.store.transact import transact


@dataclass(frozen=True)
class Queue:
    """A combine queue of sums.

    Args:
        url: of the store.
        store: its kind.
        queue: its name.
        kind: of the values.
        buckets: as for `cq.configure`.
    """

    url: str
    store: str
    queue: str
    kind: str
    buckets: int
    name: ClassVar[str] = "cq"

    def prepare(self) -> None:
        cq.configure(
            opened(self.url), self.queue, key=str, value=self.kind, combiner="sum", buckets=self.buckets
        )

    def adder(self) -> QueueAdder:
        return QueueAdder(self)

    def drainer(self, place: int, of: int) -> QueueDrainer:
        return QueueDrainer(self)

    def total(self) -> Any:
        return sum(value for _, value in cq.CombineQueue(self.queue).scan(opened(self.url), limit=10_000))

    def settle(self) -> None:
        """Nothing is left behind."""

    def remove(self) -> None:
        cq.delete(opened(self.url), self.queue)


class QueueAdder:
    """Adds to the queue."""

    def __init__(self, system: Queue) -> None:
        self._db, self._queue = opened(system.url), cq.CombineQueue(system.queue)

    def add(self, updates: Mapping[str, Any]) -> None:
        transact(self._db, partial(self._queue.add, updates=updates))

    def close(self) -> None:
        """The database is the process's."""


class QueueDrainer:
    """A worker."""

    def __init__(self, system: Queue) -> None:
        self._db, self._name = opened(system.url), system.queue

    def drain(self) -> None:
        Worker(self._db, queues=[self._name]).drain()

    def close(self) -> None:
        """The database is the process's."""
