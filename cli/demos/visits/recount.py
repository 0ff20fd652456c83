"""The recount of the demo of visits: from the log and the positions of the servers, without the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from cq.cli.demos.visits.access_log import Visit
from cq.cli.demos.visits.queues import SITE, measures
from cq.cli.demos.visits.replay import ReplayClock
from cq.cli.demos.visits.trends import PeriodViews
from cq.config.window import milliseconds


class VisitRecount:
    """The counts that the queues must have after some visits.

    Args:
        parts: the visits of each server, in order.

    Attributes:
        places: the number of recounted visits of each server.
        readers: {page: all its visitors}, with the page `SITE` for the whole site.
        numbers: {measure: its numbers, ascending}.
        periods: the views by periods.
    """

    def __init__(self, parts: Sequence[Sequence[Visit]]) -> None:
        self._parts = parts
        self._inside: list[tuple[int, Visit]] = []
        self.places = [0] * len(parts)
        self.readers: defaultdict[str, set[str]] = defaultdict(set)
        self.numbers: defaultdict[str, list[float]] = defaultdict(list)
        self.periods = PeriodViews()

    def advance(self, places: Sequence[int], late: Collection[tuple[int, int]], pace: ReplayClock) -> None:
        """Recount the visits up to these positions.

        Args:
            places: the number of counted visits of each server.
            late: (server, place) of the visits that are in no window.
            pace: the clock of the replay.
        """
        spec = pace.spec
        for number, place in enumerate(places):
            visits = self._parts[number][self.places[number] : place]
            for line, visit in enumerate(visits, self.places[number]):
                if (number, line) not in late:
                    at = milliseconds(pace.at(visit.time))
                    # A visit leaves the window together with all visits of its slice.
                    self._inside.append((at - at % spec.slice + spec.slice + spec.width, visit))
                for page in (visit.page, SITE):
                    self.readers[page].add(visit.visitor)
            self.periods.count(visits)
            for measure, numbers in measures(visits).items():
                self.numbers[measure] += numbers
        for ascending in self.numbers.values():
            ascending.sort()
        self.places = list(places)

    def within(self, now: int) -> dict[str, tuple[int, int]]:
        """{page: (views, visitors)} of the window at a time in milliseconds since 1970; it must not decrease."""
        self._inside = [(leaves, visit) for leaves, visit in self._inside if leaves > now]
        views: Counter[str] = Counter()
        visitors: defaultdict[str, set[str]] = defaultdict(set)
        for _, visit in self._inside:
            for page in (visit.page, SITE):
                views[page] += 1
                visitors[page].add(visit.visitor)
        return {page: (views[page], len(visitors[page])) for page in views}
