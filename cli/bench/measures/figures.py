"""Medians, spreads and quantiles of measured values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    """The results of several repetitions.

    Attributes:
        values: the value of each repetition, in order.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the values."""
        return median(self.values)

    @property
    def low(self) -> float:
        """The lowest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest value."""
        return max(self.values)

    @property
    def spread(self) -> float:
        """The difference of the highest and the lowest value, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def harmonic(add: float, drain: float) -> float:
    """The updates per second of a system that spends its time on adding and draining in turn."""
    return 1 / (1 / add + 1 / drain)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ascending values such that at least `share` of all values are at or below it."""
    if not ordered:
        raise ValueError("there is no value")
    at = -(-share * len(ordered) // 1)  # rounded up
    return ordered[max(0, min(len(ordered), int(at)) - 1)]
