"""Durations as text, such as `90s`, `12h` and `1h30m`: parsed and printed."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final, TypeGuard

from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration

Span = float | str | timedelta
"""A duration: seconds, text such as `"1h30m"` or `"30d"`, or a `timedelta`."""
MAX_SECONDS: Final = 100 * 366 * 86_400
FOREVER: Final = "forever"
"""The text for a time without an end."""
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PARSED: Final = {"w": 7 * 86_400, **_UNITS}
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)


def seconds_in(text: str) -> float | None:
    """The seconds in text such as `"90s"`, `"1h30m"`, `"2d"`, `"1.5s"` or `"90"`; None if it is no duration.

    >>> seconds_in("1h30m"), seconds_in("1.5s"), seconds_in("90"), seconds_in("soon")
    (5400.0, 1.5, 90.0, None)
    """
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _PARSED[unit] for number, unit in parts)


def seconds_of(given: object) -> int:
    """The whole seconds in a duration as text, a number or a `timedelta`; raises `InvalidConfiguration`.

    >>> seconds_of("1h30m"), seconds_of(60.0)
    (5400, 60)
    """
    seconds = _number_of(given)
    if type(seconds) is float and seconds.is_integer():
        seconds = int(seconds)
    if not is_seconds(seconds):
        raise InvalidConfiguration(
            "expected a duration of whole seconds such as 90s, 10m, 24h or 30d, up to 100 years, "
            f"got: {brief(given)}"
        )
    return seconds


def positive_seconds(given: object) -> float:
    """The seconds in a duration, which need not be whole; raises `InvalidConfiguration`.

    >>> positive_seconds("10m"), positive_seconds(0.5)
    (600.0, 0.5)
    """
    seconds = _number_of(given)
    if not (isinstance(seconds, int | float) and type(seconds) is not bool and 0 < seconds <= MAX_SECONDS):
        raise InvalidConfiguration(
            "expected a positive duration in seconds, or one such as 90s, 10m, 24h or 30d, up to 100 years, "
            f"got: {brief(given)}"
        )
    return seconds


def timeout_of(given: Span | None) -> float | None:
    """As `span_of`; None, for no limit, for None.

    >>> timeout_of("2m"), timeout_of(None)
    (120.0, None)
    """
    return None if given is None else span_of(given)


def span_of(given: Span) -> float:
    """The seconds in a duration that may be 0 or infinite; raises `InvalidConfiguration`.

    >>> span_of("2m"), span_of(0)
    (120.0, 0)
    """
    seconds = _number_of(given)
    if not isinstance(seconds, int | float) or type(seconds) is bool or math.isnan(seconds):
        raise InvalidConfiguration(
            f"expected a duration in seconds, or one such as 90s or 10m, got: {brief(given)}"
        )
    return seconds


def _number_of(given: object) -> object:
    """The seconds in text or a `timedelta`, None for text that is no duration; other objects as they are."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    return seconds_in(given) if isinstance(given, str) else given


def is_seconds(given: object) -> TypeGuard[int]:
    """Whether this is a whole number of seconds, from one second up to 100 years."""
    return type(given) is int and 0 < given <= MAX_SECONDS


def duration(seconds: float | None) -> str:
    """The text of a number of seconds, in the longest unit that divides it; `forever` for None.

    >>> duration(90), duration(7_200), duration(0.5), duration(None)
    ('90s', '2h', '0.5s', 'forever')
    """
    if seconds is None:
        return FOREVER
    unit = next((unit for unit, length in _UNITS.items() if seconds % length == 0), None)
    return f"{seconds:g}s" if unit is None else f"{seconds // _UNITS[unit]:.0f}{unit}"


def rough(seconds: float) -> str:
    """A length of time for people, in its two largest units.

    >>> rough(0.04), rough(7.26), rough(75), rough(7_300)
    ('0.0 s', '7.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    parts: list[str] = []
    left = int(seconds)
    for unit, length in _UNITS.items():
        number, left = divmod(left, length)
        if parts or number:
            parts.append(f"{number:,} {unit.replace('m', 'min')}" if number else "")
    return " ".join(filter(None, parts[:2]))
