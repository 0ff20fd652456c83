"""The roll-up of a queue: its values by minutes, hours, days ..., each kept for a time of its own.

A level has the values of one period: an ordinary queue, named after the queue and the period (`hits.1h`), with the
queue's combiner. The last part of its keys is the start of a period, in seconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, NoReturn

from cq.encoding.cbor import array_head, encode_ints
from cq.encoding.codec import KeyType, brief
from cq.errors import InvalidConfiguration

OBSERVER: Final = "rollup"
"""The name of the observer of a level that adds its changes to the next level."""
MAX_LEVELS: Final = 6
LEVEL_KEY_BYTES: Final = 10
"""The most bytes that a key of a level has in addition to the queue's key: nine of the start, and one of the head."""
MAX_SECONDS: Final = 100 * 366 * 86_400
FOREVER: Final = "forever"
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PART: Final = re.compile(r"(\d+)([smhdw])")


class RollUpLevel(NamedTuple):
    """A level of a roll-up.

    Attributes:
        period: the length of its periods, in seconds; periods begin at multiples of it since 1970, in UTC.
        retention: how long a period is kept after its start, in seconds; None: for ever.
    """

    period: int
    retention: int | None

    def queue_of(self, name: str) -> str:
        """The name of its queue, for the queue with the roll-up.

        >>> RollUpLevel(3600, None).queue_of("hits")
        'hits.1h'
        """
        return f"{name}.{duration(self.period)}"

    def __str__(self) -> str:
        return f"{duration(self.period)}:{FOREVER if self.retention is None else duration(self.retention)}"


class RollUp(NamedTuple):
    """The roll-up of a queue.

    Attributes:
        levels: its levels, the finest first.
        is_derived: whether workers derive each coarser level from the next finer one; otherwise adds write all levels.
    """

    levels: tuple[RollUpLevel, ...]
    is_derived: bool = True

    @classmethod
    def parse(cls, given: object) -> RollUp:
        """The roll-up for `"1m:2d,1h:60d,1d:forever"`, or for `{"1m": "2d", "1h": "60d", "1d": "forever"}`.

        Periods and retentions may be numbers of seconds or `timedelta`s, too; `None` is `"forever"`. No levels, or
        `"none"`: no roll-up. Raises `InvalidConfiguration`.
        """
        if isinstance(given, RollUp):
            return given
        pairs = _pairs(given)
        levels = sorted(
            RollUpLevel(seconds_of(period), None if kept in (None, FOREVER) else seconds_of(kept))
            for period, kept in pairs
        )
        return cls(tuple(levels)).checked(given)

    def checked(self, given: object = None) -> RollUp:
        """The roll-up itself; raises `InvalidConfiguration` if its levels do not fit together."""
        shown = brief(str(self) if given is None else given)
        if len(self.levels) > MAX_LEVELS:
            raise InvalidConfiguration(f"expected at most {MAX_LEVELS} levels of a roll-up, got: {shown}")
        for level in self.levels:
            if not _is_seconds(level.period) or not (level.retention is None or _is_seconds(level.retention)):
                raise InvalidConfiguration(f"expected durations of a second to 100 years, got: {shown}")
            if level.retention is not None and level.retention < level.period:
                raise InvalidConfiguration(
                    f"expected {duration(level.period)} to be kept for at least one period, got: {shown}"
                )
        for finer, coarser in zip(self.levels, self.levels[1:], strict=False):
            if coarser.period == finer.period or coarser.period % finer.period:
                raise InvalidConfiguration(
                    f"expected each period to be a multiple of the next shorter one, got: {shown}"
                )
            if coarser.retention is not None and coarser.retention < (finer.retention or MAX_SECONDS):
                raise InvalidConfiguration(
                    f"expected a longer period to be kept at least as long as a shorter one, got: {shown}"
                )
        return self

    @classmethod
    def from_stored(cls, stored: Any) -> RollUp | None:
        """The roll-up in a decoded configuration; raises `ValueError` or `TypeError` if cq did not write it."""
        if stored is None:
            return None
        levels, is_derived = stored
        if type(is_derived) is not bool or not levels:
            raise ValueError("a roll-up has a wrong type or size")
        return cls(tuple(RollUpLevel(*level) for level in levels), is_derived).checked()

    def __str__(self) -> str:
        return ",".join(map(str, self.levels))

    @property
    def written(self) -> tuple[RollUpLevel, ...]:
        """The levels that an add writes."""
        return self.levels[:1] if self.is_derived else self.levels

    def after(self, level: RollUpLevel) -> RollUpLevel | None:
        """The level derived from this one; None for the last level."""
        following = self.levels[self.levels.index(level) + 1 :]
        return following[0] if self.is_derived and following else None


