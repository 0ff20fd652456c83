"""The figures of adding and draining as an SVG chart: bars with their numbers as text, no script, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from cq.cli.bench.measures.phases import PhaseResult
from cq.cli.bench.report import OWN, BenchReport

_WIDTH: Final = 820
_LEFT: Final = 170
_LONGEST: Final = 420
_BAR: Final = 22
_GAP: Final = 6
_HEAD: Final = 84
_GROUP: Final = 46

_STYLE: Final = """\
  svg { --page: #fbfaf8; --text: #1f2328; --quiet: #59606a; --own: #1d5694; --other: #98a1ad; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #15181d; --text: #e8e6e1; --quiet: #a2a9b3; --own: #8fc2fb; --other: #5b6470; }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--text); }
  .title { font-size: 18px; font-weight: 650; }
  .head { font-weight: 600; }
  .quiet { fill: var(--quiet); }
  .span { font-size: 11px; }
  .page { fill: var(--page); }
  .own { fill: var(--own); }
  .other { fill: var(--other); }
"""


def to_svg(report: BenchReport) -> str:
    """The chart of adding and draining in turn, with a group of bars for each transaction size.

    The bars of a group share a scale that begins at 0. Each bar has its number and the range of its repetitions.
    """
    rows = sorted(report.rows, key=lambda row: row.per_transaction)
    groups = [(size, list(found)) for size, found in groupby(rows, key=lambda row: row.per_transaction)]
    height = _HEAD + sum(_GROUP + len(found) * (_BAR + _GAP) for _, found in groups)
    title = "Updates per second, adding and draining in turn"
    drawn = "\n".join(_groups(groups))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title about">\n'
        f'<title id="title">{title}</title>\n'
        f'<desc id="about">{escape(_described(groups))}</desc>\n'
        f"<style>\n{_STYLE}</style>\n"
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>\n'
        f'<text class="title" x="20" y="34">{title}</text>\n'
        f'<text class="quiet" x="20" y="56">{escape(_about(report.machine, report.settings))}</text>\n'
        f"{drawn}\n</svg>\n"
    )


def _groups(groups: Sequence[tuple[int, Sequence[PhaseResult]]]) -> Iterator[str]:
    top = _HEAD
    for size, rows in groups:
        yield f'<text class="head" x="20" y="{top + 14}">{_size(size)}</text>'
        top += _GROUP - 20
        longest = max(row.both.median for row in rows)
        for row in rows:
            yield from _bar(row, top, longest)
            top += _BAR + _GAP
        top += 20


def _bar(row: PhaseResult, top: int, longest: float) -> Iterator[str]:
    width = max(1.0, _LONGEST * row.both.median / longest)
    middle = top + _BAR - 6
    kind = "own" if row.system.split("+")[0] == OWN else "other"
    span = f"{row.both.low:,.0f} to {row.both.high:,.0f}"
    yield f'<text x="{_LEFT - 10}" y="{middle}" text-anchor="end">{escape(row.system)}</text>'
    yield f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
    yield (
        f'<text x="{_LEFT + width + 8:.1f}" y="{middle}">{row.both.median:,.0f}'
        f'<tspan class="quiet span" dx="6">{span}</tspan></text>'
    )


def _described(groups: Sequence[tuple[int, Sequence[PhaseResult]]]) -> str:
    """All figures as text, for screen readers."""
    return " ".join(
        f"{_size(size)}: " + ", ".join(f"{row.system} {row.both.median:,.0f}" for row in rows) + "."
        for size, rows in groups
    )


def _size(size: int) -> str:
    return f"{size:,} update{'' if size == 1 else 's'} per transaction"


def _about(machine: dict[str, Any], settings: dict[str, Any]) -> str:
    repetitions = settings["repetitions"]
    return (
        f"{machine['cores']} cores, {machine['processor'] or machine['system']}; "
        f"{'one repetition' if repetitions == 1 else f'medians of {repetitions} repetitions, and their range'}"
    )
