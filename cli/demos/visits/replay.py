"""The web servers of the demo of visits, which write logs anew, the followers that count, and records for the recount.

The log is replayed by its own times, but faster: for example one hour in ten seconds; the window of ten minutes then
takes less than two seconds. So each visit has a time by the real clock, which workers and readers use.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from random import Random
from threading import Event
from typing import Any, Final

import cq
from cq import runtime
from cq.cli.demos.harness import Steps
from cq.cli.demos.visits.access_log import is_bot
from cq.cli.demos.visits.queues import VisitQueues
from cq.config.window import MIN_SLICE_MS, WindowSpec
from cq.durations import rough
from cq.encoding import codec
from cq.intake.access_log import AccessLogFormat, Visit
from cq.intake.lines import AddedLines
from cq.keys import prefix_end
from cq.observers.visits import VisitLog, VisitorIds
from cq.store.api import Database, TransactionRead
from cq.store.transact import transact

KEYS: Final = b"demo_visits/"
"""The prefix of the demo's own keys."""
START: Final = KEYS + b"start"
"""The key of the real time of the first visit."""
MOST: Final = 500
"""Maximum number of visits that one transaction counts."""
_LATEST: Final = 0.02
_ROTATIONS: Final = 8
"""How often each log is rotated."""
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


@dataclass(frozen=True)
class ServerLog(Steps):
    """The access log of a web server, `path`, and the number of its visits that are counted, in the store."""

    @property
    def name(self) -> str:
        """The name of the position in the log."""
        return self.path.name


class LogWriter:
    """A web server that writes its log as time passes, and rotates it.

    Args:
        log: the log.
        lines: each visit with its line, in order.
        rng: decides between the ways to rotate.
    """

    def __init__(self, log: ServerLog, lines: Sequence[tuple[Visit, bytes]], rng: Random) -> None:
        self._log, self._lines, self._rng = log, lines, rng
        self._written, self._rotations = 0, 0
        log.path.touch()

    def write(self, db: Database, pace: ReplayClock) -> None:
        """Write the lines of the visits that have happened by now."""
        now = runtime.time()
        following = map(self._lines.__getitem__, range(self._written, len(self._lines)))
        due = list(takewhile(lambda each: pace.at(each[0].time) <= now, following))
        is_full = self._written * _ROTATIONS > (self._rotations + 1) * len(self._lines)
        if due and is_full:
            # Before its first commit a follower knows the file by its inode only, which a copy has not.
            self._rotate(by_copy=self._rng.random() < 0.5 and transact(db, self._log.done) > 0)
        with self._log.path.open("ab") as file:
            file.writelines(line.rstrip(b"\r\n") + b"\n" for _, line in due)
        self._written += len(due)

    def _rotate(self, *, by_copy: bool) -> None:
        """Rename the log, or copy and truncate it, as logrotate does."""
        path, self._rotations = self._log.path, self._rotations + 1
        former = path.with_name(f"{path.name}-{20250300 + self._rotations}")
        if by_copy:
            shutil.copyfile(path, former)
            os.truncate(path, 0)
        else:
            path.rename(former)
            path.touch()


def run_follower(stop: Event, *, url: str, log: ServerLog, pace: ReplayClock) -> None:
    """Count the visits in a web server's log; `pace` is the clock without its start.

    The transaction that counts also stores the position: so a restarted follower continues there.
    """
    db, queues = cq.open(url), VisitQueues()
    with closing(VisitLog(queues.visits).follow(db, log.path, name=log.name)) as follower:
        # The existence of the number says that this follower is ready: it knows the log before the first rotation.
        transact(db, lambda tr: log.advance(tr, log.done(tr)))
        while (start := transact(db, lambda tr: tr.get(START).value)) is None:
            if stop.wait(_LATEST):
                return  # without a start there is nothing to count
        pace = replace(pace, start=codec.decode(start))
        ids = queues.visits.ids(db)
        add = _LogCount(queues, log, pace, ids, VisitLog(queues.visits, ReplayedFormat(pace), ids=ids))
        while transact(db, log.done) < log.number and not stop.is_set():
            if follower.add_next(add) is None:
                stop.wait(_LATEST)


class ReplayedFormat(AccessLogFormat):
    """Lines in common or combined format, with the real times at which they are replayed."""

    def __init__(self, pace: ReplayClock) -> None:
        super().__init__()
        self._pace = pace

    def parse(self, line: bytes) -> Visit | None:
        """As `AccessLogFormat.parse`."""
        visit = super().parse(line)
        return None if visit is None else visit._replace(time=self._pace.at(visit.time))


@dataclass(frozen=True)
class _LogCount:
    """Counts the visits of the first lines in a transaction, and their number.

    `visit_log` counts them by the real time, as in production, and leaves out the bots.
    """

    queues: VisitQueues
    log: ServerLog
    pace: ReplayClock
    ids: VisitorIds
    visit_log: VisitLog

    def __call__(self, tr: Any, lines: Sequence[bytes], once: bytes | None) -> AddedLines:
        added = self.visit_log(tr, lines[:MOST])
        read = map(AccessLogFormat().parse, lines[:MOST])
        visits = [visit for visit in read if visit is not None and not is_bot(visit)]
        self.queues.count(tr, visits, self.ids)
        place = self.log.done(tr)
        if added.outside:
            # They came after the end of their window, and the recount must not expect them there.
            order = sorted(range(len(visits)), key=lambda number: visits[number].time)
            late = [place + number for number in order[: added.outside]]
            tr.set(_late_prefix(self.log) + b"%012d" % place, codec.encode(late))
        self.log.advance(tr, place + len(visits))
        return added


def _late_prefix(steps: Steps) -> bytes:
    """The prefix of a server's notes of late visits: a key ends with the position before their transaction."""
    return steps.key + b"/late/"


def read_late(tr: TransactionRead, servers: Sequence[Steps]) -> set[tuple[int, int]]:
    """(server, place) of the visits that were counted after the end of their window."""
    late = set()
    for number, steps in enumerate(servers):
        begin = _late_prefix(steps)
        for row in tr.get_range(begin, prefix_end(begin)):
            late |= {(number, place) for place in codec.decode(row.value)}
    return late
