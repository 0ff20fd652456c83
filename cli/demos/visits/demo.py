"""The demo of visits: followers of logs are killed, and each reading of the counts equals a recount.

A look reads all numbers in one transaction, together with the number of visits that each follower has counted. These
numbers say which visits must be included, even while followers and workers run. All is compared with a recount of
exactly these visits at the time of the look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.demos.command import VisitOptions
from cq.cli.demos.harness import (
    DemoRun,
    Figures,
    Steps,
    check,
    compare,
    delete_earlier,
    killed,
    numbered,
    places,
    workers,
)
from cq.cli.demos.visits.queues import LEFT_OUT, SITE, TrendingPage, VisitQueues
from cq.cli.demos.visits.recount import VisitRecount, period_of
from cq.cli.demos.visits.replay import (
    KEYS,
    START,
    LogWriter,
    ReplayClock,
    is_bot,
    read_late,
    read_log,
    run_follower,
    write_log,
)
from cq.cli.demos.visits.tables import (
    Look,
    clock,
    look_tables,
    response_table,
    session_table,
    to_svg,
    trending_table,
    visitor_table,
)
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_rich, print_table, quantity
from cq.config.rollup import LevelPart
from cq.config.window import WindowSpec, milliseconds
from cq.encoding import codec
from cq.encoding.sketches.sketch import library
from cq.errors import BacklogTooDeep, InvalidConfiguration, InvalidData, NotReady
from cq.intake.access_log import Visit
from cq.observers.sessions import SessionCounts
from cq.observers.worker.worker import Worker
from cq.store.api import Database
from cq.store.follower import ReadFollower
from cq.store.transact import transact

_SKIPPED_SHOWN: Final = 5
_MILLISECOND: Final = 0.001
_TRENDING_COMPARED: Final = 20
"""Pages of each period that are compared at the end, and known to the chart."""


def run(options: VisitOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    window = _checked_window(options)
    db = make_store(options.store)
    lines, read = read_visits(options, demo)
    times = [visit.time for visit, _ in lines]
    pace = ReplayClock.at_speed(window, options.speed, min(times))
    if duration := pace.about_duration(max(times)):
        note(duration)
    queues = _made_queues(db, pace)
    # Neighbouring visits go to different servers, as behind a load balancer.
    parts = [lines[number :: options.servers] for number in range(options.servers)]
    people = [[visit for visit, _ in part if not is_bot(visit)] for part in parts]
    servers = _server_logs(demo, people)
    writers = [LogWriter(log, part, demo.rng) for log, part in zip(servers, parts, strict=True)]
    replay = Replay(db, queues, servers, pace, VisitRecount(people))
    # As for a page that many people load.
    page = ReadFollower(db, partial(replay.read, pages=options.top), every=options.look_every)
    followers = numbered(
        "follower", (partial(run_follower, url=options.store, pace=pace, log=log) for log in servers)
    )
    with page:

        def look() -> Any:
            shown = replay.look(page, options.top)
            replay.write(writers)
            return shown and look_tables(shown)

        try:
            roles = followers, workers(options.workers, options.store, queues.names)
            # No limit: the log and the speed decide how long a replay takes. Long ones say so at the start.
            figures = demo.complete(*roles, look, replay.is_window_empty, math.inf)
        except KeyboardInterrupt:
            _note_early_end(options, replay, sum(map(len, people)))
            raise
    replay.drain()
    return figures | read | replay.compare_all(options, [steps.number for steps in servers])


def _made_queues(db: Database, pace: ReplayClock) -> VisitQueues:
    """Create the queues, and delete all data of an earlier demo."""
    queues = VisitQueues()
    if queues.has_sketches:
        library()  # now: ^C during its import at a look would end in an error of the import
    else:
        note(LEFT_OUT)
    delete_earlier(db, KEYS, queues.possible)
    queues.configure(db, window=pace.spec, buckets=2)
    return queues


def _checked_window(options: VisitOptions) -> WindowSpec:
    """The window of the options; raises `InvalidConfiguration`, and `OSError` of a file before any output."""
    window = WindowSpec.parse(options.window)
    if not window:
        raise InvalidConfiguration("expected the width and slice of a window, such as 10m/10s")
    for path in options.logs or ():
        path.open("rb").close()
    if options.chart is not None:
        options.chart.open("a").close()  # now, not after a long replay
    return window


def _server_logs(demo: DemoRun, parts: Sequence[Sequence[Visit]]) -> list[Steps]:
    return [
        Steps(demo.folder / f"access-{number}.log", len(part), KEYS + b"position/%d" % number)
        for number, part in enumerate(parts)
    ]


def _note_early_end(options: VisitOptions, replay: Replay, number: int) -> None:
    """Compare what was counted of this number of visits, and print it."""
    counted = replay.drain()
    looks = len(replay.compare_all(options, counted)["looks"])
    note(
        f"ended early: {sum(counted):,} of {quantity(number, 'visit')} counted, "
        f"as recounted, and at {quantity(looks, 'look')} before"
    )


def read_visits(options: VisitOptions, demo: DemoRun) -> tuple[list[tuple[Visit, bytes]], Figures]:
    """All visits of the logs, or of a generated one, with their lines; the figures of bots and skipped lines.

    Prints a note of skipped lines. Raises `InvalidData` if there are no visits other than those of bots.
    """
    logs = options.logs or [demo.folder / "access.log.gz"]
    if not options.logs:
        write_log(logs[0], demo.rng, visits=options.number)
    skipped, number = list[str](), 0

    def skip(line: str) -> None:
        nonlocal number
        number += 1
        if number <= _SKIPPED_SHOWN:  # a log in another format may have millions
            skipped.append(line)

    lines = [each for path in logs for each in read_log(path, skip)]
    bots = sum(is_bot(visit) for visit, _ in lines)
    if len(lines) == bots:
        raise InvalidData(
            "the log has no visits: GET requests of browsers with an answer of status 2xx or 304"
        )
    for line in skipped:
        note(f"skipped, {line}")
    return lines, {"bots": bots, "skipped": skipped, "lines_skipped": number}


class _LookData(NamedTuple):
    """The data of one look, read in one transaction."""

    now: int
    places: list[int]
    late: set[tuple[int, int]]
    within: dict[str, tuple[int, int]]
    top: list[str]
    unique: dict[str, Any]
    responses: dict[str, Any]
    trending: tuple[TrendingPage, ...]
    is_trending_current: bool
    sessions: SessionCounts | None


class Replay:
    """The looks at a replay. All methods raise `DemoDiffers` if a number differs from the recount.

    Args:
        servers: the log of each web server.
        pace: the clock of the replay, without its start.
    """

    def __init__(
        self,
        db: Database,
        queues: VisitQueues,
        servers: Sequence[Steps],
        pace: ReplayClock,
        recount: VisitRecount,
    ) -> None:
        self._looks: list[Look] = []
        self._trends_compared = 0  # looks that compared the trending pages, too
        self._recount = recount
        self._db, self._queues, self._servers, self._pace = db, queues, servers, pace
        self._version = 0
        self._oldest = 0.0  # the greatest age of what a look compared

    def look(self, page: ReadFollower[_LookData | None], pages: int) -> Look | None:
        """Start the replay when all followers are ready; then compare all numbers, each time that they were read."""
        found = page.latest
        if not self._pace.start:
            transact(self._db, self._begin)
        elif found is not None and found.value is not None and found.version != self._version:
            read = found.value.now / 1000
            check(
                found.at <= read + _MILLISECOND,
                f"the numbers of {read:.3f} state an age since {found.at:.3f}",
            )
            self._version, self._oldest = found.version, max(self._oldest, found.age)
            self._looks.append(self._compare(found.value, pages))
        return self._looks[-1] if self._looks else None

    def write(self, writers: Sequence[LogWriter]) -> None:
        """Write what has happened by now into the logs."""
        if self._pace.start:
            for writer in writers:
                writer.write(self._db, self._pace)

    def _begin(self, tr: Any) -> None:
        # When all followers are ready: one that starts late would count its first visits late.
        ready = [tr.get(steps.key) for steps in self._servers]
        if all(each.present() for each in ready):
            self._pace = replace(self._pace, start=runtime.time())
            tr.set(START, codec.encode(self._pace.start))

    def read(self, snapshot: Any, pages: int) -> _LookData | None:
        """All numbers; None before the start of the replay, and while workers are behind, or have not begun."""
        try:
            return self._read(snapshot, pages) if self._pace.start else None
        except (BacklogTooDeep, NotReady):
            return None

    def _read(self, snapshot: Any, pages: int) -> _LookData:
        queues = self._queues
        # Read the clock after the read version: visits expired by then were removed by an earlier clock.
        snapshot.get_read_version().wait()
        now = milliseconds(None)
        within = queues.visits.within(snapshot, now=now / 1000)
        top = sorted(within, key=lambda page: (-within[page][0], page))[:pages]
        site = queues.visits.site(snapshot, pending=True, now=now / 1000)
        if site.views or site.visitors:
            within[SITE] = site.views, site.visitors
        return _LookData(
            now,
            [steps.done(snapshot) for steps in self._servers],
            read_late(snapshot, self._servers),
            within,
            top,
            *queues.sketches(snapshot, [SITE, *top]),
            queues.trending(snapshot, period_of(self._pace.of(now / 1000)), pages),
            queues.are_hits_combined(snapshot),
            queues.sessions_now(snapshot),
        )

    def _compare(self, found: _LookData, pages: int) -> Look:
        recount, time = self._recount, self._pace.of(found.now / 1000)
        recount.advance(found.places, found.late, self._pace)
        recount.check_window(found.within, found.now)
        if found.is_trending_current:
            recount.check_trending(period_of(time), found.trending, pages)
            self._trends_compared += 1
        if found.sessions is not None:
            recount.check_sessions(found.sessions)
        return Look(
            time,
            *found.within.get(SITE, (0, 0)),
            tuple((page, *found.within[page]) for page in found.top),
            recount.check_visitors(found.unique),
            recount.check_responses(found.responses),
            found.trending,
            found.sessions,
        )

    def is_window_empty(self) -> bool:
        """Whether nothing is within the window: workers remove expired visits, even without a reader."""
        visits = self._queues.visits
        windows = [LevelPart.WINDOW.queue_of(each.name) for each in (visits.views, visits.seen)]
        some = [cq.CombineQueue[Any, Any](name) for name in (*windows, visits.visitors.name)]
        pages = transact(self._db, lambda tr: [queue.items(tr.snapshot, limit=1) for queue in some])
        return not any(page.items for page in pages)

    def drain(self) -> list[int]:
        """Combine all visits; returns the positions of the servers."""
        # The servers have ended, but the store may still apply the last commit of one.
        before, read = [-1], places(self._db, self._servers)
        while before != read:
            before = read
            Worker(self._db, queues=self._queues.names).drain()
            read = places(self._db, self._servers)
        return read

    def compare_all(self, options: VisitOptions, counted: Sequence[int]) -> Figures:
        """Compare all visits up to these positions, and write the chart; returns their figures."""
        queues, recount = self._queues, self._recount
        recount.advance(counted, (), self._pace)
        compare("the views of all time", queues.lifetime(self._db), recount.views)
        limit = max(options.top, _TRENDING_COMPARED)
        periods = {}
        for start in sorted(recount.periods):
            periods[start] = transact(self._db, partial(queues.trending, period=start, limit=limit))
            recount.check_trending(start, periods[start], limit)
        days = recount.sessions()
        sessions = transact(self._db, lambda tr: {day: queues.sessions.get(tr.snapshot, day) for day in days})
        compare("sessions of days", sessions, days)
        unique, responses = transact(self._db, lambda tr: queues.sketches(tr.snapshot, ()))
        if queues.has_sketches:
            unique = dict.fromkeys(recount.readers) | dict(queues.unique.scan(self._db))
        estimates = {each.page: each for each in recount.check_visitors(unique)}
        if options.chart is not None:
            drawn = to_svg(self._looks, self._pace.window.width / 1000, periods)
            options.chart.write_text(drawn, encoding="utf-8")
        most = recount.views.most_common(options.top + 1)
        return {
            "visits": recount.views[SITE],
            "pages": len(recount.views) - 1,
            "late": len(transact(self._db, lambda tr: read_late(tr.snapshot, self._servers))),
            "speed": self._pace.speed,
            "looks": self._looks,
            "oldest_seconds": round(self._oldest, 3),
            "trends_compared": self._trends_compared,
            "lifetime": [each for each in most if each[0] != SITE],
            "trending": next(reversed(periods.values()), ())[: options.top],
            "sessions": sessions,
            "unique": [estimates[page] for page, _ in most if page in estimates],
            "responses": recount.check_responses(responses),
        }


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
    print_rich("", trending_table(figures["trending"]))
    print_rich("", session_table(figures["sessions"]))
    if figures["unique"]:
        print_rich("", visitor_table(figures["unique"]), "", response_table(figures["responses"]))
    lines = figures["lines_skipped"]
    skipped = f", {quantity(lines, 'line')} skipped" if lines else ""
    bots = f", {quantity(figures['bots'], 'visit')} of bots not counted" if figures["bots"] else ""
    note(
        f"{quantity(figures['visits'], 'visit')} of {quantity(figures['pages'], 'page')} "
        f"at {figures['speed']:,.0f} times their speed, {killed(figures)}, "
        f"{quantity(figures['late'], 'visit')} too late for the window{bots}{skipped}: "
        f"as recounted at {quantity(len(figures['looks']), 'look')} of numbers that were read at most "
        f"{figures['oldest_seconds']:.1f} s before, and 0 lost"
    )
