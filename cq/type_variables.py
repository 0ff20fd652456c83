"""Type variables of the generic classes: the types of a queue's keys and values, of a feed's messages, of totals.

They have a default, so that `CombineQueue` without parameters is `CombineQueue[Any, Any]` and needs no annotation.
"""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

Key = str | int | bytes | tuple[str | int | bytes, ...]
"""A key of a queue: str, int or bytes, or a tuple of them."""

K = TypeVar("K", bound=Key, default=Any)
V = TypeVar("V", default=Any)
M = TypeVar("M", default=Any)
W = TypeVar("W", default=int)
