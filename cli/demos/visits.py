"""`cq demo visits`: the visits in an access log equal a recount at each look, while what counts them is killed.

The log is replayed by its own times, but faster: web servers write its lines into logs of their own, each with the time
at which they write it, and rotate these. Followers count the lines, as `cq add --access-log --follow` does.

A look reads all numbers in one transaction, together with the number of visits that each follower has counted. These
numbers say which visits must be included, even while followers and workers run.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.demos.command import VisitOptions
from cq.cli.demos.harness import (
    DemoRun,
    Figures,
    Steps,
    compare,
    compare_queue,
    delete_earlier,
    numbered,
    workers,
)
from cq.cli.shared.chart import line_chart
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_table, quantity
from cq.cli.shared.rows import whole_file
from cq.cli.shared.table import FittedTable
from cq.config.rollup import LevelPart
from cq.config.window import MIN_SLICE_MS, WindowSpec, milliseconds
from cq.durations import rough
from cq.errors import BacklogTooDeep, InvalidData
from cq.intake.access_log import AccessLogFormat, Visit
from cq.intake.lines import LONGEST_LINE, AddedLines
from cq.intake.logs import open_log
from cq.keys import below
from cq.observers.sessions import DAY, MIN_GAP, SessionCounts
from cq.observers.visits import BOTS, VisitLog, Visits
from cq.observers.worker.worker import Worker
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

VISITS: Final = Visits("demo_visits", readers=True, sessions=True)
SITE: Final = ""
"""The page with the numbers of the whole site."""
KEYS: Final = b"demo_visits/"
"""The prefix of the demo's own keys."""
_SLICE_MS: Final = 10_000
_SLICES: Final = 60
"""The window: ten minutes of the log's time."""
_GAP: Final = 1_800
"""Seconds of the log's time without a visit that end a session."""
MOST: Final = 500
"""Maximum number of lines that one transaction counts."""
_PAUSE: Final = 0.02
_LOOK_SECONDS: Final = 0.5
_MORE_SECONDS: Final = 1.0  # for the last visits
_ROTATIONS: Final = 8
"""How often each log is rotated."""
_PAGES_SHOWN: Final = 5
_PAGES_DRAWN: Final = 3
_BOTS: Final = re.compile(BOTS, re.IGNORECASE)
_BOT: Final = 40  # the number of a generated browser that is a bot
_SECONDS: Final = 1_500.0  # of a generated log

Line = tuple[Visit, bytes]
"""A visit, and its line in a log."""


def run(options: VisitOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    if options.chart is not None:
        options.chart.open("a").close()  # now, not after a long replay
    lines = [each for path in options.logs or () for each in read_log(path)]
    if not options.logs:
        lines = list(generated(demo.rng, options.number))
    people = [visit for visit, _ in lines if not is_bot(visit)]
    if not people:
        raise InvalidData(
            "the log has no visits: GET requests of browsers with an answer of status 2xx or 304"
        )
    lines.sort(key=lambda line: line[0].time)
    db, url, pace = make_store(options.store), options.store, ReplayClock.of_log(lines, options.speed)
    note(f"the replay takes about {rough(pace.seconds)}, and then {rough(pace.window.width / 1000)}")
    delete_earlier(db, KEYS, VISITS.queues)
    VISITS.configure(db, window=pace.window, gap=pace.gap, buckets=2)
    # Neighbouring visits go to different servers, as behind a load balancer.
    shares = (lines[number :: options.servers] for number in range(options.servers))
    servers = [WebServer(db, demo, number, share) for number, share in enumerate(shares)]
    replay = Replay(db, pace, servers)
    figures = demo.complete(
        numbered("follower", (partial(run_follower, url=url, log=server.log) for server in servers)),
        workers(options.workers, url, VISITS.queues),
        replay.look,
        replay.is_settled,
        replay.close,
        pace.seconds + _MORE_SECONDS,
    )
    figures |= replay.compare_all() | {"bots": len(lines) - len(people), "speed": pace.speed}
    if options.chart is not None:
        with whole_file(str(options.chart)) as write:
            write(chart(replay.looks).encode())
    return figures


# The log


def read_log(path: Path) -> Iterator[Line]:
    """The visits in a plain or gzip file, in common or combined format; prints the number of lines in another format.

    Raises `OSError`, also for a truncated gzip file.
    """
    log_format, skipped, problem = AccessLogFormat(), 0, ""
    with open_log(path) as lines:
        try:
            for line in iter(partial(lines.readline, LONGEST_LINE), b""):
                try:
                    visit = log_format.parse(line)
                except InvalidData as error:
                    skipped, problem = skipped + 1, problem or str(error)
                    continue
                if visit is not None:
                    yield visit, line.rstrip(b"\r\n") + b"\n"
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path}: the file is truncated or damaged: {error}") from None
    if skipped:
        note(f"{path}: {quantity(skipped, 'line')} skipped, the first one as {problem}")


