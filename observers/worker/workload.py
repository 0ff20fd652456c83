"""The jobs of a worker: the buckets of each queue that it can work on, and what observers need beside the passes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cq import runtime
from cq.app import App
from cq.bucket.failure_share import FailureShare
from cq.config.queue import MAX_BUCKETS
from cq.errors import ConfigurationError, CorruptData
from cq.observers.builtin import observer_tasks
from cq.observers.export.spec import EXPORTERS
from cq.observers.export.tasks import exporter_tasks
from cq.observers.feeds.tasks import ROLE, FeedJobs
from cq.observers.scheduling.members import EXPORTER, LIMIT, MEASURE, SETTLE, TRIM, WINDOW, TaskId
from cq.observers.scheduling.task import Job, Task
from cq.observers.tasks.bucket_caches import BucketCaches
from cq.observers.tasks.combine import combine_tasks
from cq.observers.tasks.expire_windows import WindowTask
from cq.observers.tasks.finish import FinishTask
from cq.observers.tasks.limits import LimitTask
from cq.observers.tasks.measure import IdleQueues, MeasureTask
from cq.observers.tasks.trim_operation_ids import TrimTask
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker.queues import QueueCheck, find_queues, notified_buckets
from cq.passes.batch import Limits
from cq.store.api import Database, Void
from cq.windows.expiry import expire

log = logging.getLogger("cq.worker")

_MEMORY_BYTES = 64_000_000  # for current values, of all queues together


@dataclass(slots=True)
class OpenQueue:
    """A queue that is worked on, as it was configured when it was opened; its buckets by generation and number."""

    found: QueueCheck | None
    failures: FailureShare
    buckets: dict[tuple[int, int], Job]
    others: list[Job]
    lacking: set[str] = field(default_factory=set)

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [*self.buckets.values(), *self.others]


class Workload:
    """The queues that a worker works on, and their jobs.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners and observers.
        names: of the queues; none for all, also those configured later.
        roles: see `ROLES`, and `MEASURE`.
        totals: of what is done.
        limits: of each pass.

    Attributes:
        found: the queues.
        left: {name: error} of the queues that a drain cannot combine, as of the latest `notified`.
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
        self._db, self._app, self._names, self._roles = db, app, names, roles
        self._totals, self._limits = totals, limits
        self._open: dict[str, OpenQueue] = {}
        self._beside: dict[TaskId, Job] = {}
        self._feeds = FeedJobs(db, names) if ROLE in roles else None
        self._is_loaded = False
        self._idle = IdleQueues()
        self._caches = BucketCaches()

    @property
    def jobs(self) -> list[Job]:
        """All jobs of all queues and feeds."""
        queues = (job for queue in self._open.values() for job in queue.jobs)
        return [*queues, *self._beside.values(), *self._of_feeds]

    @property
    def combines(self) -> bool:
        """Whether passes are among the work."""
        return "combine" in self._roles

    @property
    def lacking(self) -> frozenset[str]:
        """See `MemberReport`."""
        queues = {name for name, found in self.found.items() if found.problem}
        return frozenset(queues.union(*(queue.lacking for queue in self._open.values())))

    @property
    def exporters(self) -> frozenset[str]:
        """The export queues that the application exports."""
        return frozenset(self._app.exporters)

    @property
    def others(self) -> list[Job]:
        """All jobs that are not of buckets to combine."""
        return [*(job for queue in self._open.values() for job in queue.others), *self._of_feeds]

    @property
    def _of_feeds(self) -> list[Job]:
        return [] if self._feeds is None else self._feeds.jobs

    def expire_windows(self) -> None:
        """Take out of the queues that it works on what has left their windows: what a drain begins with."""
        self.left = {}
        for name, queue in self._open.items():
            if self.combines and queue.found is not None:
                try:
                    while (expired := expire(self._db, name)) is not None and expired.rows:
                        pass
                except CorruptData as error:  # other queues go on
                    self.left[name] = error

    def notified(self) -> list[Job] | None:
        """The jobs of all buckets with work, at one read version; None when there are some that it does not know yet.

        Those that a drain leaves alone are noted in `left`.
        """
        jobs: list[Job] = []
        is_complete = True
        for name, buckets in notified_buckets(self._db, list(self.found) if self.combines else []).items():
            if buckets and self.problem(name):
                reason = f"updates wait that cannot be combined: {self.problem(name)}"
                self.left[name] = ConfigurationError(reason)
                continue
            for place in buckets:
                job = self._open[name].buckets.get(place)
                if job is None:
                    is_complete = False
                elif job.given_up is None:
                    jobs.append(job)
                else:
                    self.left[name] = job.given_up
        return jobs if is_complete else None

    def problem(self, name: str) -> str:
        """Why a queue is left alone; empty when it is not."""
        return self.found[name].problem if name in self.found else ""

    def seconds_paused(self) -> float:
        """After how many seconds the first pause ends by itself; infinite when none does."""
        ends = [each.flags.until for each in self.found.values() if each.flags.is_paused(runtime.time())]
        return min((until - runtime.time() for until in ends if until is not None), default=math.inf)

    def load(self) -> tuple[list[Job], Void]:
        """Find out which queues and feeds there are.

        Returns the jobs that are no more, and a watch on any change of that.

        Raises `QueueNotConfigured` for a name that was asked for, and the store's `FDBError`.
        """
        found, watch = find_queues(self._db, self._app, self._names, is_strict=not self._is_loaded)
        try:
            opened = self._all_opened(found)
            gone = [] if self._feeds is None else self._feeds.load()
        except BaseException:
            watch.cancel()
            raise
        self._tell(found)
        self.found, self._is_loaded = found, True
        closed = [queue for name, queue in self._open.items() if opened.get(name) is not queue]
        self._open = opened
        self._caches.keep(found)
        for name, queue in self._open.items():
            for job in queue.jobs:
                job.weight = found[name].flags.priority if name in found else 1.0
        gone += [job for queue in closed for job in queue.jobs]
        return [*gone, *self._put_beside(found)], watch

    def _all_opened(self, found: Mapping[str, QueueCheck]) -> dict[str, OpenQueue]:
        """The queues to work on from now on, those that stay as they are included; nothing is changed if it raises."""
        opened = {}
        for name, each in found.items():
            if name in self._open and self._is_current(name, each):
                opened[name] = self._open[name]
            elif each.code is not None:
                try:
                    opened[name] = self._opened(name, each, len(found))
                except CorruptData as error:  # other queues go on
                    each.code, each.problem = None, str(error)
        for name in self._app.exporters:
            if name not in found and (not self._names or name in self._names):
                queue = self._open.get(name)
                if queue is None or queue.found is not None:
                    queue = OpenQueue(None, FailureShare(), {}, self._exporting(name))
                opened[name] = queue
        return opened

    def _put_beside(self, found: Mapping[str, QueueCheck]) -> list[Job]:
        """Have queues measured and compared with their limits, whether they can be worked on or not.

        Returns the jobs that are no more.
        """
        wanted: dict[TaskId, Callable[[], Task]] = {}
        if MEASURE in self._roles:
            for name in found.keys() | self._open.keys():
                wanted[TaskId(MEASURE, name, 0)] = partial(MeasureTask, self._db, name, self._idle)
        if self.combines:
            for name, each in found.items():
                if each.flags.is_limited:
                    wanted[TaskId(LIMIT, name, 0)] = partial(LimitTask, self._db, name)
        gone = [self._beside.pop(share) for share in self._beside.keys() - wanted.keys()]
        for share in wanted.keys() - self._beside.keys():
            self._beside[share] = Job(wanted[share](), share)
        return gone

    def _tell(self, found: Mapping[str, QueueCheck]) -> None:
        """Say which queues are left alone, and which no longer."""
        for name, each in found.items():
            if each.problem and self.problem(name) != each.problem:
                is_paused = each.flags.is_paused(runtime.time())
                emit("queue_paused" if is_paused else "queue_left_alone", queue=name, reason=each.problem)
        for name, before in self.found.items():
            if before.problem and not (name in found and found[name].problem):
                emit("queue_resumed", queue=name)

    def _is_current(self, name: str, now: QueueCheck) -> bool:
        """Whether a queue that is open is still to be worked on, as it was configured when it was opened."""
        queue = self._open[name]
        before = queue.found
        if before is None or before.code is None or now.code is None:
            return False
        return now.code.config == before.code.config and not queue.failures.is_paused

    def _opened(self, name: str, found: QueueCheck, queues: int) -> OpenQueue:
        """The jobs of a queue, which is one of so many."""
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
                limits=self._limits,
                memory_bytes=_MEMORY_BYTES // queues,
            )
            for task in tasks:
                generation, number = task.place
                share = TaskId("combine", name, generation * MAX_BUCKETS + number)
                queue.buckets[task.place] = Job(task, share)
            queue.others.append(Job(TrimTask(self._db, name), TaskId(TRIM, name, 0)))
            if code.config.window is not None:
                queue.others.append(Job(WindowTask(self._db, name), TaskId(WINDOW, name, 0)))
            if code.config.former is not None or not found.is_switched:
                queue.others.append(Job(FinishTask(self._db, name), TaskId(SETTLE, name, 0)))
        for role, observers in observer_tasks(self._db, code.config, self._roles).items():
            queue.others += [Job(task, TaskId(role, name, at)) for at, task in enumerate(observers)]
            if not observers:
                queue.lacking.add(f"{role}/{name}")  # this process cannot do it
        if name in self._app.exporters:
            if any(each.name in EXPORTERS for each in code.config.observers):
                log.warning("queue %r is exported elsewhere: the application's exporter gets nothing", name)
            else:
                queue.others += self._exporting(name)
        return queue

    def _exporting(self, name: str) -> list[Job]:
        """The jobs of an export queue whose exporter is the application's."""
        if "export" not in self._roles:
            return []
        tasks = exporter_tasks(self._db, name, self._app.exporters[name])
        return [Job(task, TaskId(EXPORTER, name, at)) for at, task in enumerate(tasks)]
