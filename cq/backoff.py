"""The delay before the next try, after failures in a row: one rule for all retries of cq outside of transactions.

The delay doubles with each failure, from `first` seconds to at most `longest`. A random part of it, up to one half, is
left out, so that processes that failed together do not retry together. Within transactions, the store's own retry
delays apply.

The random part comes from Python's module `random`, which a simulation seeds. Only the wait strategies of tenacity are
used: what cq tries again are tasks of a scheduler, loops of asyncio and waits for watches, which need the number of
seconds. A retrying object of tenacity would call a function and sleep in its thread.
"""

from __future__ import annotations

from typing import Final

from tenacity import RetryCallState, Retrying, wait_exponential, wait_random_exponential

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 10.0


def delay_after(failures: int, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> float:
    """The seconds to wait after this many failures in a row, from 1.

    Args:
        failures: their number.
        first: the longest delay after the first failure; another one only if retries usually succeed sooner.
        longest: the longest delay of all; a shorter one if a caller waits, a longer one if each failure is expensive.
    """
    fixed = wait_exponential(multiplier=first / 2, max=longest / 2)
    wait = fixed + wait_random_exponential(multiplier=first / 2, max=longest / 2)
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = failures
    return float(wait(state))
