"""Charts of the dashboard: lines over time as SVG, with their numbers as text; the style sheet has their colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from markupsafe import Markup

from cq.cli.shared.chart import DRAWN, drawable, runs_of
from cq.cli.web.reads import KeySeries
from cq.cli.web.text import NOTHING, age
from cq.errors import CqError
from cq.observers.top.html import number as score

_LEAST_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """A chart of one line.

    Attributes:
        title: the name of its numbers.
        times, numbers: of its points; times in seconds since 1970. None instead of a number is a gap.
        text: a number as text.
        every: the usual time between two points, in seconds.
    """

    title: str
    times: Sequence[float]
    numbers: Sequence[float | None]
    text: Callable[[float], str]
    every: float = 60.0

    @property
    def is_empty(self) -> bool:
        """Whether it has too few points for a line."""
        return len(self._present()) < 2

    @property
    def latest(self) -> str:
        """The last number as text."""
        last = self.numbers[-1] if self.numbers else None
        return NOTHING if last is None else self.text(last)

    @property
    def highest(self) -> str:
        """The highest number as text."""
        return self.text(max(self._present(), default=0.0))

    @property
    def span(self) -> str:
        """The time from the first to the end of the last point, as text: in minutes up to two hours."""
        seconds = self.times[-1] - self.times[0] + self.every if self.times else 0.0
        if seconds < 120:
            return "past minute"
        return f"past {seconds / 60:.0f} min" if seconds <= 7_200 else f"past {age(seconds)}"

    def small(self) -> Markup:
        """A small chart for a row of a table: its numbers are its text for screen readers."""
        return self._svg(120, 28, "spark")

    def large(self) -> Markup:
        """A chart with an area below its line."""
        return self._svg(320, 72, "line")

    def _svg(self, width: int, height: int, kind: str) -> Markup:
        if self.is_empty:
            return Markup("")
        described = escape(f"{self.title}, {self.span}: now {self.latest}, at most {self.highest}")
        shapes = "".join(self._shapes(width, height))
        return Markup(  # noqa: S704 - the title is escaped, all others are numbers
            f'<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
            f'aria-label="{described}">{shapes}</svg>'
        )

    def _shapes(self, width: int, height: int) -> Iterator[str]:
        begin, most = self.times[0], max(*self._present(), 1e-9)
        seconds = max(self.times[-1] - begin, _LEAST_SECONDS)
        base = height - 1
        for run in runs_of(self.times, self.numbers):
            points = [
                f"{width * (at - begin) / seconds:.1f},{base - (height - 4) * number / most:.1f}"
                for at, number in run
            ]
            first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
            yield f'<polygon points="{first},{base} {" ".join(points)} {last},{base}"/>'
            yield f'<polyline points="{" ".join(points)}"/>'

    def _present(self) -> list[float]:
        return [number for number in self.numbers if number is not None]


def series_line(series: KeySeries) -> Line | None:
    """The chart of a series. A sketch is drawn as its first number.

    None if some values are not numbers from 0 on, or are too large for a chart.
    """
    figure = DRAWN.get(series.type.name, [""])[0]
    try:
        present = {
            start: drawable(value.figures()[figure] if figure else value)
            for start, value in series.slots
            if value is not None
        }
    except CqError:  # a sketch, without the package that reads it
        return None
    if None in present.values():
        return None
    times = [start for start, _ in series.slots]
    numbers = [present.get(start) for start in times]
    return Line(f"{figure or 'value'} by {series.level}", times, numbers, score, series.period)
