"""Sessions: visits of one visitor with less than a gap, such as 30 minutes, between each and the next.

Two queues; their names begin with the name of the sessions:

    NAME            "site": the sums of `SessionCounts`, of all time and by day
    NAME.visitors   (visitor, start of a day): the visitor's intervals on this day, until no more of it are taken

A visit is an interval from its time until a gap later. So the visits of a session are intervals that overlap, and the
combiner `intervals` makes one of them, in whatever order they come. The pass that writes a visitor's intervals adds the
difference to the sums, in its own transaction. So the sums are exact even if workers crash.

A day is one of UTC, and a session ends at midnight, as the ids of visitors do (`cq.observers.visits.VisitorIds`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import floor
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.admin.configure import change, requested
from cq.arguments import repeatable
from cq.config.expiry import KEY, ExpirySpec
from cq.config.queue import SESSIONS, QueueConfig, read_config
from cq.config.window import checked_time
from cq.durations import Span, seconds_of
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, InvalidData
from cq.keys import check_name
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.queue.adds import write_updates
from cq.store.api import Database, Transaction, TransactionRead

NAME: Final = SESSIONS
VERSION: Final = 1
MIN_GAP: Final = 60
"""The shortest gap, in seconds: a visitor has at most as many intervals on a day as gaps fit into it."""
DAY: Final = 86_400
_FIRST: Final = date(1970, 1, 1)
_MARGIN: Final = 3_600
"""Seconds that a visitor's intervals are kept when no more of them are taken.

