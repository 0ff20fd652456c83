"""What is added: transactions of words, drawn by Zipf's law before anything is timed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final, NamedTuple

from cq.observers.bench.errors import CannotMeasure

POOL_UPDATES: Final = 250_000
POOL_LEAST: Final = 50
"""Each process adds from a pool of so many updates, and of so many transactions at least, again and again."""
KINDS: Final = {"int": int, "decimal": Decimal}
"""{value kind: the type of an update}."""


class Prepared(NamedTuple):
    """A transaction to add.

    Attributes:
        updates: {key: sum of its updates}, in the order of the keys, in which locks do not deadlock.
        size: how many updates these are, each of 1.
    """

    updates: dict[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The updates of a benchmark.

    Args:
        per_transaction: words drawn for each transaction. As an application does, and as an upsert must, a transaction
            adds up those of one key: it has fewer keys when it is large.
        keys: how many different words there are.
        skew: the exponent `s` of Zipf's law: the word of rank `r` is drawn with a weight of 1 / r^s; 0 for all alike.
        kind: of the values, one of `KINDS`.

    Raises `CannotMeasure` for what makes no sense.
    """

    per_transaction: int = 100
    keys: int = 100_000
    skew: float = 1.0
    kind: str = "int"

    def __post_init__(self) -> None:
        if self.per_transaction < 1 or self.keys < 1 or not 0 <= self.skew <= 10:
            raise CannotMeasure(
                "expected at least 1 update in a transaction, at least 1 key and a skew of 0 to 10, "
                f"got: {self.per_transaction}, {self.keys} and {self.skew}"
            )
        if self.kind not in KINDS:
            raise CannotMeasure(f"expected values of kind {' or '.join(KINDS)}, got: {self.kind!r}")

    def draw(self, seed: int) -> list[Prepared]:
        """The pool of one process; the same for every system that is given the same seed."""
        count = max(POOL_LEAST, POOL_UPDATES // self.per_transaction)
        chosen = self._ranks(random.Random(seed), count * self.per_transaction)  # noqa: S311 - no secret
        number = KINDS[self.kind]
        pool = []
        for start in range(0, len(chosen), self.per_transaction):
            words = Counter(chosen[start : start + self.per_transaction])
            updates = {word: number(times) for word, times in sorted(words.items())}
            pool.append(Prepared(updates, self.per_transaction))
        return pool

    def _ranks(self, source: random.Random, count: int) -> list[str]:
        words = [word(rank) for rank in range(self.keys)]
        if self.skew == 0:
            return source.choices(words, k=count)
        weights = accumulate((rank + 1) ** -self.skew for rank in range(self.keys))
        return source.choices(words, cum_weights=list(weights), k=count)


def word(rank: int) -> str:
    """The key of a rank: words that sort in the order of their ranks would lie side by side, as no text's do."""
    return f"{(rank * 2_654_435_761) & 0xFFFFFFFF:08x}"


def distinct(pool: list[Prepared]) -> float:
    """How many different keys a transaction has, on average."""
    return sum(len(each.updates) for each in pool) / len(pool)
