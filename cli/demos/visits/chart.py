"""The looks of the demo of visits as an SVG chart: lines with their names, no script, light and dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from cq.cli.demos.visits.run import Look

_WIDTH: Final = 860
_HEIGHT: Final = 420
_LEFT: Final = 70
_RIGHT: Final = 190
_TOP: Final = 84
_BOTTOM: Final = 46
_PAGES: Final = 3
_LINES: Final = 4
_LABEL: Final = 15  # height of a name
_NAME: Final = 22  # maximum characters of a name

_STYLE: Final = """\
  svg { --page: #fbfaf8; --text: #1f2328; --quiet: #59606a; --grid: #e3e0da;
        --a: #1d5694; --b: #a8481f; --c: #3d7a4a; --d: #6b4fa0; --e: #8a6d10; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #15181d; --text: #e8e6e1; --quiet: #a2a9b3; --grid: #2c3138;
          --a: #8fc2fb; --b: #f0a27d; --c: #8fd19e; --d: #c4aef0; --e: #e0c25e; }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--text); }
  .title { font-size: 18px; font-weight: 650; }
  .quiet { fill: var(--quiet); }
  .page { fill: var(--page); }
  .grid { stroke: var(--grid); }
  polyline { fill: none; stroke-width: 2; stroke-linecap: round; }
"""
_COLOURS: Final = "abcde"
_Line = tuple[str, list[int | None]]


def to_svg(looks: Sequence[Look], window: float) -> str:
    """The chart of the looks at a window of `window` seconds: views, unique visitors, and views of the first pages."""
    title = f"Visits of the last {window / 60:,.3g} minutes"
    lines = _series(looks)
    most = max([1, *(number for _, numbers in lines for number in numbers if number is not None)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-labelledby="title about">\n'
        f'<title id="title">{title}</title>\n'
        f'<desc id="about">{escape(_described(lines))}</desc>\n'
        f"<style>\n{_STYLE}</style>\n"
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>\n'
        f'<text class="title" x="20" y="34">{title}</text>\n'
        f'<text class="quiet" x="20" y="56">at each look as recounted; {escape(_span(looks))}</text>\n'
        + "\n".join([*_grid(most), *_drawn(lines, most)])
        + "\n</svg>\n"
    )


def _series(looks: Sequence[Look]) -> list[_Line]:
    """The names and numbers of the lines; None where a page is not among the first pages of a look."""
    highest: Counter[str] = Counter()
    for look in looks:
        for page, views, _ in look.top:
            highest[page] = max(highest[page], views)
    lines: list[_Line] = [
        ("views", [look.views for look in looks]),
        ("visitors", [look.visitors for look in looks]),
    ]
    for page, _ in highest.most_common(_PAGES):
        lines.append((page, [{each: views for each, views, _ in look.top}.get(page) for look in looks]))
    return lines


def _described(lines: Sequence[_Line]) -> str:
    return " ".join(
        f"{name}: at most {max((number for number in numbers if number is not None), default=0):,}."
        for name, numbers in lines
    )


def _span(looks: Sequence[Look]) -> str:
    if not looks:
        return "no look"
    first, last = (datetime.fromtimestamp(look.time, UTC) for look in (looks[0], looks[-1]))
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC by the log"


def _grid(most: int) -> Iterator[str]:
    for line in range(_LINES + 1):
        y = _y(line / _LINES)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        number = f"{most * line / _LINES:,.0f}"
        yield f'<text class="quiet" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number}</text>'


def _drawn(lines: Sequence[_Line], most: int) -> Iterator[str]:
    # Names are at the ends of their lines, moved apart where they would overlap.
    ends = sorted((_y(_last(numbers) / most), at) for at, (_, numbers) in enumerate(lines))
    places, lowest = {}, 0.0
    for y, at in ends:
        places[at] = lowest = max(y, lowest + _LABEL)
    over = max(0.0, lowest - (_HEIGHT - _BOTTOM + _LABEL))
    for at, (name, numbers) in enumerate(lines):
        colour = f"var(--{_COLOURS[at]})"
        width = (_WIDTH - _RIGHT - _LEFT) / max(1, len(numbers) - 1)
        for run in _runs(numbers):
            points = " ".join(f"{_LEFT + width * n:.1f},{_y(number / most):.1f}" for n, number in run)
            yield f'<polyline stroke="{colour}" points="{points}"/>'
        shown = name if len(name) <= _NAME else name[: _NAME - 3] + "..."
        yield (
            f'<text x="{_WIDTH - _RIGHT + 10}" y="{places[at] - over + 4:.1f}" style="fill: {colour}">'
            f"{escape(shown)}</text>"
        )


def _last(numbers: Sequence[int | None]) -> int:
    """The last known number, 0 without one."""
    return next((number for number in reversed(numbers) if number is not None), 0)


def _runs(numbers: Sequence[int | None]) -> Iterator[list[tuple[int, int]]]:
    """Runs of known numbers with their indexes: a line must not cross unknown numbers."""
    run: list[tuple[int, int]] = []
    for place, number in enumerate([*numbers, None]):
        if number is not None:
            run.append((place, number))
        elif run:
            yield run if len(run) > 1 else run * 2  # a line of one point is drawn as a dot
            run = []


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)
