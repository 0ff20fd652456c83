"""The comparison of the demo's sketches with a recount: estimates must be within the bounds that the sketches state.

The stated bounds hold in 95 or 99 of 100 cases. The comparison allows three times their distance, at least six standard
deviations, so that it never fails for sketches of a correct build.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from cq.cli.demos.harness.crew import DemoDiffers
from cq.cli.demos.harness.demo import compare

_TIMES: Final = 3
_SLACK: Final = 2
"""Visitors beyond the bounds: two with the same hash are counted once, which no bound of a small sketch includes."""
_RANKS: Final = (0.5, 0.99)


@dataclass(frozen=True)
class VisitorEstimate:
    """The distinct visitors of a page: exact, and by a sketch.

    Attributes:
        error_percent: difference of the estimate from the exact number.
    """

    page: str
    visitors: int
    estimate: int
    error_percent: float


@dataclass(frozen=True)
class ResponseNumbers:
    """The quantiles of sizes or times of responses: exact, and by a sketch."""

    measure: str
    responses: int
    p50: float
    p50_estimate: float
    p99: float
    p99_estimate: float


def compare_visitors(
    found: Mapping[str, Any], visitors: Mapping[str, Collection[str]]
) -> tuple[VisitorEstimate, ...]:
    """The estimates of the found sketches; raises `DemoDiffers` for one that is beyond its bounds.

    Args:
        found: {page: sketch of its visitors, or None for a page without visitors}.
        visitors: {page: its visitors}, by the recount.
    """
    compare(
        "pages with a sketch of visitors",
        {page: True for page, sketch in found.items() if sketch is not None},
        {page: True for page in found if visitors.get(page)},
    )
    estimates = []
    for page, sketch in found.items():
        if sketch is not None:
            exact, estimate = len(visitors[page]), sketch.estimate
            below, above = (
                _TIMES * (bound - estimate) + slack
                for bound, slack in ((sketch.lower, -_SLACK), (sketch.upper, _SLACK))
            )
            if not below <= exact - estimate <= above:
                raise DemoDiffers(
                    f"distinct visitors of {page!r}: a sketch estimates {estimate:,} ({sketch.lower:,} to "
                    f"{sketch.upper:,}) instead of {exact:,}"
                )
            error = round(100 * (estimate - exact) / exact, 2)
            estimates.append(VisitorEstimate(page, exact, estimate, error))
    return tuple(estimates)


def compare_responses(
    found: Mapping[str, Any], numbers: Mapping[str, Sequence[float]]
) -> tuple[ResponseNumbers, ...]:
    """The quantiles of the found sketches; raises `DemoDiffers` for one that is beyond its bounds.

    Args:
        found: {measure: sketch of its numbers, or None for a measure without numbers}.
        numbers: {measure: its numbers, ascending}, by the recount.
    """
    sketches = {measure: sketch for measure, sketch in found.items() if sketch is not None}
    compare(
        "number, minimum and maximum of responses",
        {measure: (each.count, each.minimum, each.maximum) for measure, each in sketches.items()},
        {measure: (len(each), each[0], each[-1]) for measure, each in numbers.items() if measure in found},
    )
    return tuple(_quantiles(measure, sketch, numbers[measure]) for measure, sketch in sketches.items())


def _quantiles(measure: str, sketch: Any, ascending: Sequence[float]) -> ResponseNumbers:
    figures: list[float] = []
    for rank in _RANKS:
        estimate, error = sketch.quantile(rank), _TIMES * sketch.rank_error
        lowest = bisect_left(ascending, estimate) / len(ascending)
        highest = bisect_right(ascending, estimate) / len(ascending)
        if not lowest - error <= rank <= highest + error:
            raise DemoDiffers(
                f"{measure} of responses: a sketch has {estimate:,} at the rank {rank}, and {lowest:.4f} to "
                f"{highest:.4f} of {len(ascending):,} responses have less"
            )
        figures += [quantile(ascending, rank), estimate]
    return ResponseNumbers(measure, len(ascending), *figures)


def quantile(ascending: Sequence[float], rank: float) -> float:
    """The smallest number that at least this share of all numbers does not exceed."""
    return ascending[max(0, ceil(rank * len(ascending)) - 1)]
