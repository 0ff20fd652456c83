"""Medians, spreads and quantiles of measured values."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median
from typing import Any

Result = dict[str, Any]
"""A result as in the JSON of the report."""


def medians(**figures: Sequence[float] | None) -> Result:
    """The medians of several repetitions under their names, then the values of each repetition; None: not measured."""
    rounded = {name: values and [round(each, 3) for each in values] for name, values in figures.items()}
    return {
        **{name: values and round(median(values), 3) for name, values in rounded.items()},
        **{f"{name}_repetitions": values for name, values in rounded.items()},
    }


def spread(values: Sequence[float]) -> float:
    """The difference of the highest and the lowest value, as a share of the median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def harmonic(add: float, drain: float) -> float:
    """The updates per second of a system that spends its time on adding and draining in turn."""
    return 1 / (1 / add + 1 / drain)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ascending values such that at least `share` of all values are at or below it."""
    return ordered[max(1, ceil(share * len(ordered))) - 1]
