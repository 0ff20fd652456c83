"""How wide a queue's window is, and in what slices it moves on."""

from __future__ import annotations

import re
from math import ceil
from typing import Final, NamedTuple

from cq import runtime
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration

SLICES: Final = 60
"""Into how many slices a window is cut, unless told otherwise."""
MIN_SLICE_MS: Final = 10
MAX_WIDTH_MS: Final = 10 * 366 * 24 * 3600 * 1000
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?")


class WindowSpec(NamedTuple):
    """A window of `width` milliseconds, which moves on by `slice` milliseconds at a time.

    What happened at some time belongs to the slice around it, and is in the window until a width after that slice's
    end. So at any moment the window holds all that is up to `width` old, and nothing that is older than `width` and
    a slice.

    >>> print(WindowSpec.parse("600/10")), WindowSpec.parse("600/10").expires(1_000_001)
    600/10
    (None, 1610000)
    """

    width: int
    slice: int

    @classmethod
    def parse(cls, given: object) -> WindowSpec:
        """From seconds, `(600, 10)` or `"600/10"`, or the width alone, of which a slice is a 60th part.

        Raises `InvalidConfiguration` unless a slice is 10 ms or more, and the width, of up to 10 years, a whole number
        of slices.
        """
        if isinstance(given, WindowSpec):
            return given
        pair = given
        if isinstance(given, str) and (found := _TEXT.fullmatch(given)):
            pair = tuple(float(part) for part in found.groups() if part is not None)
        elif type(given) in (int, float):
            pair = (given,)
        if not isinstance(pair, tuple) or not 1 <= len(pair) <= 2:
            raise _refused(given)
        if not all(type(part) in (int, float) and 0 < part < MAX_WIDTH_MS for part in pair):
            raise _refused(given)
        width = round(1000 * pair[0])
        step = round(1000 * pair[1]) if len(pair) == 2 else width // SLICES
        return cls(width, step).checked(given)

    def checked(self, given: object = None) -> WindowSpec:
        """Itself; raises `InvalidConfiguration` unless there can be such a window."""
        is_one = type(self.width) is int and type(self.slice) is int
        if (
            not is_one
            or not MIN_SLICE_MS <= self.slice <= self.width <= MAX_WIDTH_MS
            or self.width % self.slice
        ):
            raise _refused(given or tuple(self))
        return self

    def __str__(self) -> str:
        return f"{_seconds(self.width)}/{_seconds(self.slice)}"

    def expires(self, at: int) -> int:
        """When that which happened at a time has left the window; both in milliseconds since 1970."""
        return (at // self.slice + 1) * self.slice + self.width


def milliseconds(time: float | None) -> int:
    """A time in seconds since 1970, None for now, in milliseconds.

    Rounded up: whoever reads the clock later, in whichever way, must not get an earlier time.
    """
    return -(-runtime.time_ns() // 1_000_000) if time is None else ceil(round(time * 1000, 3))


def _seconds(number: int) -> str:
    return f"{number / 1000:.3f}".rstrip("0").rstrip(".")


def _refused(given: object) -> InvalidConfiguration:
    return InvalidConfiguration(
        "expected a window's width and slice in seconds, such as 600/10, of up to 10 years and a whole number of "
        f"slices of 0.01 s or more, got: {brief(given)}"
    )
