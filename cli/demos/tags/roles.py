"""The web servers of the demo of tags: processes that count the events of some partitions by an emitter.

A server counts each of its partitions in a thread, one slice at a time, as it would serve requests. The transaction
that commits the increments of a slice also stores the position: so a restarted server counts each event once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final

import cq
from cq.cli.demos.harness.counted_database import CountedDatabase, Meter
from cq.cli.demos.harness.crew import DemoFailed
from cq.cli.demos.harness.position import Position
from cq.cli.demos.tags.events import of_partition
from cq.errors import FlushFailed
from cq.store.transact import transact

QUEUE: Final = "demo_tags"
KEYS: Final = b"demo_tags/"
"""The prefix of the demo's own keys."""
INCREMENTS: Final = KEYS + b"increments"
"""The number of committed increments; each flush adds its number to it."""
SLICE: Final = 50
"""Number of events that are counted at a time."""
_TIMEOUT: Final = 60.0


def run_server(stop: Event, *, url: str, partitions: Sequence[tuple[int, Path]], meter: Meter) -> None:
    """Count all remaining events of the partitions, given with their numbers; the meter counts the writes."""
    db = CountedDatabase(cq.open(url), meter)
    with (
        ThreadPoolExecutor(len(partitions)) as threads,
        cq.Emitter(cq.CombineQueue(QUEUE), db, mode="durable", timeout=_TIMEOUT) as emitter,
    ):
        counting = [
            threads.submit(_PartitionCounter(db, emitter, number, path).run, stop)
            for number, path in partitions
        ]
        for each in counting:
            each.result()  # raises the error of the thread


class _PartitionCounter:
    """Counts the events of one partition, from its stored position on."""

    def __init__(self, db: Any, emitter: cq.Emitter, number: int, path: Path) -> None:
        self._db = db
        self._emitter = emitter
        self._path = path
        self._position = Position(KEYS + b"position/%d" % number)

    def run(self, stop: Event) -> None:
        events = of_partition(self._path)
        place = transact(self._db, self._position.read)
        events_slice = list(islice(events, place, place + SLICE))
        while events_slice and not stop.is_set():
            place = self._count(place, events_slice)
            events_slice = list(islice(events, SLICE))

    def _count(self, begin: int, changes: Sequence[tuple[str, int]]) -> int:
        """Count events that begin at the position `begin`; returns the position of their end."""
        end = begin + len(changes)

        def advance(tr: Any) -> None:
            if self._position.read(tr) != begin:
                raise LookupError("another process counts these events")
            self._position.write(tr, end)
            tr.add(INCREMENTS, len(changes).to_bytes(8, "little"))

        while True:
            try:
                self._emitter.emit_many(changes, also=advance)
            except FlushFailed:  # the flush may have committed: the position shows whether it has
                place = transact(self._db, self._position.read)
                if place == begin:
                    continue
                if place != end:
                    raise DemoFailed(f"another process counts the events of {self._path.name}") from None
            return end
