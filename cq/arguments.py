"""Checks of arguments that several public functions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from cq.errors import InvalidData, OneShotIterable, WrongType

T = TypeVar("T", bound=Iterable[object])

_MAX_LIMIT: Final = (1 << 31) - 2
"""FoundationDB's limits have 32 bits, and some reads ask for one row more."""


def repeatable(given: T, what: str) -> T:
    """The iterable `given`, `what` in messages; raises `WrongType` for a text, `OneShotIterable` for an iterator.

    A transaction is retried after a conflict. The first try has exhausted an iterator by then, so the retry would
    write nothing and commit without an error.
    """
    if isinstance(given, str | bytes):  # its characters would be taken one by one
        short = repr(given[:40])
        raise WrongType(f"expected {what} in a collection, got: {short}; give a list, as in [{short}]")
    if iter(given) is given:
        raise OneShotIterable(
            f"expected {what} in a collection, got an iterator ({type(given).__name__}): it would be empty when the "
            f"transaction is retried; give a list or a dict made of it"
        )
    return given


def check_limit(limit: object) -> None:
    """Raise `InvalidData` unless the limit is an int from 1 on, up to 2,147,483,646."""
    if type(limit) is not int or not 1 <= limit <= _MAX_LIMIT:
        raise InvalidData(f"expected a limit from 1 to {_MAX_LIMIT:,}, got: {limit!r:.80}")
