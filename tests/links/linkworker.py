"""A process that sends the links of a queue: `STORE QUEUE POINT`, or `STORE QUEUE "" SEED CHANCE`.

With a point it ends when everything is sent, or kills itself there. Else it runs until it is killed, and kills itself
with this chance at each point.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import cq
from cq.config.queue import read_config
from cq.links import Target
from cq.observers.builtin import observer_parts
from cq.observers.links.task import LinkTask
from cq.store.transact import transact


def main(store: str, queue: str, point: str, seed: str = "0", chance: str = "0") -> None:
    """Run the tasks of all links of the queue."""
    db: Any = cq.open(store)
    draw = random.Random(seed)
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))

    def at(reached: str) -> None:
        if reached == point or draw.random() < float(chance):
            os.kill(os.getpid(), signal.SIGKILL)

    Target.signal = staticmethod(at)
    LinkTask.signal = staticmethod(at)
    Target.batch_entries = draw.choice([1, 3, 50])
    tasks = [task for part in observer_parts(db, config) for task in part.make()]
    os.write(1, b"ready\n")
    if point:
        run_to_end(tasks)
    while not point:
        for task in draw.sample(tasks, len(tasks)):
            task.run()
        time.sleep(0.005)


def run_to_end(tasks: list[Any]) -> None:
    """Run the tasks until they have nothing to do: keepers once, then the buckets, then keepers again."""
    keepers = [task for task in tasks if not isinstance(task, LinkTask)]
    for task in keepers:
        task.run()
    for task in [*(task for task in tasks if task not in keepers), *keepers]:
        while (pause := task.run()) >= 0.0:
            if pause:
                sys.exit(task.problem)


if __name__ == "__main__":
    main(*sys.argv[1:])