def is_bot(visit: Visit) -> bool:
    """Whether the visit is one of a bot, by the name of its browser."""
    return _BOTS.search(visit.agent) is not None


def generated(rng: Random, number: int) -> Iterator[Line]:
    """Generate about `number` visits: visitors come, read some pages and leave; few pages have most of the visits."""
    log_format, begin = AccessLogFormat(), datetime(2025, 3, 1, 20, 0, tzinfo=UTC)
    while number > 0:
        host, browser = f"2001:db8::{rng.randrange(65536):x}", rng.randint(1, _BOT)
        agent = "ExampleBot/1.0" if browser == _BOT else f"Browser/{browser}.0"
        moment = rng.triangular(0, _SECONDS, 0.7 * _SECONDS)
        for _ in range(1 + int(rng.expovariate(0.5))):
            time = begin + timedelta(seconds=moment)
            line = f'{host} - - [{time:%d/%b/%Y:%H:%M:%S +0000}] "GET {_page(rng)} HTTP/1.1" 200 5120 "-" "{agent}"\n'
            visit = log_format.parse(line.encode())
            if visit is not None and moment < _SECONDS:
                yield visit, line.encode()
            number -= 1
            moment += rng.expovariate(1 / 20)


def _page(rng: Random) -> str:
    return "/" if rng.random() < 0.2 else f"/topic/{min(int(rng.paretovariate(0.8)), 5_000)}"


@dataclass
class ReplayClock:
    """The conversion of the log's time to real time.

    Attributes:
        first, last: times of the first and the last visit of the log.
        window: the window in real time.
        start: real time of the first visit.
    """

    first: float
    last: float
    window: WindowSpec
    start: float = 0.0

    @classmethod
    def of_log(cls, lines: Sequence[Line], speed: float) -> ReplayClock:
        """The clock of about this speed: a slice takes whole milliseconds."""
        slice_ms = max(MIN_SLICE_MS, round(_SLICE_MS / speed))
        return cls(lines[0][0].time, lines[-1][0].time, WindowSpec(_SLICES * slice_ms, slice_ms))

    @property
    def speed(self) -> float:
        """Seconds of the log that are replayed per second."""
        return _SLICE_MS / self.window.slice

    @property
    def seconds(self) -> float:
        """The real duration of the replay."""
        return (self.last - self.first) / self.speed

    @property
    def gap(self) -> int:
        """Real seconds without a visit that end a session."""
        return max(MIN_GAP, round(_GAP / self.speed))

    def at(self, time: float) -> float:
        """The real time of a time of the log."""
        return round(self.start + (time - self.first) / self.speed, 3)

    def of(self, now: float) -> float:
        """The log's time at a real time."""
        return self.first + (now - self.start) * self.speed


