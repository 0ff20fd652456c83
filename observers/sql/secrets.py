"""Passwords in the URL of a reporting database, and messages without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

import sqlalchemy as sa

_MASK: Final = "***"
_SECRET: Final = re.compile("pass|pwd|secret|token", re.IGNORECASE)
_NO_SECRET: Final = frozenset({"passfile"})  # libpq's path of a file
_LONG: Final = 8
"""A secret of this length is replaced within words, too. A shorter one may be a part of an ordinary word."""


class Secrets:
    """The passwords in a URL: that before the host, and those of parameters such as `password` and `sslpassword`.

    Args:
        url: of the reporting database.
    """

    def __init__(self, url: sa.URL) -> None:
        spelt = {each for secret in _secrets_of(url) for each in _spellings(secret)}
        # The longest first: a shorter one may be a part of it.
        patterns = [_pattern(secret) for secret in sorted(spelt, key=len, reverse=True)]
        self._found = re.compile("|".join(patterns)) if patterns else None

    def redact(self, text: str) -> str:
        """The text with three asterisks in place of each password, as it is or as it stands in a URL."""
        return text if self._found is None else self._found.sub(_MASK, text)


def _secrets_of(url: sa.URL) -> Iterator[str]:
    if url.password:
        yield str(url.password)
    for name, value in url.query.items():
        if _SECRET.search(name) and name not in _NO_SECRET:
            yield from filter(None, [value] if isinstance(value, str) else value)


def _spellings(secret: str) -> tuple[str, ...]:
    """The secret as it is, and as URLs have it: SQLAlchemy's own, and those that users write."""
    return secret, quote(secret, safe=" +"), quote(secret, safe=""), quote_plus(secret)


def _pattern(secret: str) -> str:
    exact = re.escape(secret)
    return exact if len(secret) >= _LONG else rf"(?<!\w){exact}(?!\w)"
