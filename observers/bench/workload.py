"""What is added: transactions of words, drawn by Zipf's law before anything is timed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final

from cq.observers.bench.errors import CannotMeasure

POOL_UPDATES: Final = 100_000
POOL_LEAST: Final = 50
"""Each process adds from a pool of about so many updates, in so many transactions at least, again and again."""
_MOST_DRAWS: Final = 100
KINDS: Final = {"int": int, "decimal": Decimal}
"""{value kind: the type of an update}."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The updates of a benchmark.

    Args:
        per_transaction: how many keys each transaction updates. They are different ones, as an application adds up what
            it has for a key, and an upsert has to.
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

    def draw(self, seed: int, updates: int = POOL_UPDATES) -> list[dict[str, Any]]:
        """The pool of one process: transactions, each of {key: 1} in the order of the keys, as locks are to be taken.

        Every system that is given the same seed gets the same. Raises `CannotMeasure` when the keys are so few, or so
        skewed, that it takes too long to draw as many different ones.
        """
        source = random.Random(seed)  # noqa: S311 - no secret
        weights = None
        if self.skew:
            weights = array("d", accumulate((rank + 1) ** -self.skew for rank in range(self.keys)))
        count = max(POOL_LEAST, updates // self.per_transaction)
        return [self.transaction(self._ranks(source, weights)) for _ in range(count)]

    def transaction(self, ranks: Iterable[int]) -> dict[str, Any]:
        """The transaction that updates the keys of these ranks."""
        return dict.fromkeys(sorted(map(word, ranks)), KINDS[self.kind](1))

    def _ranks(self, source: random.Random, weights: array[float] | None) -> set[int]:
        """As many different ranks as a transaction takes."""
        ranks: set[int] = set()
        wanted = self.per_transaction
        for _ in range(_MOST_DRAWS):
            ranks.update(source.choices(range(self.keys), cum_weights=weights, k=wanted - len(ranks)))
            if len(ranks) == wanted:
                return ranks
        raise CannotMeasure(
            f"{wanted:,} different keys are seldom drawn of {self.keys:,} with a skew of {self.skew:g}: "
            "take more keys, less skew, or less in a transaction"
        )


def word(rank: int) -> str:
    """The key of a rank: words that sort in the order of their ranks would lie side by side, as no text's do."""
    return f"{(rank * 2_654_435_761) & 0xFFFFFFFF:08x}"
