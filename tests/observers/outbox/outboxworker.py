"""A process that moves the rows of an outbox until it is killed, and may kill itself: `STORE QUEUE SEED CHANCE`."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import cq
from cq.observers.links.registry import outbox_tasks


def main(store: str, queue: str, seed: str, chance: str) -> None:
    """Run the task again and again; at each point of it, die with this chance."""
    db: Any = cq.open(store)
    draw = random.Random(seed)
    task: Any = outbox_tasks(db, queue)[0]

    def at(point: str) -> None:
        if draw.random() < float(chance):
            os.kill(os.getpid(), signal.SIGKILL)

    task.signal = at
    os.write(1, b"ready\n")
    while True:
        task.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
