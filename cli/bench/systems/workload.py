"""The updates of a benchmark: transactions of words, drawn by Zipf's law before the measurement."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final

from cq.cli.bench.systems.system import CannotMeasure

POOL_UPDATES: Final = 100_000
"""Approximate number of updates in the pool that a process adds repeatedly."""
POOL_LEAST: Final = 50
"""Minimum number of transactions in that pool."""
_MAX_DRAWS: Final = 100
KINDS: Final = {"int": int, "decimal": Decimal}
"""{value kind: the type of an update}."""


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """The updates of a benchmark.

    Args:
        per_transaction: number of keys that each transaction updates. They are different keys: an application adds up
            its updates of a key, and an upsert requires it.
        keys: number of different words.
        skew: the exponent `s` of Zipf's law: the word of rank `r` is drawn with a weight of 1 / r^s; 0: all alike.
        kind: type of the values, one of `KINDS`.
        repeats: whether the keys of a transaction may be equal; the update of a key is their number.
    """

    per_transaction: int = 100
    keys: int = 100_000
    skew: float = 1.0
    kind: str = "int"
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
        count = max(POOL_LEAST, updates // self.per_transaction)
        if self.repeats:
            ranks = [
                source.choices(range(self.keys), cum_weights=weights, k=self.per_transaction)
                for _ in range(count)
            ]
            return [dict(sorted(Counter(map(word, each)).items())) for each in ranks]
        return [self.transaction(self._ranks(source, weights)) for _ in range(count)]

    def transaction(self, ranks: Iterable[int]) -> dict[str, Any]:
        """The transaction that updates the keys of these ranks."""
        return dict.fromkeys(sorted(map(word, ranks)), KINDS[self.kind](1))

    def _ranks(self, source: random.Random, weights: array[float] | None) -> set[int]:
        """The ranks of one transaction: `per_transaction` different ones."""
        ranks: set[int] = set()
        wanted = self.per_transaction
        for _ in range(_MAX_DRAWS):  # a skewed draw repeats frequent words, and the next draw fills up
            ranks.update(source.choices(range(self.keys), cum_weights=weights, k=wanted - len(ranks)))
            if len(ranks) == wanted:
                return ranks
        raise CannotMeasure(
            f"cannot draw {wanted:,} different keys of {self.keys:,} with a skew of {self.skew:g}: "
            "use more keys, less skew, or fewer updates per transaction"
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
