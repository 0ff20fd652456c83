"""Rows added to a queue in each minute: an estimate, because workers see only the rows that they take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from cq.cli.web.sampling.recent import Sample
from cq.observers.telemetry.history import MINUTE_SECONDS, HistoryMinute

_NEAR_SECONDS: Final = 5.0
"""How far a sample may be from the start or the end of a minute."""
_STORED_SECONDS: Final = 15.0
"""By this time after a minute, live workers have stored its work."""


class AddedMinute(NamedTuple):
    """A minute by its start, in seconds since 1970, and the number of rows added in it."""

    begins: float
    rows: int


def added_minutes(hour: Sequence[HistoryMinute], samples: Sequence[Sample]) -> list[AddedMinute]:
    """The rows added in each minute: those that workers took, and the growth of the backlog between two samples.

    A row has the updates of one transaction for one bucket. A minute is left out if it has no samples at its start and
    its end, if the size of the backlog was estimated, or if workers folded rows: then they wrote rows, too.

    >>> of_minute = [HistoryMinute(begins=60, rows=100)]
    >>> added_minutes(of_minute, [Sample(61, 30, 0, 0), Sample(119, 50, 0, 0), Sample(140, 0, 0, 0)])
    [AddedMinute(begins=60, rows=120)]
    """
    found = []
    for minute in hour:
        end = minute.begins + MINUTE_SECONDS
        first, last = _nearest(samples, minute.begins), _nearest(samples, end)
        if first is None or last is None or minute.folded or samples[-1].at < end + _STORED_SECONDS:
            continue
        found.append(AddedMinute(minute.begins, max(0, minute.rows + last.rows - first.rows)))
    return found


def _nearest(samples: Sequence[Sample], at: float) -> Sample | None:
    """The exact sample that is nearest to a time; None without one within `_NEAR_SECONDS`."""
    place = bisect_left(samples, at, key=lambda sample: sample.at)
    near = [each for each in samples[max(0, place - 1) : place + 1] if each.exact]
    found = min(near, key=lambda sample: abs(sample.at - at), default=None)
    return found if found is not None and abs(found.at - at) <= _NEAR_SECONDS else None
