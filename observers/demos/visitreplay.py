"""The processes of the demo of visits that replay a log, and what they have in common with whoever recounts it.

The log is replayed by its own times, only faster: an hour of it in ten seconds, say, and then the window of ten minutes
is one of seconds, too. So each visit has a time of its own by the real clock, which workers and readers go by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from pathlib import Path
from threading import Event
from typing import Any, Final

import cq
from cq import codec, machine
from cq.observers.demos.accesslog import Visit
from cq.observers.visits import Visits
from cq.store.transact import transact
from cq.windows import TAKEN
from cq.windowspec import WindowSpec

NAME: Final = "demo_visits"
KEYS: Final = b"demo_visits/"
"""What all keys of the demo's own begin with."""
SITE: Final = "*"
"""Stands for all pages together, where visits are counted as for a page."""
MOST: Final = 500
"""How many visits are counted in one transaction."""
_LATEST: Final = 0.02


@dataclass(frozen=True)
class Pace:
    """How the log's time becomes real time.

    Attributes:
        window: of the log's time, in seconds.
        slice: of it.
        milliseconds: that a slice takes when it is replayed.
        first: the time of the first visit of the log.
        start: when that is replayed, in seconds since 1970; once all servers are ready.
    """

    window: float
    slice: float
    milliseconds: int
    first: float
    start: float = 0.0

    @property
    def speed(self) -> float:
        """How many seconds of the log are replayed in one."""
        return 1000 * self.slice / self.milliseconds

    @property
    def spec(self) -> WindowSpec:
        """The window as it is replayed."""
        slices = round(self.window / self.slice)
        return WindowSpec(slices * self.milliseconds, self.milliseconds).checked()

    def at(self, time: float) -> float:
        """When a time of the log is replayed: to the millisecond, at the slice's beginning."""
        slices = int((time - self.first) / self.slice)
        return (round(self.start * 1000) // self.milliseconds + slices) * self.milliseconds / 1000

    def of(self, now: float) -> float:
        """The log's time that is replayed at a time."""
        return self.first + (now - self.start) * self.speed


def late_key(server: int, line: int) -> bytes:
    """Where a server notes that the visits from one on came too late for the window."""
    return late_keys(server)[0] + b"%012d" % line


def late_keys(server: int) -> tuple[bytes, bytes]:
    """The range of a server's notes of visits that came too late."""
    begin = KEYS + b"late/%d/" % server
    return begin, begin + b"\xff"


def position_key(server: int) -> bytes:
    """Where a server keeps how many of its visits it has counted."""
    return KEYS + b"position/%d" % server


START: Final = KEYS + b"start"
"""Where servers find when the first visit is to be replayed."""


def ready_key(server: int) -> bytes:
    """Where a server says that it is ready."""
    return KEYS + b"ready/%d" % server


def write_part(path: Path, visits: Iterable[Visit]) -> None:
    """Write the visits that a server has, for it to find them at once whenever it is started again."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps([visit.time, visit.page, visit.visitor]) + "\n" for visit in visits)


def read_part(path: Path) -> list[Visit]:
    """The inverse."""
    with path.open(encoding="utf-8") as file:
        return [Visit(*json.loads(line)) for line in file]


@dataclass(frozen=True)
class VisitServer:
    """A web server whose visits are those of its part of the log, as they happen.

    Attributes:
        url: of the store.
        path: of its part of the log.
        number: which server it is.
        pace: of the replay, but for its start.
    """

    url: str | None
    path: Path
    number: int
    pace: Pace

    def run(self, stop: Event) -> None:
        """Count all visits that are not counted yet, each when it is due.

        How far it is, it keeps in the transaction that counts, so one that was killed goes on where it was.
        """
        db, visits, mine = cq.open(self.url), Visits(NAME), read_part(self.path)
        transact(db, lambda tr: tr.set(ready_key(self.number), b""))
        while (start := transact(db, lambda tr: tr.get(START).value)) is None:
            if stop.wait(_LATEST):
                return
        pace = replace(self.pace, start=codec.decode(start))
        place = transact(db, self._place)
        while place < len(mine) and not stop.is_set():
            wait = pace.at(mine[place].time) - machine.time()
            if wait > 0:
                stop.wait(wait)
            else:
                place = transact(db, lambda tr: self._count(tr, visits, mine, pace))

    def _place(self, tr: Any) -> int:
        stored = tr.get(position_key(self.number)).value
        return 0 if stored is None else int(codec.decode(stored))

    def _count(self, tr: Any, visits: Visits, mine: Sequence[Visit], pace: Pace) -> int:
        """Count what is due, of one time after the other; returns how far it is then."""
        place, now = self._place(tr), machine.time()
        due = takewhile(lambda visit: pace.at(visit.time) <= now, mine[place : place + MOST])
        for at, group in groupby(due, lambda visit: pace.at(visit.time)):
            some = list(group)
            seen = [(page, visit.visitor) for visit in some for page in (visit.page, SITE)]
            if visits.count_many(tr, seen, at=at) != TAKEN:
                tr.set(late_key(self.number, place), codec.encode(len(some)))
            place += len(some)
        tr.set(position_key(self.number), codec.encode(place))
        return place
