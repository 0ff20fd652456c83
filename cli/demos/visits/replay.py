"""The web servers of the demo of visits, which replay a log, and their records for the recount.

The log is replayed by its own times, but faster: for example one hour in ten seconds; the window of ten minutes then
takes less than two seconds. So each visit has a time by the real clock, which workers and readers use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile
from threading import Event
from typing import Any, Final

import cq
from cq import runtime
from cq.cli.demos.harness import Steps
from cq.cli.demos.visits.queues import VisitQueues
from cq.config.window import MIN_SLICE_MS, WindowSpec
from cq.durations import rough
from cq.encoding import codec
from cq.intake.access_log import Visit
from cq.keys import prefix_end
from cq.store.api import TransactionRead
from cq.store.transact import transact
from cq.windows.window import TAKEN

KEYS: Final = b"demo_visits/"
"""The prefix of the demo's own keys."""
START: Final = KEYS + b"start"
"""The key of the real time of the first visit."""
MOST: Final = 500
"""Maximum number of visits that one transaction counts."""
_LATEST: Final = 0.02
_LONG_SECONDS: Final = 60
_ROUND_SPEED: Final = 100


@dataclass(frozen=True)
class ReplayClock:
    """The conversion of the log's time to real time.

    Attributes:
        window: the window in the log's time.
        milliseconds: real duration of a slice.
        first: time of the first visit of the log.
        start: real time of the first visit, in seconds since 1970; set when all servers are ready.
    """

    window: WindowSpec
    milliseconds: int
    first: float
    start: float = 0.0

    @classmethod
    def at_speed(cls, window: WindowSpec, speed: float, first: float) -> ReplayClock:
        """The clock of about this speed: a slice takes whole milliseconds."""
        return cls(window, max(MIN_SLICE_MS, round(window.slice / speed)), first)

    @property
    def speed(self) -> float:
        """Seconds of the log that are replayed per second."""
        return self.window.slice / self.milliseconds

    @property
    def spec(self) -> WindowSpec:
        """The window in real time."""
        slices = self.window.width // self.window.slice
        return WindowSpec(slices * self.milliseconds, self.milliseconds).checked()

    def at(self, time: float) -> float:
        """The real time of a time of the log, at the begin of its slice, in whole milliseconds."""
        # A slice of the log is exactly a slice of the window, so that visits leave the window with their slice.
        slices = int(1000 * (time - self.first) / self.window.slice)
        return (round(self.start * 1000) // self.milliseconds + slices) * self.milliseconds / 1000

    def of(self, now: float) -> float:
        """The log's time at a real time."""
        return self.first + (now - self.start) * self.speed

    def about_duration(self, last: float) -> str | None:
        """A line about the duration of a replay until a time of the log; None for a short one."""
        span = last - self.first + self.window.width / 1000
        if span / self.speed < _LONG_SECONDS:
            return None
        line = f"the replay takes about {rough(span / self.speed)} at {self.speed:,.0f} times the log's speed"
        faster = min(self.window.slice / MIN_SLICE_MS, max(_ROUND_SPEED, round(span / _LONG_SECONDS, -2)))
        if faster <= self.speed:
            return line
        return f"{line}; --speed {faster:.0f} takes about {rough(span / faster)}"


def run_server(stop: Event, *, url: str, steps: Steps, pace: ReplayClock) -> None:
    """Count the remaining visits of a web server, each at its time; `pace` is the clock without its start.

    The transaction that counts also stores the position: so a restarted server continues there.
    """
    db, queues = cq.open(url), VisitQueues()
    mine = [Visit(*step) for step in steps]
    # The existence of the position says that this server is ready.
    transact(db, lambda tr: steps.advance(tr, steps.done(tr)))
    while (start := transact(db, lambda tr: tr.get(START).value)) is None:
        if stop.wait(_LATEST):
            return  # without a start there is nothing to count
    pace = replace(pace, start=codec.decode(start))
    place = transact(db, steps.done)
    while place < len(mine) and not stop.is_set():
        wait = pace.at(mine[place].time) - runtime.time()
        if wait > 0:
            stop.wait(wait)
        else:
            place = transact(db, partial(_count, queues=queues, steps=steps, mine=mine, pace=pace))


def _count(tr: Any, *, queues: VisitQueues, steps: Steps, mine: Sequence[Visit], pace: ReplayClock) -> int:
    """Count the visits that are due, grouped by time; returns the new position."""
    # The position is read again: a commit whose answer was lost may have moved it.
    place, now = steps.done(tr), runtime.time()
    due = takewhile(lambda visit: pace.at(visit.time) <= now, mine[place : place + MOST])
    for at, group in groupby(due, lambda visit: pace.at(visit.time)):
        visits_now = list(group)
        if queues.count(tr, visits_now, at) != TAKEN:
            # They are in no window; the recount must not expect them there.
            tr.set(_late_prefix(steps) + b"%012d" % place, codec.encode(len(visits_now)))
        place += len(visits_now)
    steps.advance(tr, place)
    return place


def _late_prefix(steps: Steps) -> bytes:
    """The prefix of a server's notes of late visits: a key ends with the position of the first of them."""
    return steps.key + b"/late/"


def read_late(tr: TransactionRead, servers: Sequence[Steps]) -> set[tuple[int, int]]:
    """(server, place) of the visits that were counted after the end of their window."""
    late = set()
    for number, steps in enumerate(servers):
        begin = _late_prefix(steps)
        for row in tr.get_range(begin, prefix_end(begin)):
            first = int(row.key.removeprefix(begin))
            late |= {(number, first + each) for each in range(codec.decode(row.value))}
    return late
