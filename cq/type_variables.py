"""Type variables of the generic classes: the types of a queue's keys and values, of a feed's messages, of totals.

They have a default, so that `CombineQueue` without parameters is `CombineQueue[Any, Any]` and needs no annotation.
Python 3.13 is the first version with such defaults; type checkers know them for every version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

Key = str | int | bytes | tuple[str | int | bytes, ...]
"""A key of a queue: str, int or bytes, or a tuple of them."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", bound=Key, default=Any)
    V = TypeVar("V", default=Any)
    M = TypeVar("M", default=Any)
    W = TypeVar("W", default=int)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")
    M = TypeVar("M")
    W = TypeVar("W")