class WebServer:
    """A web server that writes its log as time passes, and rotates it.

    Args:
        number: of the server.
        lines: each visit with its line, in order.

    Attributes:
        log: the path of its log, and the number of counted visits, in the store.
        written: the visits that it has written, without those of bots, with their real times.
    """

    def __init__(self, db: Database, demo: DemoRun, number: int, lines: Sequence[Line]) -> None:
        path = demo.folder / f"access-{number}.log"
        self.log = Steps(path, len(lines), KEYS + b"position/%d" % number)
        self.written: list[Visit] = []
        self._db, self._rng, self._lines = db, demo.rng, lines
        self._begin, self._rotations = 0, 0
        path.touch()
        # Followers must know the log before its first rotation.
        VisitLog(VISITS).follow(db, path, name=path.name).close()

    def write(self, pace: ReplayClock, now: float) -> None:
        """Write the lines of the visits that have happened by now."""
        end = self._begin
        while end < len(self._lines) and pace.at(self._lines[end][0].time) <= now:
            end += 1
        due, self._begin = self._lines[self._begin : end], end
        if due and end * _ROTATIONS > (self._rotations + 1) * len(self._lines):
            # Before its first commit a follower knows the file by its inode only, which a copy has not.
            self._rotate(by_copy=self._rng.random() < 0.5 and transact(self._db, self.log.done) > 0)
        with self.log.path.open("ab") as file:
            for visit, line in due:
                at = pace.at(visit.time)
                file.write(b"%.3f %s" % (at, line))
                if not is_bot(visit):
                    self.written.append(visit._replace(time=at))

    def _rotate(self, *, by_copy: bool) -> None:
        """Rename the log, or copy and truncate it, as logrotate does."""
        path, self._rotations = self.log.path, self._rotations + 1
        former = path.with_name(f"{path.name}-{20250300 + self._rotations}")
        if by_copy:
            shutil.copyfile(path, former)
            os.truncate(path, 0)
        else:
            path.rename(former)
            path.touch()


# The followers


class ReplayedFormat(AccessLogFormat):
    """Lines in common or combined format after the real time of the visit."""

    def parse(self, line: bytes) -> Visit | None:
        """As `AccessLogFormat.parse`."""
        at, _, rest = line.partition(b" ")
        visit = super().parse(rest)
        return None if visit is None else visit._replace(time=float(at))


def run_follower(stop: Event, *, url: str, log: Steps) -> None:
    """Count the visits in a web server's log, until all are counted.

    The transaction that counts also stores the position: so a restarted follower continues there.
    """
    db = cq.open(url)
    visit_log = VisitLog(VISITS, ReplayedFormat(), ids=VISITS.ids(db))

    def add(tr: Transaction, lines: Sequence[bytes], once: bytes | None) -> AddedLines:
        added, place = visit_log(tr, lines[:MOST]), log.done(tr)
        if added.outside:
            # The first ones came after the end of their window, and the recount must not expect them there.
            tr.set(_late(log) + b"%012d" % place, b"%d" % added.outside)
        log.advance(tr, place + added.added)
        return added

    with closing(visit_log.follow(db, log.path, name=log.path.name)) as follower:
        while not stop.is_set():
            if follower.add_next(add) is None:
                if transact(db, lambda tr: tr.get(_end(log)).value == b"%d" % log.done(tr)):
                    return
                stop.wait(_PAUSE)


def _late(log: Steps) -> bytes:
    """The prefix of the notes of late visits: a key ends with the position before their transaction."""
    return log.key + b"/late/"


def _end(log: Steps) -> bytes:
    """The key of the number of all visits in a log, when no more will be written."""
    return log.key + b"/end"


def read_late(tr: TransactionRead, log: Steps) -> set[int]:
    """The places of the visits of a log that were counted after the end of their window."""
    found = set[int]()
    for row in tr.get_range(*below(_late(log))):
        place = int(row.key.removeprefix(_late(log)))
        found.update(range(place, place + int(row.value)))
    return found


# The recount


