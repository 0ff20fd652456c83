"""Checks of arguments that several public functions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from cq.errors import InvalidData, OneShotIterable, WrongType

T = TypeVar("T", bound=Iterable[object])


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
    """Raise `InvalidData` unless the limit is an int from 1 on."""
    if type(limit) is not int or limit < 1:
        raise InvalidData(f"expected a limit from 1, got: {limit!r:.80}")
