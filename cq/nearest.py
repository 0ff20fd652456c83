"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable


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
