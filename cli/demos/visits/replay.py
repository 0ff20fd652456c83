"""The web servers of the demo of visits, which replay a log, and their records for the recount.

The log is replayed by its own times, but faster: for example one hour in ten seconds; the window of ten minutes then
takes less than two seconds. So each visit has a time by the real clock, which workers and readers use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby, takewhile
from pathlib import Path
from threading import Event
from typing import Any, Final

import cq
from cq import runtime
from cq.cli.demos.harness.position import Position
from cq.cli.demos.visits.access_log import Visit
from cq.cli.demos.visits.queues import VisitQueues
from cq.config.window import MIN_SLICE_MS, WindowSpec
from cq.encoding import codec
from cq.store.transact import transact
from cq.windows.window import TAKEN

KEYS: Final = b"demo_visits/"
"""The prefix of the demo's own keys."""
MOST: Final = 500
"""Maximum number of visits that one transaction counts."""
_LATEST: Final = 0.02
_LONG_SECONDS: Final = 60
_ROUND_SPEED: Final = 100


@dataclass(frozen=True)
class ReplayClock:
    """The conversion of the log's time to real time.

    Attributes:
        window: width of the window in seconds of the log's time.
        slice: width of a slice in seconds of the log's time.
        milliseconds: real duration of a slice.
        first: time of the first visit of the log.
        start: real time of the first visit, in seconds since 1970; set when all servers are ready.
    """

    window: float
    slice: float
    milliseconds: int
    first: float
    start: float = 0.0

    @property
    def speed(self) -> float:
        """Seconds of the log that are replayed per second."""
        return 1000 * self.slice / self.milliseconds

    @property
    def max_speed(self) -> float:
        """The speed with the shortest slice."""
        return 1000 * self.slice / MIN_SLICE_MS

    @property
    def spec(self) -> WindowSpec:
        """The window in real time."""
        slices = round(self.window / self.slice)
        return WindowSpec(slices * self.milliseconds, self.milliseconds).checked()

    def at(self, time: float) -> float:
        """The real time of a time of the log, at the begin of its slice, in whole milliseconds."""
        # A slice of the log is exactly a slice of the window, so that visits leave the window with their slice.
        slices = int((time - self.first) / self.slice)
        return (round(self.start * 1000) // self.milliseconds + slices) * self.milliseconds / 1000

    def about_duration(self, last: float) -> str | None:
        """A line about the duration of a replay until a time of the log; None for a short one."""
        span = last - self.first + self.window
        if span / self.speed < _LONG_SECONDS:
            return None
        line = f"the replay takes about {_in_words(span / self.speed)} at {self.speed:,.0f} times the log's speed"
        faster = min(self.max_speed, max(_ROUND_SPEED, round(span / _LONG_SECONDS, -2)))
        if faster <= self.speed:
            return line
        return f"{line}; --speed {faster:.0f} takes about {_in_words(span / faster)}"

    def of(self, now: float) -> float:
        """The log's time at a real time."""
        return self.first + (now - self.start) * self.speed


def _in_words(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.2g} {name}"
    return f"{seconds:,.0f} seconds"


def late_keys(server: int) -> tuple[bytes, bytes]:
    """The range of a server's notes of late visits: a key ends with the position of the first of them."""
    begin = KEYS + b"late/%d/" % server
    return begin, begin + b"\xff"


def server_position(server: int) -> Position:
    """The position of a server: the number of its counted visits."""
    return Position(KEYS + b"position/%d" % server)


START: Final = KEYS + b"start"
"""The key of the real time of the first visit."""


def write_part(path: Path, visits: Iterable[Visit]) -> None:
    """Write the visits of a server: a restarted server must read only its own part of the log."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(astuple(visit)) + "\n" for visit in visits)


@dataclass(frozen=True)
class VisitServer:
    """A web server that counts the visits of its part of the log at their times.

    Attributes:
        url: URL of the store.
        path: path of its part of the log.
        number: number of the server.
        pace: pace of the replay, without its start.
    """

    url: str | None
    path: Path
    number: int
    pace: ReplayClock

    def run(self, stop: Event) -> None:
        """Count all remaining visits, each at its time.

        The transaction that counts also stores the position: so a restarted server continues there.
        """
        db, queues = cq.open(self.url), VisitQueues()
        mine = [Visit(*json.loads(line)) for line in self.path.read_text("utf-8").splitlines()]
        position = server_position(self.number)
        # The existence of the position says that this server is ready.
        transact(db, lambda tr: position.write(tr, position.read(tr)))
        while (start := transact(db, lambda tr: tr.get(START).value)) is None:
            if stop.wait(_LATEST):
                return  # without a start there is nothing to count
        pace = replace(self.pace, start=codec.decode(start))
        place = transact(db, position.read)
        while place < len(mine) and not stop.is_set():
            wait = pace.at(mine[place].time) - runtime.time()
            if wait > 0:
                stop.wait(wait)
            else:
                place = transact(db, lambda tr: self._count(tr, queues, mine, pace))

    def _count(self, tr: Any, queues: VisitQueues, mine: Sequence[Visit], pace: ReplayClock) -> int:
        """Count the visits that are due, grouped by time; returns the new position."""
        # The position is read again: a commit whose answer was lost may have moved it.
        position, now = server_position(self.number), runtime.time()
        place = position.read(tr)
        due = takewhile(lambda visit: pace.at(visit.time) <= now, mine[place : place + MOST])
        for at, group in groupby(due, lambda visit: pace.at(visit.time)):
            visits_now = list(group)
            if queues.count(tr, visits_now, at) != TAKEN:
                # They are in no window; the recount must not expect them there.
                tr.set(late_keys(self.number)[0] + b"%012d" % place, codec.encode(len(visits_now)))
            place += len(visits_now)
        position.write(tr, place)
        return place
