"""The demo of visits: web servers replay a log and are killed, and each reading of the counts equals a recount.

A look reads all numbers in one transaction, together with the position of each web server. The positions say which
visits the numbers must include, even while servers and workers run. The numbers are compared with a recount of exactly
these visits at the time of the look.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.cli.demos.harness.demo import Demo, compare, delete_earlier, killed
from cq.cli.demos.harness.worker import run_worker
from cq.cli.demos.visits.access_log import Visit, read_log, write_log
from cq.cli.demos.visits.looks import (
    Look,
    clock,
    response_table,
    shown_looks,
    to_svg,
    trending_table,
    visitor_table,
)
from cq.cli.demos.visits.queues import LEFT_OUT, SITE, VisitQueues
from cq.cli.demos.visits.recount import VisitRecount
from cq.cli.demos.visits.replay import (
    KEYS,
    START,
    ReplayClock,
    VisitServer,
    late_keys,
    server_position,
    write_part,
)
from cq.cli.demos.visits.sketches import (
    ResponseNumbers,
    VisitorEstimate,
    compare_responses,
    compare_visitors,
)
from cq.cli.demos.visits.trends import TrendingPage, period_of
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_rich, print_table, quantity
from cq.config.rollup import LevelPart
from cq.config.window import MIN_SLICE_MS, WindowSpec, milliseconds
from cq.encoding import codec
from cq.errors import BacklogTooDeep, InvalidData, NotReady
from cq.observers.worker.worker import Worker
from cq.store.transact import transact

_SKIPPED_SHOWN: Final = 5
_TRENDING_COMPARED: Final = 20
"""Pages of each period that are compared at the end, and known to the chart."""


@dataclass(frozen=True, slots=True)
class _DemoSnapshot:
    """The data of one look, read in one transaction."""

    now: int
    places: list[int]
    late: set[tuple[int, int]]
    within: dict[str, tuple[int, int]]
    top: list[str]
    unique: dict[str, Any]
    responses: dict[str, Any]
    period: int
    trending: tuple[TrendingPage, ...]
    is_trending_current: bool


@dataclass(frozen=True, slots=True)
class _Total:
    """The counts of all time.

    Attributes:
        views: of each page.
        trending: pages of the last period.
        unique: visitors of the site and of the most viewed pages.
        responses: sizes and times of responses.
    """

    views: Counter[str]
    trending: Sequence[TrendingPage] = ()
    unique: Sequence[VisitorEstimate] = ()
    responses: Sequence[ResponseNumbers] = ()


@dataclass
class VisitDemo(Demo):
    """The demo; its fields are the options of the command."""

    url: str
    logs: Sequence[Path]
    number: int
    speed: float
    window: WindowSpec
    servers: int
    workers: int
    look_every: float
    top: int
    chart: Path | None

    seconds: ClassVar[float] = math.inf
    """No limit: the log and the speed decide how long a replay takes. Long ones say so at the start."""

    def start(self, stack: ExitStack, rng: Random) -> None:
        self._db = make_store(self.url)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="cq-demo-")))
        if not self.logs:
            self.logs = [folder / "access.log.gz"]
            write_log(self.logs[0], rng, visits=self.number)
        self._skipped: list[str] = []
        self._lines_skipped = 0
        self._log = list(self._read_logs())
        if not self._log:
            raise InvalidData("the log has no visits: GET requests with an answer of status 2xx or 304")
        for line in self._skipped:
            note(f"skipped, {line}")
        # A slice takes whole milliseconds, so the speed is about the requested one.
        step = max(MIN_SLICE_MS, round(self.window.slice / self.speed))
        first = min(visit.time for visit in self._log)
        self._pace = ReplayClock(self.window.width / 1000, self.window.slice / 1000, step, first)
        duration = self._pace.about_duration(max(visit.time for visit in self._log))
        if duration is not None:
            note(duration)
        self._queues = VisitQueues()
        self._visits = self._queues.visits
        if not self._queues.has_sketches:
            note(LEFT_OUT)
        delete_earlier(self._db, KEYS, self._queues.possible)
        self._queues.configure(self._db, window=self._pace.spec, buckets=2)
        # Neighbouring visits go to different servers, as behind a load balancer.
        self._parts = [self._log[number :: self.servers] for number in range(self.servers)]
        for number, visits in enumerate(self._parts):
            write_part(folder / f"part-{number}", visits)
        self.work = {
            f"server {number}": VisitServer(self.url, folder / f"part-{number}", number, self._pace).run
            for number in range(self.servers)
        }
        self.services = {
            f"worker {number}": partial(run_worker, url=self.url, queues=self._queues.names)
            for number in range(self.workers)
        }
        self._recount = VisitRecount(self._parts)
        self._late = 0
        self._trends_compared = 0
        self._looks: list[Look] = []
        self._trending: dict[int, tuple[TrendingPage, ...]] = {}
        self._next_look = 0.0
        self._show_look = stack.enter_context(shown_looks())

    def _read_logs(self) -> Iterator[Visit]:
        for path in self.logs:

            def skip(line: int, reason: str, path: Path = path) -> None:
                self._lines_skipped += 1
                if len(self._skipped) < _SKIPPED_SHOWN:
                    self._skipped.append(f"{path}:{line}: {reason}")

            yield from read_log(path, skip)

    def look(self) -> None:
        if not self._pace.start:
            transact(self._db, self._begin)
        elif runtime.time() >= self._next_look:
            try:
                self._compare_window()
            except (
                BacklogTooDeep,
                NotReady,
            ):  # workers are behind, or have not begun; the next look comes later
                return
            self._next_look = runtime.time() + self.look_every

    def _begin(self, tr: Any) -> None:
        """Start the replay when all servers are ready: one that starts late would count its first visits late."""
        ready = [tr.get(server_position(number).key) for number in range(self.servers)]
        if all(each.present() for each in ready):
            self._pace = replace(self._pace, start=runtime.time())
            tr.set(START, codec.encode(self._pace.start))

    def is_settled(self) -> bool:
        # The window becomes empty: workers remove expired visits, even without a reader.
        names = (
            LevelPart.WINDOW.queue_of(self._visits.views.name),
            LevelPart.WINDOW.queue_of(self._visits.seen.name),
            self._visits.visitors.name,
        )
        some = [cq.CombineQueue[Any, Any](name) for name in names]
        pages = transact(self._db, lambda tr: [queue.items(tr.snapshot, limit=1) for queue in some])
        return not any(page.items for page in pages)

    # Looks

    def _compare_window(self) -> None:
        seen = transact(self._db, self._read)
        recount = self._recount
        recount.advance(seen.places, seen.late, self._pace)
        compare("at a look", seen.within, recount.within(seen.now))
        look = Look(
            self._pace.of(seen.now / 1000),
            *seen.within.get(SITE, (0, 0)),
            tuple((page, *seen.within[page]) for page in seen.top),
            compare_visitors(seen.unique, recount.readers),
            compare_responses(seen.responses, recount.numbers),
            seen.trending,
        )
        if seen.is_trending_current:
            recount.periods.check(seen.period, seen.trending, self.top)
            self._trends_compared += 1
        self._looks.append(look)
        self._late = len(seen.late)
        self._show_look(look)

    def _read(self, tr: Any) -> _DemoSnapshot:
        snapshot = tr.snapshot
        # Read the clock after the read version: visits expired by then were removed by an earlier clock.
        tr.get_read_version().wait()
        now = milliseconds(None)
        late = set()
        for number in range(self.servers):
            for row in snapshot.get_range(*late_keys(number)):
                first = int(row.key.rpartition(b"/")[2])
                late |= {(number, first + each) for each in range(codec.decode(row.value))}
        within = self._visits.within(snapshot, now=now / 1000)
        places = [server_position(number).read(snapshot) for number in range(self.servers)]
        pages = within.keys() - {SITE}
        top = sorted(pages, key=lambda page: (-within[page][0], page))[: self.top]
        period = period_of(self._pace.of(now / 1000))
        return _DemoSnapshot(
            now,
            places,
            late,
            within,
            top,
            unique=self._queues.unique_now(snapshot, [SITE, *top]),
            responses=self._queues.responses_now(snapshot),
            period=period,
            trending=self._queues.trending(snapshot, period, self.top),
            is_trending_current=self._queues.are_hits_combined(snapshot),
        )

    # The end

    def recount(self) -> dict[str, Any]:
        Worker(self._db, queues=self._queues.names).drain()
        self._total = self._compare_all([len(part) for part in self._parts])
        self._write_chart()
        return {
            "visits": len(self._log),
            "pages": len(self._total.views),
            "late": self._late,
            "speed": self._pace.speed,
            "looks": list(map(asdict, self._looks)),
            "skipped": self._skipped,
            "lines_skipped": self._lines_skipped,
            "lifetime": self._total.views.most_common(self.top),
            "trending": list(map(asdict, self._total.trending)),
            "trends_compared": self._trends_compared,
            "unique": list(map(asdict, self._total.unique)),
            "responses": list(map(asdict, self._total.responses)),
        }

    def summarize_interrupted(self) -> str:
        # The servers have ended, but the store may still apply the last commit of one.
        places, read = [-1], self._read_places()
        while places != read:
            places = read
            Worker(self._db, queues=self._queues.names).drain()
            read = self._read_places()
        self._compare_all(places)
        self._write_chart()
        return (
            f"ended early: {sum(places):,} of {quantity(len(self._log), 'visit')} counted, "
            f"as recounted, and at {quantity(len(self._looks), 'look')} before"
        )

    def _read_places(self) -> list[int]:
        servers = range(self.servers)
        return transact(self._db, lambda tr: [server_position(number).read(tr) for number in servers])

    def _compare_all(self, places: Sequence[int]) -> _Total:
        """The counts of all visits up to these positions; raises `DemoDiffers` if they differ from the recount."""
        queues, recount = self._queues, self._recount
        counted = [visit for part, place in zip(self._parts, places, strict=True) for visit in part[:place]]
        views = Counter(page for visit in counted for page in (visit.page, SITE))
        compare("the views of all time", dict(self._visits.lifetime.scan(self._db)), views)
        del views[SITE]
        recount.advance(places, (), self._pace)
        trending = self._compare_periods()
        if not queues.has_sketches:
            return _Total(views, trending)
        sketches = dict.fromkeys(recount.readers) | dict(queues.unique.scan(self._db))
        estimates = {each.page: each for each in compare_visitors(sketches, recount.readers)}
        responses = compare_responses(transact(self._db, queues.responses_now), recount.numbers)
        shown = [SITE, *(page for page, _ in views.most_common(self.top))]
        return _Total(views, trending, [estimates[page] for page in shown if page in estimates], responses)

    def _compare_periods(self) -> tuple[TrendingPage, ...]:
        """The trending pages of the last period; raises `DemoDiffers` if those of a period differ from the recount."""
        periods = self._recount.periods
        for start in periods.periods:
            limit = max(self.top, _TRENDING_COMPARED)
            trending = transact(self._db, partial(self._queues.trending, period=start, limit=limit))
            periods.check(start, trending, limit)
            self._trending[start] = trending
        return next(reversed(self._trending.values()), ())[: self.top]

    def _write_chart(self) -> None:
        if self.chart is not None:
            drawn = to_svg(self._looks, self.window.width / 1000, self._trending)
            self.chart.write_text(drawn, encoding="utf-8")

    def show(self, figures: Mapping[str, Any]) -> None:
        rows = (
            [
                clock(look.time),
                f"{look.views:,}",
                f"{look.visitors:,}",
                ", ".join(f"{as_word(page)} {views:,}" for page, views, _ in look.top),
            ]
            for look in self._looks
        )
        print_table(["time", "views", "visitors", "most views"], rows, right=["views", "visitors"])
        print_rich("", trending_table(self._total.trending))
        if self._total.unique:
            print_rich("", visitor_table(self._total.unique), "", response_table(self._total.responses))
        skipped = f", {quantity(self._lines_skipped, 'line')} skipped" if self._lines_skipped else ""
        note(
            f"{quantity(len(self._log), 'visit')} of {quantity(figures['pages'], 'page')} "
            f"at {self._pace.speed:,.0f} times their speed, {killed(figures)}, "
            f"{quantity(self._late, 'visit')} later than the window{skipped}: "
            f"as recounted at {quantity(len(self._looks), 'look')}, and 0 lost"
        )
