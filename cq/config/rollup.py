"""The roll-up of a queue: its values by minutes, hours, days ..., each kept for a time of its own.

A level has the values of one period: an ordinary queue, named after the queue and the period (`hits.1h`), with the
queue's combiner. The last part of its keys is the start of a period, in seconds since 1970. Passes over the queue add
to its levels what they take, each update in the period of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from cq.durations import FOREVER, MAX_SECONDS, duration, is_seconds, seconds_of
from cq.encoding.cbor import array_head, encode_ints
from cq.encoding.codec import KeyType, brief
from cq.errors import InvalidConfiguration

MAX_LEVELS: Final = 6
LEVEL_KEY_BYTES: Final = 10
"""The most bytes that a key of a level has in addition to the queue's key: nine of the start, and one of the head."""


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

    @property
    def step(self) -> int:
        """The length of a period, in milliseconds."""
        return 1000 * self.period

    def period_of(self, at: int) -> int:
        """The start, in seconds, of the period with a time in milliseconds; both since 1970."""
        return at // 1000 // self.period * self.period

    def is_over(self, start: int, now: int) -> bool:
        """Whether the period with this start, in seconds, is not kept any more at a time in milliseconds."""
        return self.retention is not None and start + self.retention <= now // 1000

    def __str__(self) -> str:
        return f"{duration(self.period)}:{duration(self.retention)}"


class RollUp(NamedTuple):
    """The roll-up of a queue.

    Attributes:
        levels: its levels, the finest first.
    """

    levels: tuple[RollUpLevel, ...]

    @classmethod
    def parse(cls, given: object) -> RollUp:
        """The roll-up for `"1m:2d,1h:60d,1d:forever"`, or for `{"1m": "2d", "1h": "60d", "1d": "forever"}`.

        Periods and retentions may be numbers of seconds or `timedelta`s, too; `None` is `"forever"`. No levels, or
        `"none"`: no roll-up. Raises `InvalidConfiguration`.
        """
        if isinstance(given, RollUp):
            return given.checked()
        pairs = _pairs(given)
        levels = sorted(
            RollUpLevel(seconds_of(period), None if kept in (None, FOREVER) else seconds_of(kept))
            for period, kept in pairs
        )
        return cls(tuple(levels)).checked(given)

    def checked(self, given: object = None) -> RollUp:
        """The roll-up itself; raises `InvalidConfiguration` if its levels do not fit together."""
        shown = brief(tuple(map(tuple, self.levels)) if given is None else given)
        if len(self.levels) > MAX_LEVELS:
            raise InvalidConfiguration(f"expected at most {MAX_LEVELS} levels of a roll-up, got: {shown}")
        for level in self.levels:
            if not is_seconds(level.period) or not (level.retention is None or is_seconds(level.retention)):
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
        if not stored:
            raise ValueError("a roll-up has a wrong size")
        return cls(tuple(RollUpLevel(*level) for level in stored)).checked()

    def __str__(self) -> str:
        return ",".join(map(str, self.levels))


class LevelPart(Enum):
    """What a queue that belongs to another queue has."""

    PERIODS = "periods"
    SLICES = "slices"
    WINDOW = "window"

    def queue_of(self, name: str) -> str:
        """The name of the queue with this part of a window, for the queue with the window.

        >>> LevelPart.WINDOW.queue_of("hits")
        'hits.window'
        """
        return f"{name}.{self.value}"


class LevelOf(NamedTuple):
    """What a queue is a part of: a level of a roll-up, the slices of a window, or the keys in a window.

    Attributes:
        queue: the name of the queue with the roll-up or window.
        part: what it has of that queue.
        period: the length of a level's periods, in seconds; 0 for a part of a window.
        since: when it was made, in seconds since 1970: updates before that may be missing.
    """

    queue: str
    part: LevelPart
    period: int
    since: int

    @property
    def is_period(self) -> bool:
        """Whether it is a level of a roll-up."""
        return self.part is LevelPart.PERIODS

    @property
    def is_slices(self) -> bool:
        """Whether it has the slices of a window."""
        return self.part is LevelPart.SLICES

    @property
    def is_window(self) -> bool:
        """Whether it has the keys in a window."""
        return self.part is LevelPart.WINDOW

    def to_stored(self) -> list[Any]:
        """The value in a stored configuration."""
        return [self.queue, self.part.value, self.period, self.since]

    @classmethod
    def from_stored(cls, stored: Any) -> LevelOf | None:
        """The value in a decoded configuration; raises `ValueError` or `TypeError` if cq did not write it."""
        if stored is None:
            return None
        queue, part, period, since = stored
        level = cls(queue, LevelPart(part), period, since)
        is_valid = is_seconds(period) if level.is_period else period == 0
        if type(queue) is not str or type(since) is not int or not is_valid:
            raise ValueError("the source of a level has a wrong type or size")
        return level


def level_key(key: Any, start: int) -> Any:
    """The key of a level for a key of the queue, and the start of a period."""
    return (*key, start) if type(key) is tuple else (key, start)


def key_without_time(key: KeyType, level_key: tuple[Any, ...]) -> Any:
    """The key of the queue, whose keys have this type, in a key of its level."""
    return level_key[:-1] if key.is_tuple else level_key[0]


def encoded_level_keys(key: KeyType, encoded: Sequence[bytes], starts: Sequence[int]) -> list[bytes]:
    """The encoded `level_key` of encoded keys of the queue, and the start of each key's period, or one for all.

    An array in CBOR is a head and its items (RFC 8949, section 3), so no key is decoded or encoded again: that would
    take most of the time that a pass spends on a level.
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
