"""What a worker runs: tasks, each with a notification that says when it has work."""

from __future__ import annotations

from abc import ABC, abstractmethod

from cq.observers.scheduling.members import Share
from cq.store.watch_slot import WatchSlot


class Task(ABC):
    """One piece of the work: a bucket to combine, to export, a cloud to publish.

    Attributes:
        notification: the key that is present when there is work; None for a task that goes by time.
        siblings: what the notifications of all such tasks of the queue begin with, and no other key; None for a task
            that is the only one.
        sign: a key whose value changes with every step that gets on; None for a task that is not looked after so.
        delay: for a task that goes by time: after how many seconds it first runs.
        gather: for how many seconds work may come together between two steps, while the worker has much to do.
        age: for how many seconds the oldest work that the latest step has left had waited, about.
        width: how many of the queue's tasks of this kind the worker runs at once; None for as many as it can.
        problem: the latest error while it fails, else empty.
    """

    notification: bytes | None = None
    siblings: bytes | None = None
    sign: bytes | None = None
    delay: float = 0.0
    gather: float = 0.0
    age: float = 0.0
    width: int | None = None
    problem: str = ""

    @abstractmethod
    def run(self) -> float:
        """One step, in transactions of its own.

        Returns after how many seconds to run again: 0 for at once, `DONE` when the notification is to be waited for.
        It is removed by `compare_and_clear` with the value read, so that no news get lost.
        """

    def enter(self) -> None:  # noqa: B027 - most need nothing
        """The worker takes it up."""

    def leave(self) -> None:  # noqa: B027 - most steps are short
        """The worker is about to leave it: a step under way is to end soon. From any thread."""

    def end(self) -> None:  # noqa: B027 - most hold nothing
        """The worker has left it; nothing may be waited for long. It may be taken up again."""


class Job:
    """A task and how it waits: for its notification, or after failures.

    Attributes:
        share: what it is called where tasks are shared out.
        weight: of its queue, see `Fair`.
        owned: whether it is this worker's.
        is_guest: whether this worker runs it, until it is done, though it is another one's, which does not get on.
        is_fresh: whether it has not run since it was taken up.
        failures: in a row.
        given_up: the error for which a drain runs it no more.
        rests_until: when it is woken before, it waits until then, see `Gathering`.
    """

    def __init__(self, task: Task, share: Share, weight: float = 1.0) -> None:
        self.task = task
        self.share = share
        self.weight = weight
        self.watch = WatchSlot()
        self.failures = 0
        self.given_up: BaseException | None = None
        self.rests_until = 0.0
        self.owned = False
        self.is_guest = False
        self.is_fresh = False

    def __str__(self) -> str:
        return str(self.task)

    def own(self) -> None:
        """It is this worker's now. Failures of an earlier time do not count: another worker may have recovered it."""
        self.task.enter()
        self.failures = 0
        self.owned = self.is_fresh = True

    @property
    def is_bucket(self) -> bool:
        """Whether it is of a bucket to combine."""
        return self.share.kind == "combine"

    def visit(self) -> None:
        """Run it until it is done, though it is another worker's."""
        self.task.enter()
        self.is_guest = True

    def disown(self) -> None:
        """Run it no more, and stop soon if it is running."""
        self.owned = self.is_guest = False
        self.watch.cancel()
        self.task.leave()
