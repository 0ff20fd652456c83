"""The window of a queue: the recent past in which updates count, and the slices in which it advances."""

from __future__ import annotations

from math import ceil
from typing import Final, Literal, NamedTuple

from cq import runtime
from cq.durations import duration, positive_seconds
from cq.encoding.codec import brief, shown
from cq.errors import InvalidConfiguration, InvalidData

SLICES: Final = 60
"""The default number of slices of a window, or the next smaller one that divides its width."""
MAX_TIME_MS: Final = (1 << 62) - 1
"""The latest time of an update, in milliseconds since 1970."""
MIN_SLICE_MS: Final = 10
MAX_WIDTH_MS: Final = 10 * 366 * 24 * 3600 * 1000


class WindowSpec(NamedTuple):
    """A window of `width` milliseconds, which advances by `slice` milliseconds at a time.

    An update belongs to the slice that contains its time, and expires `width` after the end of this slice. So the
    window always has all updates of the last `width` milliseconds, and no update older than `width` and one slice.
    A slice is named by its end, so slices of several lengths can expire side by side after a change of the length.

    >>> print(WindowSpec.parse("10m/10s")), WindowSpec.parse("10m/10s").expires(1_000_001)
    10m/10s
    (None, 1610000)
    """

    width: int
    slice: int

    @classmethod
    def parse(cls, given: object) -> WindowSpec | Literal[False]:
        """The window for a width and a slice, such as `"10m/10s"` or `(600, 10)`, or for a width alone.

        A width alone has 60 slices, or the next smaller number that divides it. False for False and `"none"`: no
        window.

        >>> print(WindowSpec.parse("1m"), WindowSpec.parse("10s"))
        1m/1s 10s/0.2s

        Raises `InvalidConfiguration` unless a slice has at least 10 ms, and the width is at most 10 years and a whole
        number of slices.
        """
        if given is False or given == "none":
            return False
        if isinstance(given, WindowSpec):
            return given.checked()
        parts = (
            given.split("/") if isinstance(given, str) else given if isinstance(given, tuple) else (given,)
        )
        try:
            width, *more = (round(1000 * positive_seconds(part)) for part in parts)
            (step,) = more or (_default_slice(width),)
        except (InvalidConfiguration, ValueError):
            raise _invalid(given) from None
        return cls(width, step).checked(given)

    def checked(self, given: object = None) -> WindowSpec:
        """The window itself; raises `InvalidConfiguration` if its width or slice is not valid."""
        are_ints = type(self.width) is int and type(self.slice) is int
        if (
            not are_ints
            or not MIN_SLICE_MS <= self.slice <= self.width <= MAX_WIDTH_MS
            or self.width % self.slice
        ):
            raise _invalid(given or tuple(self))
        return self

    def __str__(self) -> str:
        return f"{duration(self.width / 1000)}/{duration(self.slice / 1000)}"

    @property
    def step(self) -> int:
        """The length of a slice, in milliseconds."""
        return self.slice

    def period_of(self, at: int) -> int:
        """The end of the slice with a time; both in milliseconds since 1970."""
        return (at // self.slice + 1) * self.slice

    def is_over(self, end: int, now: int) -> bool:
        """Whether the slice with this end has left the window; both in milliseconds since 1970."""
        return end + self.width <= now

    def expires(self, at: int) -> int:
        """The time at which an update of the time `at` expires; both in milliseconds since 1970."""
        return self.period_of(at) + self.width

    def ends(self, now: int) -> range:
        """The ends of the slices in the window at a time in milliseconds, up to that of an update one slice ahead.

        >>> list(WindowSpec(20_000, 10_000).ends(1_005_000))
        [990000, 1000000, 1010000, 1020000]
        """
        return range(
            ((now - self.width) // self.slice + 1) * self.slice,
            self.period_of(now + self.slice) + self.slice,
            self.slice,
        )


def _default_slice(width: int) -> int:
    """The default length of a slice, for a width; both in milliseconds."""
    numbers = range(min(SLICES, width // MIN_SLICE_MS), 0, -1)
    return width // next((number for number in numbers if width % number == 0), 1)


def milliseconds(time: float | None) -> int:
    """A time in seconds since 1970, None for now, in milliseconds.

    Rounded up, so that a later reading of the clock, in seconds or nanoseconds, never gives an earlier time.
    """
    return -(-runtime.time_ns() // 1_000_000) if time is None else ceil(round(time * 1000, 3))


def checked_time(at: object) -> int:
    """Milliseconds of a time in seconds since 1970; raises `InvalidData`."""
    if type(at) not in (int, float) or not abs(at) < MAX_TIME_MS / 4000:  # type: ignore[arg-type]
        raise InvalidData(f"expected a time in seconds since 1970, got: {shown(at)}")
    return milliseconds(at)  # type: ignore[arg-type]


def _invalid(given: object) -> InvalidConfiguration:
    return InvalidConfiguration(
        "expected the width and slice of a window, such as 10m/10s: a width of at most 10 years that is a "
        f"whole number of slices of at least 0.01 s; got: {brief(given)}"
    )
