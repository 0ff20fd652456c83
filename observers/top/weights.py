"""Relative weights of scores, for the sizes in a cloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from typing import Final

from cq.observers.top.scores import Score, exact

LEAST: Final = 1
MOST: Final = 9
MIDDLE: Final = 5

# Decimals represent every int and float, and give the same result on every machine: logarithms are rounded correctly.
_CONTEXT: Final = Context(prec=25, rounding=ROUND_HALF_UP, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


def weights(scores: Sequence[Score]) -> list[int]:
    """A weight from 1 to 9 for each score: 1 + 8 * log(score / lowest) / log(highest / lowest), rounded half up.

    Lowest and highest are those of the finite scores given. When the lowest is zero or negative, it is
    1 + 8 * (score - lowest) / (highest - lowest). When all finite scores are equal, they weigh 5; infinity weighs 9 and
    minus infinity 1.

    >>> weights([10_000, 100, 10, 1])
    [9, 5, 3, 1]
    >>> weights([8, 0, -8])
    [9, 5, 1]
    """
    numbers = list(map(exact, scores))
    finite = [number for number in numbers if number.is_finite()]
    if not finite:
        return list(map(_infinite, numbers))
    lowest, highest = min(finite), max(finite)
    scale = _CONTEXT.ln if lowest > 0 else _CONTEXT.plus
    weigh = _between(scale, lowest, highest)
    return [weigh(number) if number.is_finite() else _infinite(number) for number in numbers]


def _between(
    scale: Callable[[Decimal], Decimal], lowest: Decimal, highest: Decimal
) -> Callable[[Decimal], int]:
    base = scale(lowest)
    span = _CONTEXT.subtract(scale(highest), base)
    if not span or not span.is_finite():
        return lambda score: MIDDLE

    def weigh(score: Decimal) -> int:
        share = _CONTEXT.divide(_CONTEXT.subtract(scale(score), base), span)
        weight = _CONTEXT.add(LEAST, _CONTEXT.multiply(MOST - LEAST, share))
        return int(weight.to_integral_value(ROUND_HALF_UP))

    return weigh


def _infinite(score: Decimal) -> int:
    return MOST if score > 0 else LEAST
