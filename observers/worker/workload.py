"""The workload of a worker: jobs for the parts of its work, as queues and feeds are configured now."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from cq import runtime
from cq.app import App
from cq.errors import ConfigurationError, CorruptData
from cq.observers.builtin import observer_parts
from cq.observers.feeds.tasks import feed_part, readable_feeds
from cq.observers.links.registry import outbox_tasks
from cq.observers.scheduling.members import (
    COMBINE,
    DELIVER,
    KINDS,
    LIMIT,
    OUTBOX,
    TaskId,
    kinds_of,
)
from cq.observers.scheduling.task import Job, WorkPart
from cq.observers.tasks.combine import QueuePasses
from cq.observers.tasks.measure import measuring_part
from cq.observers.tasks.timed import LimitTask, timed_parts
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker.queues import QueueCheck, find_queues, notified_buckets
from cq.passes.plan import Limits
from cq.store import store_of
from cq.store.api import Database, Void
from cq.store.transact import transact

_MAX_NAMES: Final = 10


class _OpenPart(NamedTuple):
    """The jobs of a part, and what they were made from."""

    version: object
    jobs: list[Job]


class Workload:
    """The queues and feeds that a worker works on, and their jobs.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners and observers.
        names: of the queues and feeds; empty for all, including those configured later.
        roles: see `ROLES`, and `MEASURE`.
        totals: counts of completed work, which passes add to.
        limits: of each pass.

    Attributes:
        roles: the worker's roles.
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
        self.roles = roles
        self._db, self._app, self._names, self._kinds = db, app, names, kinds_of(roles)
        self._passes = QueuePasses(db, totals, limits)
        self._parts: dict[TaskId, _OpenPart] = {}
        self._jobs: dict[TaskId, Job] = {}
        self._is_loaded = False
        self._described = ""  # the work, as the last event has described it

    @property
    def jobs(self) -> list[Job]:
        """All jobs of all queues and feeds."""
        return list(self._jobs.values())

    @property
    def lacking(self) -> frozenset[str]:
        """The queues and the parts of their work that this worker leaves alone, see `MemberReport`."""
        parts = {first.parts[-1] for first, part in self._parts.items() if not part.jobs}
        return frozenset(parts.union(name for name, found in self.found.items() if found.problem))

    @property
    def levels(self) -> frozenset[str]:
        """The levels of the queues that the worker was started for; none if it works on all queues."""
        return frozenset(self.found).difference(self._names) if self._names else frozenset()

    @property
    def others(self) -> list[Job]:
        """All jobs except those that combine buckets."""
        return [job for job in self._jobs.values() if not job.is_bucket]

    def notified(self) -> list[Job] | None:
        """The jobs of all buckets with work, at one read version; None if some have no job yet, so `load` is needed.

        Stores the queues that a drain cannot combine in `left`.
        """
        jobs: list[Job] = []
        is_complete = True
        combined = list(self.found) if COMBINE in self._kinds else []
        for name, buckets in notified_buckets(self._db, combined).items():
            if buckets and self.problem(name):
                reason = f"queued updates cannot be combined: {self.problem(name)}"
                self.left[name] = ConfigurationError(reason)
                continue
            for generation, number in buckets:
                job = self._jobs.get(TaskId.of_bucket(name, generation, number))
                if generation == self.found[name].left_generation:
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
        """Seconds until the first pause ends by itself; infinite if no pause has an end, and 0 or less after it."""
        paused = [each.flags for each in self.found.values() if each.is_paused]
        return (
            min((each.until for each in paused if each.until is not None), default=math.inf) - runtime.time()
        )

    def load(self) -> tuple[list[Job], Void]:
        """Read the queues and feeds of the store, and update the jobs.

        Returns the removed jobs, and a watch on any change of a configuration.

        Raises `QueueNotConfigured` for a queue named, only at the first call, and the store's `FDBError`.
        """
        found, watch = find_queues(self._db, self._app, self._names, is_strict=not self._is_loaded)
        try:
            # Jobs change only after everything has been read, so that a failing store leaves the present ones.
            parts = self._opened(found)
        except BaseException:
            watch.cancel()
            raise
        self._emit_changes(found)
        self.found, self.left, self._is_loaded = found, {}, True
        before, self._parts = self.jobs, parts
        self._jobs = {job.task_id: job for part in parts.values() for job in part.jobs}
        for job in self.jobs:
            queue = found.get(job.task_id.queue)
            job.weight = 1.0 if queue is None else queue.flags.priority
        self._emit_work()
        kept = set(self.jobs)
        return [job for job in before if job not in kept], watch

    def _opened(self, found: Mapping[str, QueueCheck]) -> dict[TaskId, _OpenPart]:
        """The parts to work on from now on: those of an unchanged version stay."""
        opened: dict[TaskId, _OpenPart] = {}
        for part in self._all_parts(found):
            if part.first.kind not in self._kinds:
                continue
            name, present = part.first.queue, self._parts.get(part.first)
            if present is not None and present.version == part.version:
                opened[part.first] = present
                continue
            try:
                opened[part.first] = _OpenPart(part.version, part.jobs())
            except CorruptData as error:  # must not stop the work on other queues
                found[name].code, found[name].problem = None, str(error)
        return {
            first: part
            for first, part in opened.items()
            if KINDS[first.kind].is_always or first.queue not in found or found[first.queue].code
        }

    def _all_parts(self, found: Mapping[str, QueueCheck]) -> Iterator[WorkPart]:
        """What each feature needs, in any role: the one list of the work that workers do."""
        db = self._db
        codes = {name: each.code for name, each in found.items() if each.code is not None}
        yield from self._passes.parts(codes, found)
        for name, code in codes.items():
            yield from timed_parts(db, code.config, is_settled=found[name].is_switched)
            yield from observer_parts(db, code.config, self._app)
            if (outbox := found[name].outbox) is not None:
                yield WorkPart(TaskId(OUTBOX, name, 0), outbox, partial(outbox_tasks, db, name))
        yield measuring_part(db)
        for name, each in found.items():
            if each.flags.is_limited:
                yield WorkPart.single(TaskId(LIMIT, name, 0), None, partial(LimitTask, db, name))
        if DELIVER in self._kinds:
            feeds = transact(db, lambda tr: readable_feeds(tr.snapshot))
            yield from (feed_part(db, config) for config in feeds if self._is_named(config.name))

    def _is_named(self, name: str) -> bool:
        return not self._names or name in self._names

    def _emit_work(self) -> None:
        """Emit an event about the work, if it is not the same as after the last load."""
        work = describe_work(self._jobs)
        if work != self._described:
            self._described = work
            emit("work_found", work=work, store=store_of(self._db))

    def _emit_changes(self, found: Mapping[str, QueueCheck]) -> None:
        """Emit events for queues that the worker leaves alone from now on, or no longer, and for other new ones."""
        for name, each in found.items():
            if not each.problem and name not in self.found and COMBINE in self._kinds:
                # Alerts ask for the least of the gauge: it is 0 if a worker combines the queue.
                emit("queue_taken_up", queue=name)
            elif each.problem and self.problem(name) != each.problem:
                emit(
                    "queue_paused" if each.is_paused else "queue_left_alone", queue=name, reason=each.problem
                )
        for name, before in self.found.items():
            if before.problem and not (name in found and found[name].problem):
                emit("queue_resumed", queue=name)


def describe_work(tasks: Collection[TaskId]) -> str:
    """The buckets and queues to combine, then the other work, in one line; "nothing" without tasks.

    >>> describe_work([TaskId("combine", "words", 0), TaskId("combine", "words", 1), TaskId("link", "words", 0)])
    '2 buckets of words, links of words'
    """
    buckets = [task.queue for task in tasks if task.kind == COMBINE]
    number = f"{len(buckets):,} {'bucket' if len(buckets) == 1 else 'buckets'}"
    names: dict[str, set[str]] = {}
    for task in tasks:
        if noun := KINDS[task.kind].noun:
            names.setdefault(noun, set()).add(task.queue)
    parts = [f"{number} of {_listed(set(buckets))}"] if buckets else []
    return ", ".join([*parts, *(f"{noun} {_listed(names[noun])}" for noun in sorted(names))]) or "nothing"


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_MAX_NAMES]
    more = len(names) - len(shown)
    last = f"{more:,} more" if more else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last
