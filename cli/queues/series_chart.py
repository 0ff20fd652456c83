"""The chart of `cq series --chart`: a line for each key, or for each of the numbers of a sketch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from cq.cli.shared.chart import MAX_LINES, drawable, line_chart, to_svg
from cq.cli.shared.output import as_word
from cq.config.queue import QueueConfig
from cq.durations import duration
from cq.errors import InvalidData

_PARTS: Final[dict[str, Sequence[str]]] = {
    "distinct": ["estimate"],
    "theta": ["estimate"],
    "frequent": ["total"],
    "quantiles": ["p50", "p99"],
}
"""{type of sketches: the numbers to draw}."""


def series_chart(config: QueueConfig, last: str, found: Mapping[Any, Sequence[tuple[int, Any]]]) -> str:
    """The chart as SVG; a slot without a value is a gap.

    Raises `typer.BadParameter` for more lines than a chart has, and `InvalidData` for values that are no numbers from 0
    on, and for damaged sketches.
    """
    parts = _PARTS.get(config.value.name, [""])
    if len(found) * len(parts) > MAX_LINES:
        raise typer.BadParameter(
            f"a chart has at most {MAX_LINES} lines: give at most {MAX_LINES // len(parts)} keys"
        )
    lines = {
        f"{part} {as_word(key)}".strip(): [_number(config, value, part) for _, value in slots]
        for key, slots in found.items()
        for part in parts
    }
    starts = [start for start, _ in next(iter(found.values()))]
    by = f" by {duration(starts[1] - starts[0])}" if len(starts) > 1 else ""
    return to_svg(line_chart(f"{config.name}{by}", f"the last {last}", starts, lines))


def _number(config: QueueConfig, value: Any, part: str) -> float | None:
    number = value.figures()[part] if part and value is not None else value
    if number is None:
        return None
    drawn = drawable(number)
    if drawn is None:
        raise InvalidData(
            f"a chart needs numbers from 0 on: a value of queue {config.name!r} is {as_word(value)[:80]}"
        )
    return drawn
