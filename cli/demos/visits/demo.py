"""The demo of visits: web servers replay a log and are killed, and each reading of the counts equals a recount.

A look reads all numbers in one transaction, together with the position of each web server. The positions say which
visits the numbers must include, even while servers and workers run. The numbers are compared with a recount of exactly
these visits at the time of the look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.demos.harness.demo import Demo, compare, delete_earlier, killed, numbered
from cq.cli.demos.harness.roles import Steps, run_worker
from cq.cli.demos.visits.access_log import Visit, read_log, write_log
from cq.cli.demos.visits.queues import LEFT_OUT, SITE, TrendingPage, VisitQueues
from cq.cli.demos.visits.recount import ResponseNumbers, VisitorEstimate, VisitRecount, period_of
from cq.cli.demos.visits.replay import KEYS, START, ReplayClock, read_late, run_server
from cq.cli.demos.visits.tables import (
    Look,
    clock,
    response_table,
    shown_looks,
    to_svg,
    trending_table,
    visitor_table,
)
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_rich, print_table, quantity
from cq.config.rollup import LevelPart
from cq.config.window import WindowSpec, milliseconds
from cq.encoding import codec
from cq.errors import BacklogTooDeep, InvalidData, NotReady
from cq.observers.worker.worker import Worker
from cq.store.transact import transact

_SKIPPED_SHOWN: Final = 5
_TRENDING_COMPARED: Final = 20
"""Pages of each period that are compared at the end, and known to the chart."""


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

    def start(self, stack: ExitStack, folder: Path, rng: Random) -> None:
        self.db = make_store(self.url)
        log = self._read_log(folder, rng)
        self._pace = ReplayClock.at_speed(self.window, self.speed, min(visit.time for visit in log))
        duration = self._pace.about_duration(max(visit.time for visit in log))
        if duration is not None:
            note(duration)
        self._queues = VisitQueues()
        if not self._queues.has_sketches:
            note(LEFT_OUT)
        delete_earlier(self.db, KEYS, self._queues.possible)
        self._queues.configure(self.db, window=self._pace.spec, buckets=2)
        # Neighbouring visits go to different servers, as behind a load balancer.
        parts = [log[number :: self.servers] for number in range(self.servers)]
        self._recount = VisitRecount(parts)
        self.steps = Steps.of_parts(folder, KEYS, parts)
        serve = partial(run_server, url=self.url, pace=self._pace)
        self.work = numbered("server", (partial(serve, steps=steps) for steps in self.steps))
        work = partial(run_worker, url=self.url, queues=self._queues.names)
        self.services = numbered("worker", [work] * self.workers)
        self._trends_compared = 0
        self._looks: list[Look] = []
        self._next_look = 0.0
        self._show_look = stack.enter_context(shown_looks())

    def _read_log(self, folder: Path, rng: Random) -> list[Visit]:
        """All visits of the logs; notes the first lines that are skipped. Raises `InvalidData` if there are none."""
        if not self.logs:
            self.logs = [folder / "access.log.gz"]
            write_log(self.logs[0], rng, visits=self.number)
        self._skipped: list[str] = []
        self._lines_skipped = 0

        def skip(line: str) -> None:
            self._lines_skipped += 1
            if len(self._skipped) < _SKIPPED_SHOWN:
                self._skipped.append(line)

        log = [visit for path in self.logs for visit in read_log(path, skip)]
        if not log:
            raise InvalidData("the log has no visits: GET requests with an answer of status 2xx or 304")
        for line in self._skipped:
            note(f"skipped, {line}")
        return log

    def look(self) -> None:
        if not self._pace.start:
            transact(self.db, self._begin)
        elif runtime.time() >= self._next_look:
            try:
                self._compare_window()
            except (BacklogTooDeep, NotReady):
                return  # workers are behind, or have not begun; the next look comes later
            self._next_look = runtime.time() + self.look_every

    def _begin(self, tr: Any) -> None:
        """Start the replay when all servers are ready: one that starts late would count its first visits late."""
        ready = [tr.get(steps.key) for steps in self.steps]
        if all(each.present() for each in ready):
            self._pace = replace(self._pace, start=runtime.time())
            tr.set(START, codec.encode(self._pace.start))

    def is_settled(self) -> bool:
        # The window becomes empty: workers remove expired visits, even without a reader.
        visits = self._queues.visits
        windows = [LevelPart.WINDOW.queue_of(each.name) for each in (visits.views, visits.seen)]
        some = [cq.CombineQueue[Any, Any](name) for name in (*windows, visits.visitors.name)]
        pages = transact(self.db, lambda tr: [queue.items(tr.snapshot, limit=1) for queue in some])
        return not any(page.items for page in pages)

    # Looks

    def _compare_window(self) -> None:
        found, recount = transact(self.db, self._read), self._recount
        recount.advance(found.places, found.late, self._pace)
        recount.check_window(found.within, found.now)
        time = self._pace.of(found.now / 1000)
        look = Look(
            time,
            *found.within.get(SITE, (0, 0)),
            tuple((page, *found.within[page]) for page in found.top),
            recount.check_visitors(found.unique),
            recount.check_responses(found.responses),
            found.trending,
        )
        if found.is_trending_current:
            recount.check_trending(period_of(time), found.trending, self.top)
            self._trends_compared += 1
        self._looks.append(look)
        self._show_look(look)

    def _read(self, tr: Any) -> _LookData:
        snapshot = tr.snapshot
        # Read the clock after the read version: visits expired by then were removed by an earlier clock.
        tr.get_read_version().wait()
        now = milliseconds(None)
        within = self._queues.visits.within(snapshot, now=now / 1000)
        top = sorted(within.keys() - {SITE}, key=lambda page: (-within[page][0], page))[: self.top]
        return _LookData(
            now,
            [steps.done(snapshot) for steps in self.steps],
            read_late(snapshot, self.steps),
            within,
            top,
            *self._queues.sketches(snapshot, [SITE, *top]),
            self._queues.trending(snapshot, period_of(self._pace.of(now / 1000)), self.top),
            self._queues.are_hits_combined(snapshot),
        )

    # The end

    def recount(self) -> dict[str, Any]:
        self._drain()
        counts = self._compare_all([steps.number for steps in self.steps])
        return {
            "visits": self._recount.views[SITE],
            "pages": len(self._recount.views) - 1,
            "late": len(transact(self.db, lambda tr: read_late(tr.snapshot, self.steps))),
            "speed": self._pace.speed,
            "looks": list(map(asdict, self._looks)),
            "skipped": self._skipped,
            "lines_skipped": self._lines_skipped,
            "trends_compared": self._trends_compared,
            **counts,
        }

    def summarize_interrupted(self) -> str:
        places = self._drain()
        self._compare_all(places)
        visits = sum(steps.number for steps in self.steps)
        return (
            f"ended early: {sum(places):,} of {quantity(visits, 'visit')} counted, "
            f"as recounted, and at {quantity(len(self._looks), 'look')} before"
        )

    def _drain(self) -> list[int]:
        """Combine all visits; returns the positions of the servers."""
        # The servers have ended, but the store may still apply the last commit of one.
        places, read = [-1], self.done()
        while places != read:
            places = read
            Worker(self.db, queues=self._queues.names).drain()
            read = self.done()
        return places

    def _compare_all(self, places: Sequence[int]) -> dict[str, Any]:
        """The figures of all visits up to these positions; raises `DemoDiffers` if they differ from the recount."""
        queues, recount = self._queues, self._recount
        recount.advance(places, (), self._pace)
        compare("the views of all time", dict(queues.visits.lifetime.scan(self.db)), recount.views)
        periods = {start: self._compare_period(start) for start in sorted(recount.periods)}
        most = recount.views.most_common(self.top + 1)
        unique, responses = transact(self.db, lambda tr: queues.sketches(tr.snapshot, ()))
        if queues.has_sketches:
            unique = dict.fromkeys(recount.readers) | dict(queues.unique.scan(self.db))
        estimates = {each.page: each for each in recount.check_visitors(unique)}
        if self.chart is not None:
            drawn = to_svg(self._looks, self.window.width / 1000, periods)
            self.chart.write_text(drawn, encoding="utf-8")
        return {
            "lifetime": [each for each in most if each[0] != SITE],
            "trending": list(map(asdict, next(reversed(periods.values()), ())[: self.top])),
            "unique": [asdict(estimates[page]) for page, _ in most if page in estimates],
            "responses": list(map(asdict, recount.check_responses(responses))),
        }

    def _compare_period(self, start: int) -> tuple[TrendingPage, ...]:
        """The trending pages of a period; raises `DemoDiffers` if they differ from the recount."""
        limit = max(self.top, _TRENDING_COMPARED)
        trending = transact(self.db, partial(self._queues.trending, period=start, limit=limit))
        self._recount.check_trending(start, trending, limit)
        return trending

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
        print_rich("", trending_table([TrendingPage(**each) for each in figures["trending"]]))
        if figures["unique"]:
            visitors = visitor_table([VisitorEstimate(**each) for each in figures["unique"]])
            responses = response_table([ResponseNumbers(**each) for each in figures["responses"]])
            print_rich("", visitors, "", responses)
        skipped = f", {quantity(self._lines_skipped, 'line')} skipped" if self._lines_skipped else ""
        note(
            f"{quantity(figures['visits'], 'visit')} of {quantity(figures['pages'], 'page')} "
            f"at {self._pace.speed:,.0f} times their speed, {killed(figures)}, "
            f"{quantity(figures['late'], 'visit')} later than the window{skipped}: "
            f"as recounted at {quantity(len(self._looks), 'look')}, and 0 lost"
        )
