"""The web servers of the demo of tags: processes that count the events of some partitions by an emitter.

A server goes through its partitions a slice at a time, each in a thread, as it would serve requests. It keeps how
far it is in the transaction that commits the slice's increments, so that whoever goes on after its death counts each
event once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final

import cq
from cq.errors import FlushFailed
from cq.observers.demos.counted import CountedDatabase, Meter
from cq.observers.demos.errors import DemoFailed
from cq.observers.demos.tagevents import of_partition
from cq.store.transact import transact

QUEUE: Final = "demo_tags"
KEYS: Final = b"demo_tags/"
"""What all keys of the demo's own begin with."""
INCREMENTS: Final = KEYS + b"increments"
"""How many increments were committed, added up by each transaction that commits some."""
SLICE: Final = 50
"""How many events are counted at once."""
_TIMEOUT: Final = 60.0


@dataclass(frozen=True)
class TagServer:
    """Counts the events of partitions.

    Attributes:
        url: of the store.
        partitions: numbers of partitions, and their files.
        meter: of what it writes.
    """

    url: str | None
    partitions: Sequence[tuple[int, Path]]
    meter: Meter

    def run(self, stop: Event) -> None:
        """Count all events that are not counted yet."""
        db = CountedDatabase(cq.open(self.url), self.meter)
        with (
            ThreadPoolExecutor(len(self.partitions)) as threads,
            cq.Emitter(cq.CombineQueue(QUEUE), db, mode="durable", timeout=_TIMEOUT) as emitter,
        ):
            counting = [
                threads.submit(_PartitionCounter(db, emitter, number, path).run, stop)
                for number, path in self.partitions
            ]
            for each in counting:
                each.result()


class _PartitionCounter:
    """Counts the events of one partition, from where it has come to."""

    def __init__(self, db: Any, emitter: cq.Emitter, number: int, path: Path) -> None:
        self._db = db
        self._emitter = emitter
        self._path = path
        self._position = KEYS + b"position/%d" % number

    def run(self, stop: Event) -> None:
        events = of_partition(self._path)
        place = transact(self._db, self._place)
        some = list(islice(events, place, place + SLICE))
        while some and not stop.is_set():
            place = self._count(place, some)
            some = list(islice(events, SLICE))

    def _place(self, tr: Any) -> int:
        return int(tr.get(self._position).value or 0)

    def _count(self, begin: int, some: Sequence[tuple[str, int]]) -> int:
        """Count these events, which begin there; returns where they end."""
        end = begin + len(some)

        def advance(tr: Any) -> None:
            if self._place(tr) != begin:
                raise LookupError("another process counts these events")
            tr.set(self._position, b"%d" % end)
            tr.add(INCREMENTS, len(some).to_bytes(8, "little"))

        while True:
            try:
                self._emitter.emit_many(some, also=advance)
            except FlushFailed:  # whether it counts, the position says
                place = transact(self._db, self._place)
                if place == begin:
                    continue
                if place != end:
                    raise DemoFailed(f"another process counts the events of {self._path.name}") from None
            return end
