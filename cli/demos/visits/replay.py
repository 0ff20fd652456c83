"""The logs of the demo of visits: read, generated, and written anew by web servers.

A log is replayed by its own times, but faster: for example one hour in ten seconds; the window of ten minutes then
takes less than two seconds. So each visit has a time by the real clock, which workers and readers use.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Final

from cq import runtime
from cq.cli.demos.harness import Steps
from cq.config.window import MIN_SLICE_MS, WindowSpec
from cq.durations import rough
from cq.errors import InvalidData
from cq.intake.access_log import AccessLogFormat, Visit
from cq.intake.lines import LONGEST_LINE
from cq.intake.logs import open_log
from cq.observers.visits import BOTS
from cq.store.api import Database
from cq.store.transact import transact

_BOTS: Final = re.compile(BOTS, re.IGNORECASE)
_BOT: Final = 40  # the number of a generated browser that is a bot


def read_log(path: Path, skip: Callable[[str], object] = lambda line: None) -> Iterator[tuple[Visit, bytes]]:
    """The visits in a plain or gzip file and their lines, in the order of the file.

    They are in common or combined format, see `AccessLogFormat`. Raises `OSError`, also for a truncated gzip file.

    Args:
        path: path of the file.
        skip: called for each line in another format, with its place and the reason.
    """
    log_format = AccessLogFormat()
    with open_log(path) as lines:
        try:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), b""), 1):
                try:
                    visit = log_format.parse(line)
                except InvalidData as error:
                    skip(f"{path}:{number}: {error}")
                    continue
                if visit is not None:
                    yield visit, line
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path}: the file is truncated or damaged: {error}") from None


def is_bot(visit: Visit) -> bool:
    """Whether the visit is one of a bot, by the name of its browser."""
    return _BOTS.search(visit.agent) is not None


def write_log(path: Path, rng: Random, *, visits: int = 20_000, seconds: float = 1_500.0) -> None:
    """Generate a log: visitors come, read some pages and leave; few pages have most of the visits.

    The log is in combined format with response times, and includes requests that do not count, as those of bots. Sizes
    and times of responses are log-normal, as on real sites: half of the responses have less than 10 kB and take less
    than 50 ms. The file is compressed if its name ends with `.gz`.
    """
    begin = datetime(2025, 3, 1, 20, 0, tzinfo=UTC)
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        for moment, line in sorted(_generated(rng, visits, seconds)):
            file.write(f"{begin + timedelta(seconds=moment):{line}}".encode())


def _page(rng: Random, moment: float) -> str:
    """The start page, a topic of any time, or a story of the last minutes, whose rank rises and falls."""
    kind = rng.random()
    if kind < 0.2:
        return "/"
    if kind < 0.35:
        return f"/story/{max(0, int((moment - rng.expovariate(1 / 200)) // 250))}"
    return f"/topic/{min(int(rng.paretovariate(0.8)), 5_000)}"


def _generated(rng: Random, visits: int, seconds: float) -> Iterator[tuple[float, str]]:
    """(seconds since the begin, line as a format of its time) of each request."""
    while visits > 0:
        host = (
            f"192.0.2.{rng.randrange(256)}" if rng.random() < 0.5 else f"2001:db8::{rng.randrange(65536):x}"
        )
        browser, moment = rng.randint(1, _BOT), rng.triangular(0, seconds, 0.7 * seconds)
        agent = "ExampleBot/1.0" if browser == _BOT else f"Browser/{browser}.0"
        for _ in range(min(visits, 1 + int(rng.expovariate(0.5)))):
            page = _page(rng, moment)
            size, took = round(rng.lognormvariate(9.2, 1.0)), rng.lognormvariate(-3.0, 0.8)
            answer = f"200 {size}" if rng.random() < 0.95 else "304 -"
            end = f'"-" "{agent}" {took:.3f}\n'
            if moment < seconds:
                yield (
                    moment,
                    f'{host} - - [%d/%b/%Y:%H:%M:%S +0000] "GET {page}?from=list HTTP/1.1" {answer} {end}',
                )
            if rng.random() < 0.1:
                yield moment, f'{host} - - [%d/%b/%Y:%H:%M:%S +0000] "POST {page} HTTP/1.1" 302 - {end}'
            visits -= 1
            moment += rng.expovariate(1 / 20)


KEYS: Final = b"demo_visits/"
"""The prefix of the demo's own keys."""
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


class LogWriter:
    """A web server that writes its log as time passes, and rotates it.

    Args:
        log: the log, its number of visits, and the number of those that are counted, in the store.
        lines: each visit with its line, in order.
        rng: decides between the ways to rotate.
    """

    def __init__(self, log: Steps, lines: Sequence[tuple[Visit, bytes]], rng: Random) -> None:
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


class ReplayedFormat(AccessLogFormat):
    """Lines in common or combined format, with the real times at which they are replayed."""

    def __init__(self, pace: ReplayClock) -> None:
        super().__init__()
        self._pace = pace

    def parse(self, line: bytes) -> Visit | None:
        """As `AccessLogFormat.parse`."""
        visit = super().parse(line)
        return None if visit is None else visit._replace(time=self._pace.at(visit.time))
