"""Tasks, the units of a worker's work, and jobs: a worker's record of each task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from cq import runtime
from cq.observers.scheduling.fair_queue import Lane
from cq.observers.scheduling.members import COMBINE, TaskId
from cq.store.api import TransactionRead
from cq.store.watch import WatchSlot

_PAUSE_SHARE: Final = 0.5
_LONGEST_PAUSE: Final = 0.004


def pause_after(seconds: float) -> float:
    """Return the pause in seconds after a step that took `seconds`, has found work and left none.

    Each step has a fixed cost, mainly its transaction: short steps that follow at once find little work each, so they
    pause for a share of their time. In a long step that cost is small, and a longer pause would only delay the work:
    with half of a step's time, up to 0.1 s, updates took 1.5 to 2 times as long at half and at a quarter of full speed.
    Tasks for whose results callers wait do not pause: answers of a decider took 1.1 to 1.5 times as long with pauses.
    """
    return min(_PAUSE_SHARE * seconds, _LONGEST_PAUSE)


class SourceBacklog(NamedTuple):
    """Rows that a task found in a source outside of the store: a part of the worker's row, for operators.

    Attributes:
        rows: the rows that it read.
        has_more: whether the source had further rows.
        oldest_at: when the oldest of them was inserted, by the source's clock, in seconds since 1970; None: no rows.
    """

    rows: int
    has_more: bool
    oldest_at: float | None


class Task(ABC):
    """A repeated unit of work, for example to combine or export a bucket, or to publish a cloud.

    Attributes:
        notification: the key that is present while there is work; None for a task that runs by time.
        notification_prefix: common prefix of the notifications of all tasks of this kind of the queue, and of no other
            key; None for the only task of its kind.
        progress_key: key whose value changes with each completed step, so that other workers can detect a stalled task;
            None: not monitored.
        delay: for a task that runs by time: seconds until its first run.
        waited_seconds: about how long the oldest work that the latest step left had waited.
        max_parallel: how many of the queue's tasks of this kind the worker runs at once; None: no limit.
        is_awaited: whether callers wait for what its steps do, so that the next one follows at once.
        is_outside: whether a step waits for another system: such steps hold no more than half of a worker's threads.
        leaves_room: whether other tasks of the queue that wait for other systems need a thread, see `Lane`.
        calls_application: whether a step calls code of the application, which may hang.
        problem: the latest error while the task fails, or the reason while it waits by design, else empty.
        is_waiting: whether no worker can do anything about the problem: an operator must make a decision, or a full
            queue needs room. Then the worker does not release the task to others, and does not report it as stuck.
        backlog: the rows that it found latest in its source; None: it has none, or has not read it yet.
    """

    notification: bytes | None = None
    notification_prefix: bytes | None = None
    progress_key: bytes | None = None
    delay: float = 0.0
    waited_seconds: float = 0.0
    max_parallel: int | None = None
    is_awaited: bool = False
    is_outside: bool = False
    leaves_room: bool = False
    calls_application: bool = False
    problem: str = ""
    is_waiting: bool = False
    backlog: SourceBacklog | None = None

    @property
    def kind(self) -> Hashable:
        """The kind of tasks that `max_parallel` and `leaves_room` are about."""
        return type(self)

    @property
    def is_failing(self) -> bool:
        """Whether the latest call of the other system has failed, by whichever task of the kind."""
        return False

    @abstractmethod
    def run(self) -> float:
        """Run one step, in its own transactions.

        Returns the seconds until the next run: 0 for at once, `DONE` to wait for the notification, and `CAUGHT_UP` if
        the step has found work and left none. A worker repeats such a step after a pause, see `pause_after`, and waits
        for the notification only after a step without work: under load, most watches set at once would fire at once.
        A step that leaves no work removes the notification by `compare_and_clear` with the value read, so that a
        notification written by a concurrent transaction stays.
        """

    def waits(self, tr: TransactionRead) -> bool:
        """Whether the task's work waits by design, as the store says, so that no progress is no fault of its worker."""
        return False

    def enter(self, worker: bytes) -> None:  # noqa: B027 - most need nothing
        """Prepare for steps: the worker with this id has acquired the task; the id is empty for a drain."""

    def leave(self) -> None:  # noqa: B027 - most steps are short
        """End a running step soon: the worker is about to release the task. From any thread."""

    def end(self) -> None:  # noqa: B027 - most hold nothing
        """Free resources, without long waits: the worker has released the task. It may acquire the task again."""


class WorkPart(NamedTuple):
    """A part of a worker's work: tasks of one kind for one queue or feed, which are made and replaced together.

    Attributes:
        first: the id of its first task; the others have the following numbers.
        version: what the tasks are made from: they stay as long as it is equal.
        make: makes the tasks; none if this process lacks something for them, so that other workers may do them.
    """

    first: TaskId
    version: object
    make: Callable[[], Sequence[Task]]

    @classmethod
    def single(cls, task_id: TaskId, version: object, make: Callable[[], Task]) -> WorkPart:
        """A part of one task."""
        return cls(task_id, version, lambda: [make()])

    def jobs(self) -> list[Job]:
        """New jobs for its tasks."""
        kind, queue, number = self.first
        return [Job(task, TaskId(kind, queue, at)) for at, task in enumerate(self.make(), number)]


class Job:
    """A task with its scheduling state in one worker.

    Attributes:
        task_id: identifies the task among all workers.
        weight: of its queue, see `FairQueue`.
        owned: whether the task belongs to this worker.
        is_borrowed: whether this worker runs the task until it is done, as the worker that owns it has stalled.
        is_fresh: whether the task has not run since it was acquired.
        begun: start of the latest step, in seconds of `runtime.monotonic`.
        failures: consecutive failures.
        given_up: the error after which a drain no longer runs the task.
    """

    def __init__(self, task: Task, task_id: TaskId, weight: float = 1.0) -> None:
        self.task = task
        self.task_id = task_id
        self.weight = weight
        self.watch = WatchSlot()
        self.begun = 0.0
        self.failures = 0
        self.given_up: BaseException | None = None
        self.owned = False
        self.is_borrowed = False
        self.is_fresh = False

    def __str__(self) -> str:
        return str(self.task)

    def run(self) -> float:
        """Run a step of the task; returns and raises as `Task.run`."""
        self.begun = runtime.monotonic()
        return self.task.run()

    def acquire(self, worker: bytes = b"") -> None:
        """Make it a job that the worker with this id owns."""
        self.task.enter(worker)
        self.failures = 0  # earlier failures do not count: another worker may have recovered the task since
        self.owned = self.is_fresh = True

    @property
    def lane(self) -> Lane:
        """Its place in the worker's order of tasks."""
        task = self.task
        return Lane(
            self.task_id.queue,
            self.weight,
            task.kind,
            task.max_parallel,
            task.is_outside,
            task.leaves_room,
            task.is_failing,
            task.calls_application,
        )

    @property
    def is_bucket(self) -> bool:
        """Whether the task combines a bucket."""
        return self.task_id.kind == COMBINE

    def borrow(self, worker: bytes) -> None:
        """Run it in the worker with this id until it is done, although another worker owns it."""
        self.task.enter(worker)
        self.is_borrowed = True

    def release(self) -> None:
        """Stop running it; a step under way ends soon."""
        self.owned = self.is_borrowed = False
        self.watch.cancel()
        self.task.leave()
