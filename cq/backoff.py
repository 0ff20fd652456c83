"""The delay before the next try, after failures in a row: one rule for all retries of cq outside of transactions.

The delay doubles with each failure, from `first` seconds to at most `longest`. A random part of it, up to one half, is
left out, so that processes that failed together do not retry together. Within transactions, the store's own retry
delays apply.

The random part comes from Python's module `random`, which a simulation seeds. A retrying object, such as one of
tenacity, would not fit: it calls a function and sleeps in its thread, while tasks of a scheduler, loops of asyncio and
waits for watches need the number of seconds.
"""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 10.0
_MAX_DOUBLINGS: Final = 60  # more are beyond any limit, and in the end no float


def delay_after(failures: int, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> float:
    """The seconds to wait after this many failures in a row, from 1.

    Args:
        failures: their number.
        first: the longest delay after the first failure; another one only if retries usually succeed sooner.
        longest: the longest delay of all; a shorter one if a caller waits, a longer one if each failure is expensive.
    """
    delay = min(first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), longest)
    return random.uniform(delay / 2, delay)  # noqa: S311 - no secret
