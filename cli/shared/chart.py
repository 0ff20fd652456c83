"""Charts as SVG: lines over time, with their names and numbers as text, no script, light and dark.

A terminal gets charts of one line of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from html import escape
from itertools import groupby
from math import ceil, floor, isfinite, log10
from typing import Final

_STYLE: Final = """\
  svg { --page: #fbfaf8; --text: #1f2328; --quiet: #59606a; --grid: #e3e0da;
        --c0: #1d5694; --c1: #a8481f; --c2: #3d7a4a; --c3: #6b4fa0; --c4: #8a6d10; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #15181d; --text: #e8e6e1; --quiet: #a2a9b3; --grid: #2c3138;
          --c0: #8fc2fb; --c1: #f0a27d; --c2: #8fd19e; --c3: #c4aef0; --c4: #e0c25e; }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--text); }
  .title { font-size: 18px; font-weight: 650; }
  .quiet { fill: var(--quiet); }
  .page { fill: var(--page); }
  .grid { stroke: var(--grid); }
  .axis { stroke: var(--quiet); }
  polyline { fill: none; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
"""
_HEAD: Final = 84  # height of the title and the line below it
MAX_LINES: Final = 5
"""The maximum number of lines of a chart."""

_WIDTH: Final = 860
_HEIGHT: Final = 420
_LEFT: Final = 70
_RIGHT: Final = _WIDTH - 190
_BOTTOM: Final = _HEIGHT - 46
_NAME_HEIGHT: Final = 15
_NAME: Final = 22  # maximum characters of a name
_TICKS: Final = 6
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * number for number in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * number for number in (1, 2, 3, 6, 12)),
)


DRAWN: Final[Mapping[str, Sequence[str]]] = {
    "distinct": ["estimate"],
    "theta": ["estimate"],
    "frequent": ["total"],
    "quantiles": ["p50", "p99"],
}
"""{type of sketches: the numbers to draw}; of other values, the value itself."""


def drawable(value: object) -> float | None:
    """The number as charts draw it; None for what is no number from 0 on, or is too large."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        with suppress(OverflowError):  # an int beyond all floats
            if isfinite(value) and value >= 0:
                return float(value) if isinstance(value, Decimal) else value
    return None


def line_chart(
    title: str, about: str, times: Sequence[float], lines: Mapping[str, Sequence[float | None]]
) -> str:
    """The image of at most `MAX_LINES` lines of numbers from 0 over times in seconds since 1970; None leaves a gap."""
    scale = _Scale(times, [number for numbers in lines.values() for number in numbers if number is not None])
    described = " ".join(
        f"{name}: at most {max((number for number in numbers if number is not None), default=0):,}."
        for name, numbers in lines.items()
    )
    # Names are at the ends of their lines, moved apart where they would overlap.
    last = {
        name: next((each for each in reversed(numbers) if each is not None), 0)
        for name, numbers in lines.items()
    }
    places, lowest = {}, 0.0
    for y, name in sorted((scale.y(number), name) for name, number in last.items()):
        places[name] = lowest = max(y, lowest + _NAME_HEIGHT)
    over = max(0.0, lowest - (_BOTTOM + _NAME_HEIGHT))
    drawn = [*scale.grid()]
    for at, (name, numbers) in enumerate(lines.items()):
        colour = f"var(--c{at % MAX_LINES})"
        for run in runs_of(times, numbers):
            points = " ".join(f"{scale.x(time):.1f},{scale.y(number):.1f}" for time, number in run)
            drawn.append(f'<polyline stroke="{colour}" points="{points}"/>')
        shown = name if len(name) <= _NAME else name[: _NAME - 3] + "..."
        drawn.append(
            f'<text x="{_RIGHT + 10}" y="{places[name] - over + 4:.1f}" style="fill: {colour}">{escape(shown)}</text>'
        )
    if times:
        begin, end = (datetime.fromtimestamp(each, UTC) for each in (times[0], times[-1]))
        about = f"{about}; {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    return _svg(title, about, described, drawn)


class _Scale:
    """The scale of times and numbers, with a grid at round ones."""

    def __init__(self, times: Sequence[float], numbers: Sequence[float]) -> None:
        self._first = times[0] if times else 0.0
        # At least one second, so that the axis has a tick, and so a date.
        self._seconds = max(1.0, times[-1] - self._first) if times else 1.0
        is_whole = all(number == int(number) for number in numbers)
        most, least_step = max([0, *numbers]) or 1, 1 if is_whole else 0
        magnitude = 10.0 ** floor(log10(most / _TICKS))
        steps = (
            step * magnitude for step in (1, 2, 5, 10) if step * magnitude >= max(least_step, most / _TICKS)
        )
        self._step = next(steps, 1)
        self._shape = ",.0f" if is_whole else ",.6g"
        self._top = ceil(most / self._step) * self._step

    def x(self, time: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (time - self._first) / self._seconds

    def y(self, number: float) -> float:
        return _BOTTOM - (_BOTTOM - _HEAD) * number / self._top

    def grid(self) -> Iterator[str]:
        """The lines of round numbers, and the axis of times below them."""
        for count in range(round(self._top / self._step) + 1):
            number = count * self._step
            y = self.y(number)
            yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield (
                f'<text class="quiet" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number:{self._shape}}</text>'
            )
        yield from self._time_axis()

    def _time_axis(self) -> Iterator[str]:
        """The axis with its round times; below the first time of each day the date, for steps of days the year."""
        days = ceil(self._seconds / _DAY / _TICKS) * _DAY
        step = next((each for each in _TIME_STEPS if each * _TICKS >= self._seconds), days)
        shape = "%H:%M:%S" if step < _MINUTE else "%H:%M" if step < _DAY else "%m-%d"
        below = "%Y-%m-%d" if step < _DAY else "%Y"
        yield f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
        shown = ""
        time = ceil(self._first / step) * step
        while time <= self._first + self._seconds:
            x, moment = self.x(time), datetime.fromtimestamp(time, UTC)
            yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 5}"/>'
            yield _tick_text(x, _BOTTOM + 20, f"{moment:{shape}}")
            if shown != (shown := f"{moment:{below}}"):
                yield _tick_text(x, _BOTTOM + 36, shown)
            time += step


def _tick_text(x: float, y: int, text: str) -> str:
    return f'<text class="quiet" x="{x:.1f}" y="{y}" text-anchor="middle">{text}</text>'


def runs_of(times: Sequence[float], numbers: Sequence[float | None]) -> Iterator[list[tuple[float, float]]]:
    """Each run of known numbers with their times, as the points of a line: it must not cross unknown ones."""
    for is_known, run in groupby(zip(times, numbers, strict=True), lambda pair: pair[1] is not None):
        if is_known:
            points = [(time, number or 0) for time, number in run]
            yield points if len(points) > 1 else points * 2  # a line of one point is drawn as a dot


def _svg(title: str, about: str, described: str, shapes: Sequence[str]) -> str:
    """The image with these shapes; its figures are also text, for screen readers."""
    drawn = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-labelledby="title about">\n'
        f'<title id="title">{escape(title)}</title>\n'
        f'<desc id="about">{escape(described)}</desc>\n'
        f"<style>\n{_STYLE}</style>\n"
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>\n'
        f'<text class="title" x="20" y="34">{escape(title)}</text>\n'
        f'<text class="quiet" x="20" y="56">{escape(about)}</text>\n'
        f"{drawn}\n</svg>\n"
    )


_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(numbers: Sequence[float | None]) -> str:
    """A block for each number, from 0 to the largest one; a space for None.

    >>> sparkline([0, 1, None, 2, 4])
    '▁▃ ▅█'
    """
    most = max((number for number in numbers if number is not None), default=0) or 1
    heights = [None if number is None else number / most * (len(_BLOCKS) - 1) for number in numbers]
    return "".join(" " if height is None else _BLOCKS[int(height + 0.5)] for height in heights)
