"""Numbers, times and stored data as text for people, by functions that are filters of templates; rows of tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final, Generic, NamedTuple, TypeVar

from markupsafe import Markup

from cq import plain_text
from cq.cli.shared.output import quantity
from cq.durations import rough
from cq.encoding.json_values import to_json
from cq.errors import CqError
from cq.plain_text import escaped, utc_time

T = TypeVar("T")

_TICKS: Final = re.compile(r"`([^`]+)`")
_MAX_CHARACTERS: Final = 2_000
_MAX_NAMES: Final = 20
_MOST: Final = 10**21
UNUSUAL: Final = "out of range"
"""Stands for a number that no part of cq stores."""
NOTHING: Final = "\N{EN DASH}"
"""Stands for an unknown number."""
MAX_ROWS: Final = 200
"""The rows of a table; a page of queues has half of them."""


class First(NamedTuple, Generic[T]):
    """The first rows of a table, and the number of further ones."""

    rows: Sequence[T]
    more: int


def first_of(rows: Iterable[T], most: int = MAX_ROWS) -> First[T]:
    """The first rows: a page has a limited size, whatever the store has.

    >>> first_of("abc", 2)
    First(rows=['a', 'b'], more=1)
    """
    found = list(rows)
    return First(found[:most], max(0, len(found) - most))


def age(seconds: float | None) -> str:
    """A length of time in its two largest units.

    >>> age(0.04), age(7.26), age(75), age(7_300)
    ('0.0 s', '7.3 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds is None:
        return NOTHING
    return rough(seconds) if _is_usual(seconds) else UNUSUAL


def count(number: float | None) -> str:
    """A number with its digits in groups of three, and with one decimal below 100 unless it is whole.

    >>> count(12_345.6), count(3.14), count(5)
    ('12,346', '3.1', '5')
    """
    if number is None:
        return NOTHING
    if not _is_usual(number):
        return UNUSUAL
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.1f}"


def size(number: float | None) -> str:
    """A number of bytes with a unit."""
    if number is None:
        return NOTHING
    return plain_text.size(number) if _is_usual(number) else UNUSUAL


def _is_usual(number: float) -> bool:
    """Whether a stored number can be written with its digits: damaged data have others, and pages show them, too."""
    return -_MOST < number < _MOST  # False for NaN, which is in no order


def shown(value: Any) -> str:
    r"""A key or a value as the command line shows it, in printable characters: at most 2,000.

    >>> shown("a\x1b[31m"), shown((1, "b")), shown(b"\x00"), shown(" ")
    ('a\\x1b[31m', '[1, "b"]', 'AA==', '" "')
    """
    try:
        plain = to_json(value)
    except CqError as error:  # a sketch, without the package that reads it
        plain = str(error)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    text = escaped(text[: _MAX_CHARACTERS + 1])
    if not text.strip():  # else its cell seems empty
        text = f'"{text}"'
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def names(found: Sequence[str]) -> str:
    """The first 20 names in printable characters, and the number of the others.

    >>> names(["a", "b"]), names(["a"] * 22)[-21:]
    ('a, b', 'a, a, a, a and 2 more')
    """
    text = escaped(", ".join(found[:_MAX_NAMES]))
    return text if len(found) <= _MAX_NAMES else f"{text} and {len(found) - _MAX_NAMES:,} more"


def ticks(text: str) -> Markup:
    """Text with the commands between its backticks as `<code>`; all else is escaped.

    >>> ticks("run `cq worker` <now>")
    Markup('run <code>cq worker</code> &lt;now&gt;')
    """
    return Markup(_TICKS.sub(r"<code>\1</code>", escape(escaped(text))))  # noqa: S704 - the text is escaped


def clock(at: float | None) -> str:
    """A time in seconds since 1970 as date and time in UTC."""
    if at is None:
        return NOTHING
    return utc_time(at) if _is_usual(at) else UNUSUAL


FILTERS: Final = {
    "age": age,
    "count": count,
    "size": size,
    "plural": quantity,
    "shown": shown,
    "clock": clock,
    "names": names,
    "ticks": ticks,
    "plain": escaped,
}