class LevelOf(NamedTuple):
    """What a level's queue is a part of.

    Attributes:
        queue: the name of the queue with the roll-up.
        period: the length of the level's periods, in seconds.
    """

    queue: str
    period: int

    def refuse(self, name: str, verb: str) -> NoReturn:
        """Raise `InvalidConfiguration` for the level of this name: an operator must `verb` it with its queue."""
        raise InvalidConfiguration(
            f"queue {name!r} is a level of the roll-up of queue {self.queue!r}: {verb} queue {self.queue!r}, which "
            "includes its levels"
        )

    @classmethod
    def from_stored(cls, stored: Any) -> LevelOf | None:
        """The value in a decoded configuration; raises `ValueError` or `TypeError` if cq did not write it."""
        if stored is None:
            return None
        level = cls(*stored)
        if type(level.queue) is not str or not _is_seconds(level.period):
            raise ValueError("the source of a level has a wrong type or size")
        return level


def level_key(key: Any, start: int) -> Any:
    """The key of a level for a key of the queue, and the start of a period."""
    return (*key, start) if type(key) is tuple else (key, start)


def encoded_level_keys(key: KeyType, encoded: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
    """The encoded `level_key` of encoded keys of the queue, and the start of each key's period, or one for all.

    An array in CBOR is a head and its items (RFC 8949, section 3), so no key is decoded or encoded again: that would
    take most of the time that an add spends on a level.
    """
    parts = len(key.parts)
    head, skipped = array_head(parts + 1), len(array_head(parts)) if key.is_tuple else 0
    tails = encode_ints(starts)
    return [
        head + each[skipped:] + tail
        for each, tail in zip(encoded, tails * len(encoded) if len(tails) == 1 else tails, strict=True)
    ]


def level_key_type(key: KeyType) -> KeyType:
    """The type of a level's keys."""
    return KeyType((*key.parts, "int"), is_tuple=True)


def duration(seconds: int) -> str:
    """A number of seconds, at least 1, as text: the longest unit that divides it.

    >>> duration(90), duration(7_200)
    ('90s', '2h')
    """
    unit, length = next((unit, length) for unit, length in _UNITS.items() if seconds % length == 0)
    return f"{seconds // length}{unit}"


def seconds_of(given: object) -> int:
    """The whole seconds in `"90s"`, `"1h30m"`, `"2d"`, a number or a `timedelta`; raises `InvalidConfiguration`.

    >>> seconds_of("1h30m"), seconds_of(60.0)
    (5400, 60)
    """
    seconds: object = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, str):
        seconds = _seconds_in(seconds)
    if type(seconds) is float and seconds.is_integer():
        seconds = int(seconds)
    if not _is_seconds(seconds):
        raise InvalidConfiguration(
            f"expected a duration of whole seconds such as 90s, 10m, 24h or 30d, got: {brief(given)}"
        )
    return seconds  # type: ignore[return-value]


def _seconds_in(text: str) -> int | None:
    """The seconds in text such as `"1h30m"`; None if it is no duration."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    units = {**_UNITS, "w": 7 * _UNITS["d"]}
    return sum(int(number) * units[unit] for number, unit in parts)


def _is_seconds(given: object) -> bool:
    return type(given) is int and 0 < given <= MAX_SECONDS


def _pairs(given: object) -> list[tuple[object, object]]:
    """(period, retention) of each level."""
    if isinstance(given, Mapping):
        return list(given.items())
    if given == "none" or given == ():
        return []
    if isinstance(given, str):
        pairs = [tuple(part.strip().split(":")) for part in given.split(",")]
        if all(len(pair) == 2 for pair in pairs):
            return pairs  # type: ignore[return-value]
    raise InvalidConfiguration(
        f"expected a roll-up as PERIOD:RETENTION,... such as 1m:2d,1h:60d,1d:forever, got: {brief(given)}"
    )
