"""Measured systems, cq and every system that it is compared with: their interface, their errors, and their updates.

Updates are transactions of words, drawn by Zipf's law before the measurement.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Final

from cq.cli.shared.exit_status import FoundDifference
from cq.errors import CqError

Add = Callable[[Mapping[str, Any]], object]
"""Adds updates in one transaction, which is durable on return. Each thread has its own function."""
Drain = Callable[[], object]
"""Combines all updates that were added before the call."""


class CannotMeasure(CqError, ValueError):
    """A benchmark cannot be run as requested; the message says what to do."""


class Unavailable(CannotMeasure, LookupError):
    """A system cannot be measured, because a driver or a server is missing."""


class WrongSum(FoundDifference):
    """A system has lost updates, or counted some twice: its figures are invalid."""


class System(ABC):
    """A way of counting. Keys are words, updates are numbers to add to their counts.

    A system is a plain description. It is pickled to the processes of the benchmark, and opens its resources there.

    Attributes:
        name: name in the report.
        store: kind of the store of the counts.
    """

    name: str
    store: str

    @property
    def defers(self) -> bool:
        """Whether added updates are combined later; otherwise counts are current after adding."""
        return False

    @property
    def precision(self) -> float:
        """The largest relative error of `sums`; 0: they are exact."""
        return 0.0

    def prepare(self) -> None:
        """Create the system without counts."""
        self.remove()

    @abstractmethod
    def adder(self, stack: ExitStack) -> Add:
        """A new adder, whose resources `stack` closes."""

    def drainer(self, stack: ExitStack, place: int) -> Drain:
        """Drainer number `place`; only for a system that defers."""
        raise NotImplementedError

    @abstractmethod
    def sums(self) -> Mapping[str, Any]:
        """{place that has counts of all updates: their sum there}."""

    def settle(self) -> None:  # noqa: B027 - most systems need no maintenance
        """Do maintenance between two measurements: it must not run during the next one."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the system and all its counts."""


OWN: Final = "cq"
"""The name of a queue among the systems."""
POOL_UPDATES: Final = 100_000
"""Approximate number of updates in the pool that a process adds repeatedly."""
POOL_LEAST: Final = 50
"""Minimum number of transactions in that pool."""
_MAX_DRAWS: Final = 100


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """The updates of a benchmark.

    Args:
        per_transaction: number of keys that each transaction updates. They are different keys: an application adds up
            its updates of a key, and an upsert requires it.
        keys: number of different words.
        skew: the exponent `s` of Zipf's law: the word of rank `r` is drawn with a weight of 1 / r^s; 0: all alike.
        repeats: whether the keys of a transaction may be equal; the update of a key is their number.
    """

    per_transaction: int = 100
    keys: int = 100_000
    skew: float = 1.0
    repeats: bool = False

    def draw(self, seed: int, updates: int = POOL_UPDATES) -> list[dict[str, Any]]:
        """The pool of one process: transactions {key: 1}, ordered by key, which is the order to acquire locks in.

        The same seed gives the same pool. Raises `CannotMeasure` if there are too few keys, or too much skew, to draw
        enough different keys in a reasonable time.
        """
        source = random.Random(seed)  # noqa: S311 - no secret
        weights = None
        if self.skew:
            # An array: 8 bytes for each of up to millions of words.
            weights = array("d", accumulate((rank + 1) ** -self.skew for rank in range(self.keys)))
        size = self.per_transaction
        drawn = source.choices(
            range(self.keys), cum_weights=weights, k=size * max(POOL_LEAST, updates // size)
        )
        pieces = (drawn[start : start + size] for start in range(0, len(drawn), size))
        if self.repeats:
            return [dict(Counter(sorted(map(word, each)))) for each in pieces]
        return [self.transaction(self._different(set(each), source, weights)) for each in pieces]

    def transaction(self, ranks: Iterable[int]) -> dict[str, Any]:
        """The transaction that updates the keys of these ranks."""
        return dict.fromkeys(sorted(map(word, ranks)), 1)

    def _different(self, ranks: set[int], source: random.Random, weights: array[float] | None) -> set[int]:
        """These ranks, and others until there are `per_transaction` different ones."""
        wanted = self.per_transaction
        for _ in range(_MAX_DRAWS):  # a skewed draw repeats frequent words, and the next draw fills up
            if len(ranks) == wanted:
                return ranks
            ranks.update(source.choices(range(self.keys), cum_weights=weights, k=wanted - len(ranks)))
        raise CannotMeasure(
            f"cannot draw {wanted:,} different keys of {self.keys:,} with a skew of {self.skew:g}: "
            "use more keys, or fewer updates per transaction"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a measurement.

    Args:
        adders: number of processes that add.
        threads: threads of each adder, each with one transaction at a time.
        workers: number of processes that combine.
        seconds: duration of adding in each repetition; the added updates are then drained.
        warm_up: seconds of an unmeasured repetition before the others: it creates the keys and runs all code once.
        repetitions: number of measured repetitions.
    """

    adders: int
    threads: int
    workers: int
    seconds: float
    warm_up: float
    repetitions: int


def word(rank: int) -> str:
    """The key of a rank: a hash, as frequent words of a text are not neighbours in the order of keys."""
    return f"{(rank * 2_654_435_761) & 0xFFFFFFFF:08x}"


def with_visitors(updates: Mapping[str, Any]) -> dict[str, int]:
    """A new visitor for each update of a transaction: {key: random id of 63 bits}.

    No visitor is drawn twice in practice, so the number of distinct visitors of a key is the number of its updates.
    """
    return {key: random.getrandbits(63) for key in updates}


STOCK: Final = 1 << 40
"""The pieces in a stock at the begin: more than a benchmark takes."""


def requests(updates: Mapping[str, int]) -> Iterator[str]:
    """The keys of the requests for one piece each, in order: so transactions in PostgreSQL never deadlock."""
    for key, number in updates.items():
        yield from repeat(key, number)
