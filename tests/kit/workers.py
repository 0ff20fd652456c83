"""Workers in threads, and an observer that a test can wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cq
from cq.observers.worker.worker import Worker

SECONDS = 60.0
"""How long tests wait for events that must happen."""


class Told:
    """An observer that lets a test wait until a value has been reported."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.changed = threading.Condition()

    def __call__(self, tr: Any, changes: list[cq.Change]) -> None:
        with self.changed:
            self.values.update((change.key, change.new) for change in changes)
            self.changed.notify_all()

    def wait_for(self, **values: Any) -> None:
        with self.changed:
            found = self.changed.wait_for(lambda: values.items() <= self.values.items(), SECONDS)
        assert found, f"expected {values}, got: {self.values}"


def told_app(name: str) -> tuple[Told, cq.App]:
    told, app = Told(), cq.App()
    app.queue(name, observers=[cq.Observer("told", 1, told)])
    return told, app


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """The worker in a thread, stopped in the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert failures == []
