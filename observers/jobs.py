"""What a worker runs: tasks, each with a notification that says when it has work."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from cq.observers.watchslot import WatchSlot
from cq.results import PassResult


class Task(Protocol):
    """One piece of the work: a bucket to combine, to export, a cloud to publish."""

    @property
    def notification(self) -> bytes | None:
        """The key that is present when there is work; None for a task that goes by time."""
        ...

    def run(self) -> float:
        """One step, in transactions of its own.

        Returns after how many seconds to run again: 0 for at once, `DONE` when the notification is to be waited for.
        It is removed by `compare_and_clear` with the value read, so that no news get lost.
        """
        ...

    def end(self) -> None:
        """The worker leaves it; nothing may be waited for long."""
        ...


class Job:
    """A task and how it waits: for its notification, or after failures."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.watch = WatchSlot()
        self.failures = 0
        self.retired = False

    def __str__(self) -> str:
        return str(self.task)

    def retire(self) -> None:
        """Run it no more."""
        self.retired = True
        self.watch.cancel()


@dataclass(slots=True)
class Totals:
    """What a worker has done since it was made: passes committed, rows taken, keys reported, folded, set aside."""

    passes: int = 0
    rows: int = 0
    reported: int = 0
    folded: int = 0
    aside: int = 0

    def count(self, result: PassResult) -> None:
        """Add what one pass has done."""
        with _counting:
            self.passes += 1
            self.rows += result.rows
            self.reported += result.reported
            self.folded += result.folded
            self.aside += len(result.aside)


_counting = Lock()
