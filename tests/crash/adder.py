"""A process that adds, asks for a decision and sends a message, from one number to another: `STORE NAME SEED N N`.

Each transaction has an operation id. It prints a line for each addition that is committed, several together. When it
has died it is to be started again with the first that it has not told of: that and some others may be committed, and
get the same ids again.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from typing import Any, Final

import cq
from cq.feeds import Feed

WORDS, VIEWS, STOCK, CHAT = "words", "views", "stock", "chat"
_KEYS: Final = 30
TOLD_TOGETHER: Final = 5


def main(store: str, name: str, seed: str, begin: str, end: str) -> None:
    """Add what follows from the seed."""
    db: Any = cq.open(store)
    untold = 0
    for number in range(int(begin), int(end)):
        words, views = updates(int(seed), name, number)

        def add(tr: Any) -> None:
            once = f"{name}/{number}"  # noqa: B023 - runs at once
            cq.CombineQueue(WORDS).add(tr, words, once=once)  # noqa: B023
            cq.CombineQueue(VIEWS).add(tr, views, once=once)  # noqa: B023
            ask(tr, int(seed), name, number)  # noqa: B023
            Feed[str](CHAT).append_to_group(tr, "all", once)

        cq.transact(db, add)
        untold += 1
        if untold == TOLD_TOGETHER or number + 1 == int(end):
            os.write(1, b"added\n" * untold)
            untold = 0


def updates(seed: int, name: str, number: int) -> tuple[Counter[str], dict[int, int]]:
    """What one transaction adds to either queue; a few keys get most of it."""
    draw = random.Random(f"{seed}/{name}/{number}")
    keys = [min(draw.randrange(_KEYS), draw.randrange(_KEYS)) for _ in range(draw.randint(1, 8))]
    return Counter(f"word {key}" for key in keys), {key: draw.choice([1, 2, -1]) for key in keys}


def ask(tr: Any, seed: int, name: str, number: int) -> tuple[int, str]:
    """Ask for a piece of a stock, or return one; returns the key and the ticket."""
    draw = random.Random(f"stock {seed}/{name}/{number}")
    key, amount = draw.randrange(3), draw.choice([-3, -1, -1, 2])
    queue: cq.CombineQueue[int, int] = cq.CombineQueue(STOCK)
    return key, queue.ask(tr, key, amount, once=f"{name}/{number}")


if __name__ == "__main__":
    main(*sys.argv[1:])
