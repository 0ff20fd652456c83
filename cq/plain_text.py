"""Foreign text made safe to print and to log.

Keys, messages of other software, host names and paths may contain what a terminal obeys, line breaks that forge lines
of a log, and characters that change the direction of text.
"""

from __future__ import annotations

from typing import Final

MAX_CHARACTERS: Final = 1_000
_CUT: Final = "..."


def printable(text: str) -> str:
    r"""The text in one line of at most 1,000 printable characters; all others are escaped as in a Python string.

    >>> printable("red: \x1b[31m\nnext line")
    'red: \\x1b[31m\\nnext line'
    """
    # Cut before it is escaped, too: the text may have any length.
    shown = escaped(text[: MAX_CHARACTERS + 1])
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - len(_CUT)] + _CUT


def escaped(text: str) -> str:
    r"""The whole text, in which characters that are not printable are escaped as in a Python string.

    Those are control characters, formats such as the direction of text, line and paragraph separators, lone
    surrogates, and all space except U+0020: `str.isprintable`.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def describe(error: BaseException) -> str:
    """An exception in one printable line, which can be stored whatever the exception contains."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - a foreign __str__
        text = f"(its message raises {type(failure).__name__})"
    return printable(f"{type(error).__name__}: {text}")
