"""Charts of the dashboard: lines over time as SVG, with their numbers as text; the style sheet has their colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from markupsafe import Markup

from cq.cli.web.pages.text import NOTHING

_GAP_SECONDS: Final = 150.0
"""A line has a gap where no sample was taken for this long."""
_LEAST_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """A chart of one line.

    Attributes:
        title: the name of its numbers.
        times, numbers: of its points; times in seconds since 1970.
        text: a number as text.
    """

    title: str
    times: Sequence[float]
    numbers: Sequence[float]
    text: Callable[[float], str]

    @property
    def is_empty(self) -> bool:
        """Whether it has too few points for a line."""
        return len(self.numbers) < 2

    @property
    def latest(self) -> str:
        """The last number as text."""
        return self.text(self.numbers[-1]) if self.numbers else NOTHING

    @property
    def highest(self) -> str:
        """The highest number as text."""
        return self.text(max(self.numbers, default=0.0))

    @property
    def span(self) -> str:
        """The time between the first and the last point, in minutes, as text."""
        minutes = (self.times[-1] - self.times[0]) / 60 if self.times else 0.0
        return f"past {minutes + 1:.0f} min" if minutes >= 1 else "past minute"

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
        begin, most = self.times[0], max(*self.numbers, 1e-9)
        seconds = max(self.times[-1] - begin, _LEAST_SECONDS)
        base = height - 1
        for run in self._runs():
            points = [
                f"{width * (at - begin) / seconds:.1f},{base - (height - 4) * number / most:.1f}"
                for at, number in run
            ]
            first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
            yield f'<polygon points="{first},{base} {" ".join(points)} {last},{base}"/>'
            yield f'<polyline points="{" ".join(points if len(points) > 1 else points * 2)}"/>'

    def _runs(self) -> Iterator[list[tuple[float, float]]]:
        """The points between gaps."""
        run: list[tuple[float, float]] = []
        for at, number in zip(self.times, self.numbers, strict=True):
            if run and at - run[-1][0] > _GAP_SECONDS:
                yield run
                run = []
            run.append((at, number))
        if run:
            yield run
