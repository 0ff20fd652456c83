"""The workers of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

import cq
from cq import machine
from cq.observers.worker import Worker


@dataclass(frozen=True)
class WorkerRole:
    """A worker on a store, for these queues, or all.

    Attributes:
        url: of the store.
        queues: their names; none for all.
    """

    url: str | None
    queues: Sequence[str] = ()

    def run(self, stop: Event) -> None:
        """Work until told to stop."""
        worker = Worker(cq.open(self.url), queues=self.queues)

        def end() -> None:
            stop.wait()
            worker.stop()

        machine.start_thread(end, "stop")
        worker.run()
