"""Medians, spreads and quantiles of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    """What several repetitions gave.

    Attributes:
        values: of each repetition, in order.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value in the middle; of an even number the mean of the two there."""
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
        """The difference of highest and lowest, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def harmonic(add: float, drain: float) -> float:
    """The updates per second of a system that spends its time on adding and draining in turn."""
    return 1 / (1 / add + 1 / drain)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least of the values, in ascending order, that so large a share of them is at or below."""
    if not ordered:
        raise ValueError("there is no value")
    at = -(-share * len(ordered) // 1)  # rounded up
    return ordered[max(0, min(len(ordered), int(at)) - 1)]
