"""The demo of visits: web servers replay a log and are killed, and each reading of the counts equals a recount.

A look reads all numbers in one transaction, together with the position of each web server. The positions say which
visits the numbers must include, even while servers and workers run. The numbers are compared with a recount of exactly
these visits at the time of the look.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import cq
from cq import keys, runtime
from cq.cli.demos.crew.crew import DemoCrew, DemoRole
from cq.cli.demos.crew.errors import DemoFailed
from cq.cli.demos.crew.worker import WorkerRole
from cq.cli.demos.visits.access_log import Visit, read_log
from cq.cli.demos.visits.replay import (
    KEYS,
    NAME,
    SITE,
    START,
    ReplayClock,
    VisitServer,
    late_keys,
    position_key,
    ready_key,
    write_part,
)
from cq.config.window import MIN_SLICE_MS, milliseconds
from cq.encoding import codec
from cq.errors import BacklogTooDeep, InvalidData
from cq.observers.visits import Visits
from cq.observers.worker.worker import Worker
from cq.store.api import Database
from cq.store.transact import transact

_SECONDS: Final = 86_400.0
_SHOWN: Final = 5


@dataclass(frozen=True)
class VisitSettings:
    """The settings of the demo.

    Attributes:
        speed: approximate seconds of the log that are replayed per second.
        window, slice: widths in seconds of the log's time.
        servers, workers: numbers of processes.
        kill_every: average seconds between two kills of a process.
        look_every: seconds between two comparisons with a recount.
        top: number of pages in a look.
    """

    speed: float = 100.0
    window: float = 600.0
    slice: float = 10.0
    servers: int = 2
    workers: int = 2
    kill_every: float = 2.0
    look_every: float = 0.5
    top: int = _SHOWN


@dataclass(frozen=True)
class Look:
    """The numbers of one comparison, equal to the recount: the log's time, and the counts of its window."""

    time: float
    views: int
    visitors: int
    top: tuple[tuple[str, int, int], ...]


@dataclass
class VisitOutcome:
    """The figures of a successful run.

    Attributes:
        visits: number of visits in the log; all were counted.
        pages: number of pages in the log.
        late: number of visits that came too late for the window, because their server was down; they count in the
            lifetime counts.
        speed: seconds of the log that were replayed per second.
        kills: number of killed processes.
        seconds: duration of the run.
        looks: all looks.
        skipped: the first skipped lines, as `file:line: reason`.
        lines_skipped: number of skipped lines.
        lifetime: the pages with the most views in the lifetime counts.
    """

    visits: int
    pages: int
    late: int = 0
    speed: float = 0.0
    kills: int = 0
    seconds: float = 0.0
    looks: list[Look] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    lines_skipped: int = 0
    lifetime: list[tuple[str, int]] = field(default_factory=list)


def run(
    db: Database,
    url: str | None,
    paths: Sequence[Path],
    settings: VisitSettings,
    rng: Random,
    notify: Callable[[Look], object] = lambda look: None,
) -> VisitOutcome:
    """Run the demo on a store, with new queues.

    Args:
        db: the database of the store.
        url: URL of the store, for the processes.
        paths: paths of the log files, in order.
        settings: the settings of the demo.
        rng: random source of the kills.
        notify: called with each look.

    Raises `DemoFailed` for a difference from the recount, `InvalidData` for a log without visits, and `OSError`.
    """
    outcome = VisitOutcome(0, 0)
    log = list(_read(paths, outcome))
    if not log:
        raise InvalidData("the log has no visits: GET requests with an answer of status 2xx or 304")
    outcome.visits, outcome.pages = len(log), len({visit.page for visit in log})
    pace = _pace(log, settings)
    outcome.speed = pace.speed
    _make_queues(db, pace)
    _VisitDemo(db, log, settings, pace, outcome, notify).run(url, rng)
    return outcome


def _read(paths: Sequence[Path], outcome: VisitOutcome) -> Iterator[Visit]:
    for path in paths:

        def skip(line: int, reason: str, path: Path = path) -> None:
            outcome.lines_skipped += 1
            if len(outcome.skipped) < _SHOWN:
                outcome.skipped.append(f"{path}:{line}: {reason}")

        yield from read_log(path, skip)


def _pace(log: Sequence[Visit], settings: VisitSettings) -> ReplayClock:
    """The pace with the requested speed, rounded so that a slice takes whole milliseconds."""
    step = max(MIN_SLICE_MS, round(1000 * settings.slice / settings.speed))
    return ReplayClock(settings.window, settings.slice, step, min(visit.time for visit in log))


def _make_queues(db: Database, pace: ReplayClock) -> None:
    for name in Visits(NAME).queues:
        try:
            cq.delete(db, name)
        except cq.QueueNotConfigured:
            continue
    transact(db, lambda tr: tr.clear_range(KEYS, keys.prefix_end(KEYS)))
    Visits(NAME).configure(db, window=pace.spec, buckets=2)


@dataclass(frozen=True, slots=True)
class _DemoSnapshot:
    """The data of one look, read in one transaction."""

    now: int
    places: list[int]
    late: set[tuple[int, int]]
    within: dict[str, tuple[int, int]]