Clocks of machines may differ so far, or a process stand still for so long between an add and its commit.
"""

Interval = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """The sessions of a day, or of all time.

    Attributes:
        sessions: their number.
        bounces: sessions with a single visit.
        visits: the visits in all sessions.
        seconds: the lengths of all sessions together, each from its first visit to its last one.
        refused: visits that are in no session, as they came too late, or their time was in the future.
    """

    sessions: int = 0
    bounces: int = 0
    visits: int = 0
    seconds: int = 0
    refused: int = 0

    @property
    def mean_seconds(self) -> float | None:
        """The mean length of a session; None without sessions."""
        return self.seconds / self.sessions if self.sessions else None

    @property
    def bounce_share(self) -> float | None:
        """The share of sessions with a single visit, from 0 to 1; None without sessions."""
        return self.bounces / self.sessions if self.sessions else None

    @property
    def mean_visits(self) -> float | None:
        """The mean number of visits in a session; None without sessions."""
        return self.visits / self.sessions if self.sessions else None


SITE: Final = "site"
"""The key of the sums."""


class Sessions:
    """Counts sessions from visits, which may come in any order. A handle without state, see `cq.CombineQueue`.

    Args:
        name: the queue with the sums, and the beginning of the other queue's name.
    """

    def __init__(self, name: str = "sessions") -> None:
        self.name = name
        self.sums = cq.CombineQueue[str, dict[str, int]](name)
        self.visitors = cq.CombineQueue[tuple[str, int], Sequence[Interval]](f"{name}.visitors")
        self.queues = [self.sums.name, self.visitors.name]

    def configure(
        self, db: Database, *, gap: Span = "30m", late: Span = "1d", buckets: int | None = None
    ) -> None:
        """Configure the queues; raises `ConfigurationConflict` if they exist with other settings.

        Args:
            db: a database of either store.
            gap: a visitor's visits are in one session if less time than this is between each and the next; at least a
                minute, at most a day. Another gap is refused once visitors have sessions, which would count twice.
            late: for how long after the end of its day a visit is taken. So long, each visitor of a day has a key.
            buckets: of the queue with a key for each visitor.
        """
        cq.configure(
            db, self.name, key=str, value=dict, combiner="counter", rollup={"1d": "forever"}, buckets=1
        )
        kept = ExpirySpec(DAY + seconds_of(late) + _MARGIN, 1, KEY)
        counted = [sessions(self.name, gap=seconds_of(gap))]
        wanted = requested(
            key=(str, int), value=list, combiner="intervals", expire=kept, buckets=buckets, put=counted
        )
        change(db, self.visitors.name, wanted)

    def add(
        self,
        tr: Transaction,
        visits: Collection[tuple[str, float | None]],
        once: str | bytes | None = None,
        *,
        now: float | None = None,
    ) -> int:
        """Add visits as pairs of visitor and time, as a part of the transaction; blind, so it never conflicts.

        A visitor is a str. Times are in seconds since 1970, None for now, and count in whole seconds. Visits are
        refused if they come later than `late` after their day, or if their time is more than a day ahead.

        Args:
            tr: a transaction of either store.
            visits: the visits, of any times and in any order.
            once: an operation id: of all transactions that add with it, only the first to commit counts.
            now: the present in seconds since 1970; default: this machine's clock.

        Returns:
            The number of refused visits. They are in no session; the measure `refused` counts them, by their day.
        """
        config = read_config(tr, self.visitors.name)
        rules, present = SessionRules.of(config), floor(runtime.time() if now is None else now)
        taken, refused = list[tuple[Any, Any]](), Counter[int]()
        for visitor, at in repeatable(visits, "visits"):
            time = present if at is None else checked_time(at) // 1000
            if rules.takes(time, present):
                taken.append(interval(visitor, time, rules.gap))
            else:
                refused[_day_of(time)] += 1
        # With an operation id to both queues: so a later try of it counts in neither, whatever its clock refuses.
        if taken or once is not None:
            write_updates(tr, config, taken, once)
        if refused or once is not None:
            _add_sums(tr, self.name, {day: {"refused": number} for day, number in refused.items()}, once)
        return refused.total()

    def rules(self, tr: TransactionRead) -> SessionRules:
        """Return the rules as configured; raises `QueueNotConfigured`, and `InvalidConfiguration` without sessions."""
        return SessionRules.of(read_config(tr, self.visitors.name))

    def get(self, tr: TransactionRead, day: str | None = None) -> SessionCounts:
        """Return the counts of a day in UTC, such as "2026-01-31", or of all time, as far as workers have combined.

        Raises `InvalidData` for a day that is none.
        """
        if day is None:
            return SessionCounts(**(self.sums.get(tr, SITE) or {}))
        return next(iter(self._by_day(tr, DAY, _start_of(day) + DAY).values()))

    def days(self, tr: TransactionRead, *, last: Span = "30d") -> dict[str, SessionCounts]:
        """Return {day: its counts} of the days in UTC that have a part of the last 30 days, or of another span.

        The first day comes first; a day without sessions has counts of 0.
        """
        return self._by_day(tr, last, None)

    def _by_day(self, tr: TransactionRead, last: Span, until: float | None) -> dict[str, SessionCounts]:
        found = self.sums.series(tr, SITE, last=last, by="1d", until=until, fill={})
        return {day_name(start): SessionCounts(**sums) for start, sums in found}


class SessionRules(NamedTuple):
    """The gap of sessions, and for how long after the end of its day a visit is taken, in seconds, as configured."""

    gap: int
    late: int

    @classmethod
    def of(cls, config: QueueConfig) -> SessionRules:
        """The rules that the queue of visitors has; raises `InvalidConfiguration` if it counts no sessions."""
        found = next((each for each in config.observers if each.is_built_in and each.name == NAME), None)
        if found is None or config.expiry is None:
            raise InvalidConfiguration(
                f"queue {config.name!r} counts no sessions: configure it by `Sessions.configure`"
            )
        return cls(found.settings["gap"], config.expiry.period - DAY - _MARGIN)

    def takes(self, time: int, now: int) -> bool:
        """Whether a visit of a time is taken now."""
        return time <= now + DAY and now < _day_of(time) + DAY + self.late


def interval(visitor: str, time: int, gap: int) -> tuple[tuple[str, int], list[Interval]]:
    """The key and the update of a visit in the queue of visitors; its times are relative to the day."""
    day = _day_of(time)
    return (visitor, day), [(time - day, time - day + gap, 1)]


# The observer


def sessions(into: str, *, gap: int) -> ObserverSpec:
    """Return the observer that counts intervals of visitors as sessions into a queue of sums by day.

    Raises `InvalidConfiguration` for an invalid name, or a gap in seconds that is not from a minute to a day.
    """
    if type(gap) is not int or not MIN_GAP <= gap <= DAY:
        raise InvalidConfiguration(
            f"expected a gap of sessions from {MIN_GAP} s to a day, such as 30m, got: {brief(gap)}"
        )
    return ObserverSpec(
        NAME,
        VERSION,
        {"into": check_name(into), "gap": gap},
        check=lambda tr, config: observer(config, {"into": into, "gap": gap}, 0),
    )


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """Return the observer's function; raises `InvalidConfiguration` if it does not suit the queue."""
    into, gap = settings["into"], settings["gap"]
    if config.key.parts != ("str", "int") or config.combiner.name != "intervals" or into == config.name:
        raise InvalidConfiguration(
            f"expected keys of visitor and day, with intervals, queue {config.name!r} has keys of {config.key}"
        )

    def count(tr: Transaction, changes: list[Change[Any, Any]]) -> None:
        sums = defaultdict[int, Counter[str]](Counter)
        for each in changes:
            if each.new is not None:  # else its time is over, and the sessions stay
                sums[each.key[-1]].update(_measures(each.new, gap))
                sums[each.key[-1]].subtract(_measures(each.old or (), gap))
        if sums:
            _add_sums(tr, into, sums)

    return count


def _measures(intervals: Sequence[Interval], gap: int) -> dict[str, int]:
    """The measures of the sessions of a visitor on a day."""
    visits = [number for _, _, number in intervals]
    return {
        "sessions": len(visits),
        "bounces": visits.count(1),
        "visits": sum(visits),
        "seconds": sum(end - begin - gap for begin, end, _ in intervals),
    }


def _add_sums(
    tr: Transaction, name: str, sums: Mapping[int, Mapping[str, int]], once: str | bytes | None = None
) -> None:
    """Add {start of a day: sums} to the queue of sums."""
    updates = [(SITE, dict(each)) for each in sums.values()]
    write_updates(tr, read_config(tr, name), updates, once, times=[checked_time(day) for day in sums])


# Days


def day_name(start: int) -> str:
    """Return the name of a day, such as "2026-01-31", from its start in seconds since 1970."""
    return str(_FIRST + timedelta(seconds=start))


def _day_of(time: int) -> int:
    """The start of the day of a time."""
    return time // DAY * DAY


def _start_of(day: str) -> int:
    try:
        found = date.fromisoformat(day)
    except (ValueError, TypeError):
        raise InvalidData(f"expected a day such as 2026-01-31, got: {brief(day)}") from None
    return (found - _FIRST).days * DAY
