"""The simulation's faults between real threads and a real store: an embedded one, or a cluster."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

import cq
from cq.observers.worker.worker import Worker
from cq.store.api import error_code
from cq.store.transact import transact
from cq.testing import assert_values, drain
from tests.busy import in_threads
from tests.simulation.store import Faults, SimDatabase, Surroundings


def later(seconds: float, call: Callable[[], object]) -> None:
    raise AssertionError("only simulated watches are told of things later")


@pytest.mark.parametrize("seed", range(3))
def test_every_update_counts_once_whatever_fails(db: Any, name: str, seed: int) -> None:
    faults = Faults(read_error=0.03, conflict=0.2, unknown=0.2, latency=1e-5)
    committed: list[int] = []

    def client(number: int) -> SimDatabase:
        around = Surroundings(
            Random(seed * 100 + number),
            time.sleep,
            later,
            later,
            committed=lambda tr, version: committed.append(version),
        )
        return SimDatabase(db, faults, around)

    def adder(number: int) -> None:
        rng, faulty, queue = Random(seed * 100 + number), client(number), cq.CombineQueue(name)
        for step in range(40):
            update = {f"k{rng.randrange(5)}": 1}
            added.append(next(iter(update)))
            while True:
                try:
                    transact(faulty, lambda tr: queue.add(tr, update, once=f"{number}/{step}"))  # noqa: B023
                    break
                except Exception as error:
                    if error_code(error) is None:
                        raise

    added: list[str] = []
    cq.configure(db, name, buckets=4)
    workers = [Worker(client(10 + number), None, [name], beat_seconds=0.1) for number in range(2)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    in_threads(*(partial(adder, number) for number in range(3)))
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join()
    drain(db, name)
    assert_values(db, name, Counter(added))
    assert len(committed) > 100
