"""Redaction of the passwords in a reporting database's URL from messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final
from urllib.parse import quote, quote_plus

import sqlalchemy as sa

_MASK: Final = "***"
_SECRET: Final = re.compile("pass|pwd|secret|token", re.IGNORECASE)
_NO_SECRET: Final = frozenset({"passfile"})  # libpq's path to a password file
_LONG: Final = 8
"""A secret of this length is replaced within words, too. A shorter one may be part of an ordinary word."""


class Secrets:
    """The passwords in a URL: before the host, and in parameters such as `password` and `sslpassword`.

    Args:
        url: the URL of the reporting database.
    """

    def __init__(self, url: sa.URL) -> None:
        # A secret as plain text, and in the URL encodings of SQLAlchemy and of users.
        encodings = str, partial(quote, safe=" +"), partial(quote, safe=""), quote_plus
        spellings = {encode(secret) for secret in _secrets_of(url) for encode in encodings}
        # The longest first: a shorter one may be part of it.
        patterns = [_pattern(secret) for secret in sorted(spellings, key=len, reverse=True)]
        self._found = re.compile("|".join(patterns)) if patterns else None

    def redact(self, text: str) -> str:
        """The text with each password, plain or URL-encoded, replaced by three asterisks."""
        return text if self._found is None else self._found.sub(_MASK, text)


def _secrets_of(url: sa.URL) -> Iterator[str]:
    if url.password:
        yield str(url.password)
    for name, value in url.query.items():
        if _SECRET.search(name) and name not in _NO_SECRET:
            yield from filter(None, [value] if isinstance(value, str) else value)


def _pattern(secret: str) -> str:
    exact = re.escape(secret)
    return exact if len(secret) >= _LONG else rf"(?<!\w){exact}(?!\w)"
