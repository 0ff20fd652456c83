"""The workload of a worker: jobs for the buckets of each queue that it can work on, and for its observers and feeds."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cq import runtime
from cq.app import App
from cq.bucket.failure_share import FailureShare
from cq.config.queue import MAX_BUCKETS, QueueConfig
from cq.errors import ConfigurationError, CorruptData
from cq.observers.builtin import observer_tasks
from cq.observers.feeds.tasks import ROLE, FeedJobs
from cq.observers.links.registry import outbox_tasks
from cq.observers.links.task import exporter_tasks
from cq.observers.scheduling.members import (
    COMBINE,
    EXPIRY,
    EXPORTER,
    LIMIT,
    LINK,
    MEASURE,
    OUTBOX,
    SETTLE,
    TRIM,
    TaskId,
)
from cq.observers.scheduling.task import Job, Task
from cq.observers.tasks.bucket_caches import BucketCaches
from cq.observers.tasks.combine import combine_tasks
from cq.observers.tasks.findings import FindingsTask
from cq.observers.tasks.measure import MeasureTask
from cq.observers.tasks.timed import (
    ExpiryTask,
    FinishTask,
    LimitTask,
    TimedTask,
    TrimTask,
)
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker.description import describe_work
from cq.observers.worker.queues import QueueCheck, find_queues, notified_buckets
from cq.passes.plan import Limits
from cq.store import store_of
from cq.store.api import Database, Void

log = logging.getLogger("cq.worker")

_MEMORY_BYTES = 64_000_000  # cache of current values, for all queues together


@dataclass(slots=True)
class OpenQueue:
    """A queue in work, as configured when it was opened.

    Attributes:
        found: the check that found it; None for an export queue without a combine queue.
        failures: the share of failing keys, over all of its buckets.
        buckets: {(generation, number): job}.
        others: all other jobs.
        lacking: the parts of its work that this process cannot do, see `TaskId.parts`.
    """

    found: QueueCheck | None
    failures: FailureShare
    buckets: dict[tuple[int, int], Job]
    others: list[Job]
    lacking: set[str] = field(default_factory=set)

    @property
    def jobs(self) -> list[Job]:
        """All jobs of the queue."""
        return [*self.buckets.values(), *self.others]


class Workload:
    """The queues that a worker works on, and their jobs.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners and observers.
        names: of the queues; empty for all, including those configured later.
        roles: see `ROLES`, and `MEASURE`.
        totals: counts of completed work, which passes add to.
        limits: of each pass.

    Attributes:
        roles, combines: the worker's roles, and whether it runs passes.
        exporters: the export queues that the application's exporters are for.
        found: {name: check of the queue}.
        left: {name: error} of the queues that a drain cannot combine, since the latest `load`.
    """

    def __init__(
        self,
        db: Database,
        app: App,
        names: Sequence[str],
        roles: Collection[str],
        totals: WorkerCounts,
        limits: Limits | None,
    ) -> None:
        self.found: dict[str, QueueCheck] = {}
        self.left: dict[str, BaseException] = {}
        self._db, self._app, self._names, self.roles = db, app, names, roles
        self.combines, self.exporters = COMBINE in roles, frozenset(app.exporters)
        self._totals, self._limits = totals, limits
        self._open: dict[str, OpenQueue] = {}
        self._always: dict[TaskId, Job] = {}
        self._feeds = FeedJobs(db, names) if ROLE in roles else None
        self._is_loaded = False
        self._described = ""  # the work, as the last event has described it
        self._idle: set[str] = set()  # queues without a backlog, as last measured
        self._caches = BucketCaches()

    @property
    def jobs(self) -> list[Job]:
        """All jobs of all queues and feeds."""
        queues = (job for queue in self._open.values() for job in queue.jobs)
        return [*queues, *self._always.values(), *self._feed_jobs]

    @property
    def lacking(self) -> frozenset[str]:
        """The queues and roles that this worker leaves alone, see `MemberReport`."""
        queues = {name for name, found in self.found.items() if found.problem}
        return frozenset(queues.union(*(queue.lacking for queue in self._open.values())))

    @property
    def levels(self) -> frozenset[str]:
        """The levels of the queues that the worker was started for; none if it works on all queues."""
        return frozenset(self.found).difference(self._names) if self._names else frozenset()

    @property
    def others(self) -> list[Job]:
        """All jobs except those that combine buckets."""
        return [*(job for queue in self._open.values() for job in queue.others), *self._feed_jobs]

    @property
    def _feed_jobs(self) -> list[Job]:
        return [] if self._feeds is None else self._feeds.jobs

    def notified(self) -> list[Job] | None:
        """The jobs of all buckets with work, at one read version; None if some have no job yet, so `load` is needed.

        Stores the queues that a drain cannot combine in `left`.
        """
        jobs: list[Job] = []
        is_complete = True
        for name, buckets in notified_buckets(self._db, list(self.found) if self.combines else []).items():
            if buckets and self.problem(name):
                reason = f"queued updates cannot be combined: {self.problem(name)}"
                self.left[name] = ConfigurationError(reason)
                continue
            for place in buckets:
                job = self._open[name].buckets.get(place)
                if place[0] == self.found[name].left_generation:
                    self.left[name] = ConfigurationError(
                        f"the later updates of queue {name!r} are for another version of its combiner: start a worker "
                        "with that version"
                    )
                elif job is None:
                    is_complete = False
                elif job.given_up is None:
                    jobs.append(job)
                else:
                    self.left[name] = job.given_up
        return jobs if is_complete else None

    def problem(self, name: str) -> str:
        """Why the worker leaves a queue alone; empty if it does not."""
        return self.found[name].problem if name in self.found else ""

    def seconds_paused(self) -> float:
        """Seconds until the first pause ends by itself; infinite if no pause has an end."""
        ends = [each.flags.until for each in self.found.values() if each.flags.is_paused(runtime.time())]
        return min((until - runtime.time() for until in ends if until is not None), default=math.inf)

    def load(self) -> tuple[list[Job], Void]:
        """Read the queues and feeds of the store, and update the jobs.

        Returns the removed jobs, and a watch on any change of a configuration.

        Raises `QueueNotConfigured` for a queue named, only at the first call, and the store's `FDBError`.
        """
        found, watch = find_queues(self._db, self._app, self._names, is_strict=not self._is_loaded)
        try:
            # Jobs change only after everything has been read, so that a failing store leaves the present ones.
            opened = self._open_queues(found)
            gone = [] if self._feeds is None else self._feeds.load()
        except BaseException:
            watch.cancel()
            raise
        self._emit_changes(found)
        self.found, self.left, self._is_loaded = found, {}, True
        closed = [queue for name, queue in self._open.items() if opened.get(name) is not queue]
        self._open = opened
        self._caches.keep(found)
        for name, queue in self._open.items():
            for job in queue.jobs:
                job.weight = found[name].flags.priority if name in found else 1.0
        gone += [job for queue in closed for job in queue.jobs]
        gone += self._update_always(found)
        self._emit_work()
        return gone, watch

    def _open_queues(self, found: Mapping[str, QueueCheck]) -> dict[str, OpenQueue]:
        """The queues to work on from now on: unchanged ones stay open. Changes no attribute."""
        opened = {}
        for name, each in found.items():
            if name in self._open and self._is_current(name, each):
                opened[name] = self._open[name]
            elif each.code is not None:
                try:
                    opened[name] = self._open_queue(name, each, len(found))
                except CorruptData as error:  # must not stop the work on other queues
                    each.code, each.problem = None, str(error)
        for name in self._app.exporters:
            if name not in found and (not self._names or name in self._names):
                queue = self._open.get(name)
                if queue is None or queue.found is not None:
                    queue = OpenQueue(None, FailureShare(), {}, self._export_jobs(name))
                opened[name] = queue
        return opened

    def _update_always(self, found: Mapping[str, QueueCheck]) -> list[Job]:
        """Update the jobs that measure queues and compare them with their limits, also for queues left alone.

        Returns the removed jobs.
        """
        wanted: dict[TaskId, Callable[[], Task]] = {}
        if MEASURE in self.roles:
            wanted[TaskId(MEASURE, "", 0)] = partial(FindingsTask, self._db)  # of the store, not of a queue
            for name in found.keys() | self._open.keys():
                wanted[TaskId(MEASURE, name, 0)] = partial(MeasureTask, self._db, name, self._idle)
        if self.combines:
            for name, each in found.items():
                if each.flags.is_limited:
                    wanted[TaskId(LIMIT, name, 0)] = partial(LimitTask, self._db, name)
        gone = [self._always.pop(task_id) for task_id in self._always.keys() - wanted.keys()]
        for task_id in wanted.keys() - self._always.keys():
            self._always[task_id] = Job(wanted[task_id](), task_id)
        return gone

    def _emit_work(self) -> None:
        """Emit an event about the work, if it is not the same as after the last load."""
        work = describe_work(job.task_id for job in self.jobs)
        if work != self._described:
            self._described = work
            emit("work_found", work=work, store=store_of(self._db))

    def _emit_changes(self, found: Mapping[str, QueueCheck]) -> None:
        """Emit events for queues that the worker leaves alone from now on, or no longer."""
        for name, each in found.items():
            if each.problem and self.problem(name) != each.problem:
                is_paused = each.flags.is_paused(runtime.time())
                emit("queue_paused" if is_paused else "queue_left_alone", queue=name, reason=each.problem)
        for name, before in self.found.items():
            if before.problem and not (name in found and found[name].problem):
                emit("queue_resumed", queue=name)

    def _is_current(self, name: str, now: QueueCheck) -> bool:
        """Whether an open queue can stay open: its configuration is unchanged, and failing keys have not paused it."""
        queue = self._open[name]
        before = queue.found
        if before is None or before.code is None or now.code is None:
            return False
        is_same = now.code.config == before.code.config and now.outbox == before.outbox
        return is_same and not queue.failures.is_paused

    def _open_queue(self, name: str, found: QueueCheck, queues: int) -> OpenQueue:
        """A queue with its jobs; `queues` is the number of queues that share the memory for values."""
        queue = OpenQueue(found, FailureShare(), {}, [])
        code = found.code
        if code is None:
            return queue
        if self.combines:
            tasks = combine_tasks(
                self._db,
                code,
                queue.failures,
                self._totals,
                self._caches.of(name, [shape.config.generation for shape in code.shapes]),
                self._limits,
            )
            for task in tasks:
                task.bucket.cache.max_bytes = _MEMORY_BYTES // queues // code.config.buckets
                generation, number = task.place
                task_id = TaskId(COMBINE, name, generation * MAX_BUCKETS + number)
                queue.buckets[task.place] = Job(task, task_id)
            queue.others += self._timed_jobs(code.config, is_settled=found.is_switched)
        for part, needed in observer_tasks(self._db, code.config, self._app, self.roles):
            queue.others += [Job(task, task_id) for task_id, task in needed]
            if not needed:
                queue.lacking.add(part)  # so that the tasks go to a worker that can do them
        if found.outbox is not None and OUTBOX in self.roles:
            moving = outbox_tasks(self._db, name)
            queue.others += _jobs(OUTBOX, name, moving)
            if not moving:
                queue.lacking.add(f"{OUTBOX}/{name}")
        if name in self._app.exporters:
            queue.others += self._export_jobs(name)
        return queue

    def _timed_jobs(self, config: QueueConfig, *, is_settled: bool) -> list[Job]:
        """The jobs of a queue that run by time; `is_settled`: no observer is in backfill."""
        tasks: dict[str, type[TimedTask]] = {TRIM: TrimTask}
        if config.expiry is not None:
            tasks[EXPIRY] = ExpiryTask
        if config.former is not None or not is_settled:
            tasks[SETTLE] = FinishTask
        return [
            Job(task(self._db, config.name), TaskId(kind, config.name, 0)) for kind, task in tasks.items()
        ]

    def _export_jobs(self, name: str) -> list[Job]:
        """The jobs of an export queue that an exporter of the application exports."""
        if LINK not in self.roles:
            return []
        return _jobs(EXPORTER, name, exporter_tasks(self._db, name, self._app.exporters[name]))


def _jobs(kind: str, name: str, tasks: Iterable[Task]) -> list[Job]:
    return [Job(task, TaskId(kind, name, at)) for at, task in enumerate(tasks)]
