"""Transfers between accounts, which processes and threads make at once."""

from __future__ import annotations

import random

from cq.store.embedded import Database, Transaction


def number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little")


def transfer(db: Database, accounts: int, seed: int, rounds: int) -> None:
    """Move money about: the total never changes, and no account falls below 0."""
    rng = random.Random(seed)
    for _ in range(rounds):
        source, target = rng.sample(range(accounts), 2)

        def run(tr: Transaction, source: int = source, target: int = target) -> None:
            have = number(tr.get(b"account%d" % source).value)
            amount = rng.randint(0, have)
            tr.set(b"account%d" % source, (have - amount).to_bytes(8, "little"))
            tr.add(b"account%d" % target, amount.to_bytes(8, "little"))
            total = sum(number(row.value) for row in tr.get_range(b"account", b"account\xff"))
            assert total == 100 * accounts

        db.transact(run)
