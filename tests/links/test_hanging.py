"""Targets that hang, each for ever, delay no other link."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import cq
from cq import links
from cq.links import Changes, LinkFailed
from cq.observers.worker.worker import Worker
from tests.kit.processes import wait_until
from tests.kit.queues import add
from tests.kit.workers import SECONDS, running
from tests.links.linkhelpers import FunctionTarget

HANGING: Final = ("one", "two", "three")
KEYS: Final = dict.fromkeys(map(str, range(100)), 1)
"""Keys of all buckets of a link."""


def application(functions: Mapping[str, Callable[[Changes], object]]) -> cq.App:
    app = cq.App()

    def declare(name: str, function: Callable[[Changes], object]) -> None:
        app.target(name)(lambda source: FunctionTarget(function))

    for name, function in functions.items():
        declare(name, function)
    return app


class Hanging:
    """A target whose first call fails, and whose later ones do not return until the test ends."""

    def __init__(self, end: threading.Event) -> None:
        self._end = end
        self.calls = 0

    def __call__(self, changes: Changes) -> None:
        self.calls += 1
        if self.calls > 1:
            self._end.wait(SECONDS)
        raise LinkFailed("it does not answer")


class Receiving:
    """A target that lets a test wait for entries."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)

    def __call__(self, changes: Changes) -> None:
        self._arrived.release(len(changes))

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self._arrived.acquire(timeout=SECONDS), "it waits for those that hang"


def test_targets_that_hang_delay_neither_other_links_nor_other_queues(db: Any, name: str) -> None:
    end, good, others = threading.Event(), Receiving(), Receiving()
    hanging = {each: Hanging(end) for each in HANGING}
    app = application({**hanging, "good": good, "others": others})
    other = f"{name}-other"
    cq.configure(db, name, links=[links.app(each) for each in (*HANGING, "good")])
    cq.configure(db, other, links=[links.app("others")])
    add(db, name, KEYS)

    with running(Worker(db, app, queues=[name, other])):
        try:
            good.wait_for(len(KEYS))
            wait_until(lambda: sum(each.calls > 1 for each in hanging.values()) >= 2)  # these never return
            for queue, target in ((name, good), (other, others)):
                add(db, queue, KEYS)
                target.wait_for(len(KEYS))
        finally:
            end.set()
