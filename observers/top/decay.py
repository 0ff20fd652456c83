"""Scores that decay: each event counts half as much after each half-life, and no stored value changes with time.

An event of weight w at the time t is worth w · 2^((t - now) / half-life). The factor 2^(-now / half-life) is the same
for all events, so sums without it have the same order at any time. They grow without limit, so their logarithms are
stored: log2(w) + t / half-life. The combiner `decaying` returns the logarithm of the sum.
"""

from __future__ import annotations

from math import log2

from cq import runtime
from cq.config.window import checked_time
from cq.durations import Span, seconds_of
from cq.encoding.codec import brief
from cq.errors import InvalidData


class HalfLife:
    """Makes the updates of a queue with the combiner `decaying`, and scores from its values.

    The queue has float values. All updates of a queue must have the same half-life. The order of its top is the order
    of the scores, at any time.

    Args:
        half_life: after this time an event counts half as much, such as `"1d"`; at least a second.

    Raises:
        InvalidConfiguration: the half-life is not a duration.

    >>> day = HalfLife("1d")
    >>> value = day.update(weight=8, at=0)
    >>> day.score(value, at=0), day.score(value, at=86_400), day.score(value, at=3 * 86_400)
    (8.0, 4.0, 1.0)
    """

    def __init__(self, half_life: Span) -> None:
        self.seconds = seconds_of(half_life)

    def update(self, weight: float = 1, at: float | None = None) -> float:
        """The update for an event; raises `InvalidData`.

        Args:
            weight: how much the event counts, above 0.
            at: the time of the event, in seconds since 1970; None for now.
        """
        if type(weight) not in (int, float) or not 0 < weight < float("inf"):
            raise InvalidData(f"expected a weight above 0, got: {brief(weight)}")
        return log2(weight) + self._half_lives(at)

    def score(self, value: float, at: float | None = None) -> float:
        """The score of a value at a time; infinity if it is too large for a float. Raises `InvalidData`.

        Args:
            value: of the queue, or the score in its top or cloud.
            at: in seconds since 1970; None for now.
        """
        exponent = value - self._half_lives(at)
        return 2.0**exponent if exponent < 1024 else float("inf")

    def _half_lives(self, at: float | None) -> float:
        time = runtime.time() if at is None else checked_time(at) / 1000
        return time / self.seconds
