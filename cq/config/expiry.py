"""The expiry of a queue: after which time without updates a key is deleted."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from cq.durations import MAX_SECONDS, duration, seconds_of
from cq.encoding.codec import KeyType, brief
from cq.errors import InvalidConfiguration

UPDATE: Final = "update"
"""Keys expire after their latest update."""
KEY: Final = "key"
"""Keys expire after the time in their last part, in seconds."""
SLICE: Final = "slice"
"""Keys expire after the time in their last part, in milliseconds: the slices of a window."""
SLICES: Final = 60
"""The default number of slices of a period."""
LATEST: Final = (1 << 50) - 1
"""The latest time of an entry; later times in keys count as this one."""


class ExpirySpec(NamedTuple):
    """The expiry of a queue's keys: a key is deleted a period after its time.

    Attributes:
        period: in seconds; for slices of a window in milliseconds, as all times of such a queue are.
        slice: seconds of a slice. With `by` "update", the time of a key is the end of the slice in which a pass last
            combined an update of it. A key is due at least a period after its latest update, and at most one slice
            later. A pass writes the time of a key once for each slice.
        by: "update"; or "key": the last part of the key is its time, for example the start of a period of a roll-up;
            or "slice": the same in milliseconds, the end of a slice of a window.

    >>> print(ExpirySpec.parse("30d")), ExpirySpec.parse(600).time_of_update(1_005)
    30d
    (None, 1010)
    """

    period: int
    slice: int
    by: str = UPDATE

    @classmethod
    def parse(cls, given: object) -> ExpirySpec | Literal[False]:
        """The expiry for a duration, with the default slice; False for False, which switches it off.

        Raises `InvalidConfiguration` unless it is a whole number of seconds from 1 up to 100 years.
        """
        if given is False:
            return False
        if isinstance(given, ExpirySpec):
            return given.checked()
        period = seconds_of(given)
        return cls(period, max(1, period // SLICES))

    def checked(self) -> ExpirySpec:
        """The expiry itself; raises `InvalidConfiguration` if a part of it is not valid."""
        are_ints = type(self.period) is int and type(self.slice) is int
        if self.by not in (UPDATE, KEY, SLICE):
            raise InvalidConfiguration(f"expected keys to expire by update or key, got: {brief(self.by)}")
        if not are_ints or not 1 <= self.slice <= self.period <= MAX_SECONDS * self.ticks:
            raise _invalid(self.period)
        return self

    def check_key(self, key: KeyType) -> None:
        """Raise `InvalidConfiguration` if keys expire by their last part, and keys of this type have no time there."""
        if self.is_by_key and not (len(key.parts) > 1 and key.parts[-1] == "int"):
            raise InvalidConfiguration(
                f"expected keys of several parts, the last one int, for an expiry by key, got: {key}"
            )

    @property
    def is_by_key(self) -> bool:
        """Whether the last part of a key is its time."""
        return self.by != UPDATE

    @property
    def ticks(self) -> int:
        """The number of units of its times in a second."""
        return 1000 if self.by == SLICE else 1

    def __str__(self) -> str:
        text = duration(self.period / self.ticks)
        return text if self.by == UPDATE else f"{text} by {self.by}"

    def time_of_update(self, now: float) -> int:
        """The time of a key with an update at the time `now`: the end of the slice."""
        return (int(now) // self.slice + 1) * self.slice

    def time_of_key(self, key: tuple[object, ...]) -> int:
        """The time in the last part of a key, within the bounds that entries can have."""
        time: int = key[-1]  # type: ignore[assignment]
        return min(max(time, 0), LATEST)

    def due_at(self, time: int) -> float:
        """When a key with this time is due, in seconds since 1970."""
        return (time + self.period) / self.ticks

    def latest_due(self, now: float) -> int:
        """The latest time that is due at the time `now`, in seconds since 1970; it may be negative."""
        return int(now * self.ticks) - self.period


def _invalid(given: object) -> InvalidConfiguration:
    return InvalidConfiguration(
        "expected keys to expire after a whole number of seconds from 1 up to 100 years, or False, "
        f"got: {brief(given)}"
    )
