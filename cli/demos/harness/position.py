"""Positions of roles in their work."""

from __future__ import annotations

from dataclasses import dataclass

from cq.store.api import Transaction, TransactionRead


@dataclass(frozen=True)
class Position:
    """The number of finished steps of a role, under a key of the demo.

    The transaction that does a step also writes the position. So a restarted process continues there, and a step whose
    commit has lost its answer is not done twice.
    """

    key: bytes

    def read(self, tr: TransactionRead) -> int:
        """The number of finished steps."""
        return int(tr.get(self.key).value or 0)

    def write(self, tr: Transaction, done: int) -> None:
        """Store the number of finished steps."""
        tr.set(self.key, b"%d" % done)
