"""Text for people: escaping of foreign text, so that it is safe to print and to log, and suggestions of names.

Keys, messages of other software, host names and paths may contain control sequences of terminals, line breaks that
forge lines of a log, and characters that change the direction of text.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

MAX_CHARACTERS: Final = 1_000
_CUT: Final = "..."
_SIZES: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def printable(text: str) -> str:
    r"""The text in one line of at most 1,000 printable characters; others are escaped as in a Python string.

    >>> printable("red: \x1b[31m\nnext line")
    'red: \\x1b[31m\\nnext line'
    """
    # Cut before the escaping, too: the text may be very long.
    shown = escaped(text[: MAX_CHARACTERS + 1])
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - len(_CUT)] + _CUT


def escaped(text: str) -> str:
    r"""The whole text, with all characters that are not printable escaped as in a Python string.

    By `str.isprintable`, these are control characters, format characters such as those for the direction of text, line
    and paragraph separators, lone surrogates, and all space except U+0020.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def utc_time(seconds: float) -> str:
    """The date and time of these seconds since 1970; in seconds if that is outside the calendar's years.

    >>> utc_time(0)
    '1970-01-01 00:00:00 UTC'
    """
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:,g} s after 1970"


def size(number: float) -> str:
    """A number of bytes with a unit.

    >>> size(999), size(12_345), size(17_592_186_044_416)
    ('999 bytes', '12.3 kB', '17.6 TB')
    """
    for unit, name in _SIZES:
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:,.0f} bytes"


def message_of(error: BaseException) -> str:
    """The message of an exception; the store's text in one of FoundationDB's binding is bytes."""
    text, description = str(error), getattr(error, "description", None)
    return text.replace(repr(description), description.decode()) if isinstance(description, bytes) else text


def describe(error: BaseException) -> str:
    """Type and message of an exception, `error`, in one printable line of limited length."""
    try:
        text = message_of(error)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - a foreign __str__ may raise anything
        text = f"(its message raises {type(failure).__name__})"
    return printable(f"{type(error).__name__}: {text}")


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None if no name is similar.

    >>> nearest("wrods", ["words", "visits"])
    'words'
    >>> nearest("words", ["words", "visits"])  # listed, but its configuration is lost
    """
    from difflib import get_close_matches  # late: only errors need it

    others = [each for each in known if each != name]
    found = get_close_matches(name, others, n=1) if isinstance(name, str) else []
    return found[0] if found else None


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return the nearest name as the end of a message; empty if no name is similar."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"
