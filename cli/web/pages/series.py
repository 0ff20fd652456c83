"""The chart of a key that an operator looks up: its values by the periods of a roll-up."""

from __future__ import annotations

from typing import Final

from cq.cli.shared.chart import drawable
from cq.cli.web.pages.charts import Line
from cq.cli.web.sampling.lookup import KeySeries
from cq.encoding.columns import PARTS
from cq.errors import CqError
from cq.observers.top.html import number

_NUMBERS: Final = ("int", "float", "decimal")


def series_line(series: KeySeries) -> Line | None:
    """The chart of a series. A sketch is drawn as its first number.

    None if some values are not numbers from 0 on, or are too large for a chart.
    """
    part = next((each for each in PARTS.get(series.type.name, ()) if each.type in _NUMBERS), None)
    try:
        present = {
            start: drawable(part.cell(value) if part else value)
            for start, value in series.slots
            if value is not None
        }
    except CqError:  # a sketch, without the package that reads it
        return None
    if None in present.values():
        return None
    times = [start for start, _ in series.slots]
    numbers = [present.get(start) for start in times]
    return Line(f"{part.name if part else 'value'} by {series.level}", times, numbers, number, series.period)