class _VisitDemo:
    """The processes of the demo, and the looks during the run."""

    def __init__(
        self,
        db: Database,
        log: list[Visit],
        settings: VisitSettings,
        pace: ReplayClock,
        outcome: VisitOutcome,
        notify: Callable[[Look], object],
    ) -> None:
        self._db, self._settings, self._pace, self._outcome, self._notify = (
            db,
            settings,
            pace,
            outcome,
            notify,
        )
        self._parts = [log[number :: settings.servers] for number in range(settings.servers)]
        self._visits = Visits(NAME)
        self._places = [0] * settings.servers
        self._inside: list[tuple[int, Visit]] = []
        self._next = 0.0

    def run(self, url: str | None, rng: Random) -> None:
        """Run the processes until all visits have left the window, then compare the lifetime counts."""
        begun = runtime.monotonic()
        with TemporaryDirectory(prefix="cq-demo-") as folder:
            files = [Path(folder, f"part-{number}") for number in range(len(self._parts))]
            for file, visits in zip(files, self._parts, strict=True):
                write_part(file, visits)
            servers = [VisitServer(url, file, number, self._pace) for number, file in enumerate(files)]
            self._run_processes(url, servers, rng)
        Worker(self._db, queues=self._visits.queues).drain()
        self._compare_lifetime()
        self._outcome.seconds = runtime.monotonic() - begun

    def _run_processes(self, url: str | None, servers: Sequence[VisitServer], rng: Random) -> None:
        names = {f"server {each.number}": each for each in servers}
        roles: dict[str, DemoRole] = {**names}
        for number in range(self._settings.workers):
            roles[f"worker {number}"] = WorkerRole(url, self._visits.queues)
        with DemoCrew(roles, rng, self._settings.kill_every) as crew:
            crew.run(lambda: transact(self._db, self._begin), _SECONDS)
            crew.run(lambda: self._look_when_due() and names.keys() <= crew.ended, _SECONDS)
            crew.spare()
            crew.run(lambda: not transact(self._db, self._has_data), _SECONDS)
            self._outcome.kills = crew.kills

    def _begin(self, tr: Any) -> bool:
        """Start the replay when all servers are ready; returns whether they are."""
        ready = [tr.get(ready_key(number)) for number in range(len(self._parts))]
        if not all(each.present() for each in ready):
            return False
        self._pace = replace(self._pace, start=runtime.time())
        tr.set(START, codec.encode(self._pace.start))
        return True

    def _has_data(self, tr: Any) -> bool:
        """Whether the window has data: workers remove expired visits, even without a reader."""
        some = (self._visits.views.queue, self._visits.seen.queue, self._visits.visitors)
        return any(queue.items(tr.snapshot, limit=1).items for queue in some)

    # Looks

    def _look_when_due(self) -> bool:
        if runtime.time() >= self._next:
            try:
                self._look()
            except BacklogTooDeep:  # the workers are behind; the next look comes later
                return True
            self._next = runtime.time() + self._settings.look_every
        return True

    def _look(self) -> None:
        seen = transact(self._db, self._read)
        views, visitors = self._recount(seen)
        expected = {page: (views[page], len(visitors[page])) for page in views}
        if seen.within != expected:
            raise DemoFailed(f"at a look, not as recounted: {_different(seen.within, expected)}")
        site = seen.within.pop(SITE, (0, 0))
        most = sorted(seen.within.items(), key=lambda item: (-item[1][0], item[0]))[: self._settings.top]
        top = tuple((page, *numbers) for page, numbers in most)
        look = Look(self._pace.of(seen.now / 1000), *site, top)
        self._outcome.looks.append(look)
        self._outcome.late = len(seen.late)
        self._notify(look)

    def _read(self, tr: Any) -> _DemoSnapshot:
        snapshot = tr.snapshot
        # Read the clock after the read version: visits expired by then were removed by an earlier clock.
        tr.get_read_version().wait()
        now = milliseconds(None)
        places = [snapshot.get(position_key(number)) for number in range(len(self._parts))]
        late = set()
        for number in range(len(self._parts)):
            for row in snapshot.get_range(*late_keys(number)):
                first = int(row.key.rpartition(b"/")[2])
                late |= {(number, first + each) for each in range(codec.decode(row.value))}
        within = self._visits.within(snapshot, now=now / 1000)
        found = [0 if place.value is None else int(codec.decode(place.value)) for place in places]
        return _DemoSnapshot(now, found, late, within)

    def _recount(self, seen: _DemoSnapshot) -> tuple[Counter[str], defaultdict[str, set[str]]]:
        """Views and visitors of each page, recounted from the counted visits in the window at that time."""
        spec = self._pace.spec
        for number, place in enumerate(seen.places):
            for line in range(self._places[number], place):
                visit = self._parts[number][line]
                at = milliseconds(self._pace.at(visit.time))
                if (number, line) not in seen.late:
                    self._inside.append((at - at % spec.slice + spec.slice + spec.width, visit))
        self._places = seen.places
        self._inside = [(leaves, visit) for leaves, visit in self._inside if leaves > seen.now]
        views: Counter[str] = Counter()
        visitors: defaultdict[str, set[str]] = defaultdict(set)
        for _, visit in self._inside:
            for page in (visit.page, SITE):
                views[page] += 1
                visitors[page].add(visit.visitor)
        return views, visitors

    def _compare_lifetime(self) -> None:
        """Check that all visits are in the lifetime counts, including late ones."""
        expected = Counter(page for each in self._parts for visit in each for page in (visit.page, SITE))
        found = dict(self._visits.lifetime.scan(self._db))
        if found != expected:
            raise DemoFailed(f"the views of all time are not as recounted: {_different(found, expected)}")
        del expected[SITE]
        self._outcome.lifetime = expected.most_common(self._settings.top)


def _different(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first differences, as text."""
    pages = sorted(page for page in {*found, *expected} if found.get(page) != expected.get(page))
    shown = [f"{page!r}: {found.get(page)} instead of {expected.get(page)}" for page in pages[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(pages) - _SHOWN:,} more" if len(pages) > _SHOWN else "")
