"""Sizes of the transactions that are committed through a database, and queues with large keys for tests of these."""

from __future__ import annotations

from typing import Any, Final

from cq.bucket.pass_runner import PassRunner
from cq.passes.plan import Limits
from tests.kit.faults import WrappedDatabase, WrappedTransaction
from tests.kit.queues import add, code_of

MOST: Final = 1_000_000
"""Bytes of a transaction on a cluster, where the caller has not asked for more."""


class Sized(WrappedDatabase):
    """A database that notes the size of each transaction that is committed through it, or refused."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.sizes: list[int] = []

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "commit":
            self.sizes.append(tr.inner.get_approximate_size().wait())
        return super().call(tr, what, *args, **kwargs)


def words(size: int, number: int) -> list[str]:
    return [f"{each:0{size}}" for each in range(number)]


def fill(db: Any, name: str, size: int, number: int, update: Any = 1) -> None:
    keys, step = words(size, number), max(1, 200_000 // size)
    add(db, name, *(dict.fromkeys(keys[start : start + step], update) for start in range(0, number, step)))


def drained(db: Any, name: str, limits: Limits | None = None) -> list[int]:
    """The sizes of the transactions of passes until nothing is left to do."""
    sized = Sized(db)
    bucket = PassRunner(sized, code_of(db, name), 0, limits=limits)
    for _ in range(2_000):
        if not bucket.combine().more:
            return sized.sizes
    raise AssertionError("nothing comes to an end")