class VisitRecount:
    """The counts that the queues must have after some visits.

    Attributes:
        views: {page: all its views}, with `SITE`.
        readers: {page: all its visitors}, with `SITE`; a visitor on another day is another one.
    """

    def __init__(self) -> None:
        self.views: Counter[str] = Counter()
        self.readers: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self._inside: list[tuple[int, str, tuple[int, str]]] = []
        self._times: defaultdict[tuple[int, str], list[int]] = defaultdict(list)

    def add(self, visit: Visit, expires: int | None) -> None:
        """Add a visit, which is in the window until a time in milliseconds; None: it came too late for it."""
        visitor = int(visit.time // DAY), visit.visitor
        self._times[visitor].append(int(visit.time))
        for page in (SITE, visit.page):
            self.views[page] += 1
            self.readers[page].add(visitor)
            if expires is not None:
                self._inside.append((expires, page, visitor))

    def window(self, now: int) -> dict[str, tuple[int, int]]:
        """{page: (views, visitors)} of the window at a time in milliseconds, which must not decrease."""
        self._inside = [each for each in self._inside if each[0] > now]
        views = Counter(page for _, page, _ in self._inside)
        visitors = Counter(page for page, _ in {(page, visitor) for _, page, visitor in self._inside})
        return {page: (views[page], visitors[page]) for page in views}

    def sessions(self, gap: int) -> SessionCounts:
        """The sessions of all visitors."""
        found: Counter[str] = Counter()
        for times in map(sorted, self._times.values()):
            begins = [place for place, at in enumerate(times) if not place or at - times[place - 1] >= gap]
            for begin, end in pairwise([*begins, len(times)]):
                visits, seconds = end - begin, times[end - 1] - times[begin]
                found.update(sessions=1, bounces=visits == 1, visits=visits, seconds=seconds)
        return SessionCounts(**found)


class Look(NamedTuple):
    """The numbers of one comparison with the recount.

    Attributes:
        time: of the log's clock.
        views, visitors: of the whole site in the window.
        top: (page, views, visitors) of the pages with the most views in the window.
    """

    time: float
    views: int
    visitors: int
    top: list[tuple[str, int, int]]


class Replay:
    """The looks at a replay. All methods raise `DemoDiffers` if a number differs from the recount.

    Attributes:
        looks: all looks.
    """

    def __init__(self, db: Database, pace: ReplayClock, servers: Sequence[WebServer]) -> None:
        self.looks: list[Look] = []
        self._db, self._pace, self._servers = db, pace, servers
        self._recount, self._counted = VisitRecount(), [0] * len(servers)
        self._next, self._is_closed, self._is_early = 0.0, False, False

    def look(self) -> Any:
        """Write what has happened by now into the logs, and compare all numbers now and then; returns a table."""
        if not self._pace.start:
            self._pace.start = runtime.time()
        if not self._is_closed:
            self._write(runtime.time())
        if runtime.monotonic() >= self._next:
            self._next = runtime.monotonic() + _LOOK_SECONDS
            self._compare()
        return self.looks and look_table(self.looks[-1])

    def _write(self, now: float) -> None:
        for server in self._servers:
            server.write(self._pace, now)

    def close(self) -> None:
        """Let the followers end when they have counted what is written."""
        now = runtime.time()
        self._is_early = self._pace.of(now) < self._pace.last
        self._write(now)
        self._is_closed = True

        def end(tr: Transaction) -> None:
            for server in self._servers:
                tr.set(_end(server.log), b"%d" % len(server.written))

        transact(self._db, end)

    def _compare(self) -> None:
        def read(tr: Transaction) -> tuple[int, dict[str, tuple[int, int]], Any, list[int], list[set[int]]]:
            # Read the clock after the read version: visits expired by then were removed by an earlier clock.
            tr.get_read_version().wait()
            now = milliseconds(None)
            within = VISITS.within(tr.snapshot, now=now / 1000)
            site = VISITS.site(tr.snapshot, pending=True, now=now / 1000)
            logs = [server.log for server in self._servers]
            counted = [log.done(tr.snapshot) for log in logs]
            return now, within, site, counted, [read_late(tr.snapshot, log) for log in logs]

        try:
            now, within, site, counted, late = transact(self._db, read)
        except BacklogTooDeep:
            return  # the workers are behind
        self._advance(counted, late)
        top = sorted(within, key=lambda page: (-within[page][0], page))[:_PAGES_SHOWN]
        shown = [(page, *within[page]) for page in top]
        if site.views or site.visitors:
            within[SITE] = site.views, site.visitors
        compare("at a look", within, self._recount.window(now))
        recounted = {"views": self._recount.views[SITE], "readers": len(self._recount.readers[SITE])}
        compare("of all time", {"views": site.lifetime, "readers": site.readers}, recounted)
        self.looks.append(Look(self._pace.of(now / 1000), site.views, site.visitors, shown))

    def _advance(self, counted: Sequence[int], late: Sequence[set[int]]) -> None:
        """Recount the visits up to these numbers of counted ones."""
        for number, server in enumerate(self._servers):
            for place in range(self._counted[number], counted[number]):
                visit = server.written[place]
                expires = self._pace.window.expires(milliseconds(visit.time))
                self._recount.add(visit, None if place in late[number] else expires)
        self._counted = list(counted)

    def is_settled(self) -> bool:
        """Whether nothing is within the window: workers remove expired visits, even without a reader.

        After ^C it is not awaited.
        """
        windows = [LevelPart.WINDOW.queue_of(each.name) for each in (VISITS.views, VISITS.seen)]
        some = [cq.CombineQueue[Any, Any](name) for name in (*windows, VISITS.visitors.name)]
        pages = transact(self._db, lambda tr: [queue.items(tr.snapshot, limit=1) for queue in some])
        return self._is_early or not any(page.items for page in pages)

    def compare_all(self) -> Figures:
        """Compare the counts of all time; returns the figures."""
        Worker(self._db, queues=VISITS.queues).drain()

        def read(tr: Transaction) -> tuple[SessionCounts, list[set[int]]]:
            logs = [server.log for server in self._servers]
            return VISITS.sessions.get(tr.snapshot), [read_late(tr.snapshot, log) for log in logs]

        sessions, late = transact(self._db, read)
        self._advance([len(server.written) for server in self._servers], late)
        recount = self._recount
        compare_queue(self._db, "the views of all time", VISITS.lifetime.name, recount.views)
        readers = {page: len(found) for page, found in recount.readers.items()}
        compare_queue(self._db, "the readers of all time", f"{VISITS.name}.readers", readers)
        compare("sessions", {"all": sessions}, {"all": recount.sessions(self._pace.gap)})
        return {
            "visits": recount.views[SITE],
            "pages": len(recount.views) - 1,
            "visitors": len(recount.readers[SITE]),
            "late": sum(map(len, late)),
            "looks": self.looks,
            "lifetime": [each for each in recount.views.most_common(_PAGES_SHOWN + 1) if each[0] != SITE],
            "sessions": sessions,
        }


# What is shown


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    rows = (
        [
            clock(look.time),
            f"{look.views:,}",
            f"{look.visitors:,}",
            ", ".join(f"{as_word(page)} {views:,}" for page, views, _ in look.top),
        ]
        for look in figures["looks"]
    )
    print_table(["time", "views", "visitors", "most views"], rows, right=["views", "visitors"])
    sessions = figures["sessions"]
    note(
        f"{quantity(sessions.sessions, 'session')} of {quantity(figures['visitors'], 'visitor')}, "
        f"{sessions.mean_visits or 0:.1f} visits in each, {sessions.bounce_share or 0:.1%} bounces"
    )
    note(
        f"{quantity(figures['visits'], 'visit')} of {quantity(figures['pages'], 'page')} "
        f"at {figures['speed']:,.0f} times their speed, "
        f"{quantity(figures['late'], 'visit')} too late for the window, {quantity(figures['bots'], 'visit')} of bots "
        f"not counted: as recounted at {quantity(len(figures['looks']), 'look')}, and 0 lost"
    )


def look_table(look: Look) -> FittedTable:
    """The table of one look."""
    rows = [(clock(look.time), look.views, look.visitors), *look.top]
    cells = [[as_word(page), f"{views:,}", f"{visitors:,}"] for page, views, visitors in rows]
    return FittedTable(["page", "views", "visitors"], cells, right=["views", "visitors"])


def chart(looks: Sequence[Look]) -> str:
    """The numbers of the window at all looks, as SVG."""
    pages = [{page: views for page, views, _ in look.top} for look in looks]
    highest: Counter[str] = Counter()
    for each in pages:
        highest |= Counter(each)
    lines: dict[str, Sequence[int | None]] = {
        "views": [look.views for look in looks],
        "visitors": [look.visitors for look in looks],
        # None, not 0: a page that is not among the first ones may have views.
        **{page: [each.get(page) for each in pages] for page, _ in highest.most_common(_PAGES_DRAWN)},
    }
    about = "at each look as recounted, by the clock of the log"
    return line_chart("Visits of the last ten minutes", about, [look.time for look in looks], lines)


def clock(time: float) -> str:
    """A time of the log."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
