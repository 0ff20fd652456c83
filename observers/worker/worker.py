"""The worker: a loop that decides which tasks this process owns, when they run, and when to stop.

Each task is a job that either runs in one of a few threads or waits for its watch. Several run at once, to hide the
store's latency. The loop beats, redistributes the tasks when workers join or leave, and reads the queues again when a
watch reports a change of a configuration.

A stop waits for the steps under way. An interrupted step loses no data either: a pass is one transaction.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from cq import runtime
from cq.app import App
from cq.backoff import delay_after
from cq.durations import Span, span_of
from cq.errors import CodeMismatch, FeedNotConfigured, InvalidConfiguration, QueueNotConfigured
from cq.keys import check_name
from cq.keys.membership import BEAT_SECONDS, WORKERS_CHANGED
from cq.observers.scheduling.members import MEASURE, ROLES, MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.notifications import find_or_watch
from cq.observers.scheduling.runner import CAUGHT_UP, DONE, Runner
from cq.observers.scheduling.takeover import ReleasedTasks, StalledTasks
from cq.observers.scheduling.task import Job, pause_after
from cq.observers.tasks.combine import CombineTask, Paused, end_attempts, passes_at_once
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.history import HistoryWriter
from cq.observers.telemetry.totals import Counts, WorkerCounts
from cq.observers.worker.drain import Left, add_updates, finish
from cq.observers.worker.reports import WorkerReports
from cq.observers.worker.workload import Workload
from cq.passes.plan import Limits
from cq.plain_text import message_of, suggestion
from cq.store.api import Database, error_code
from cq.store.transact import transact
from cq.store.watch import WatchSlot

log = logging.getLogger("cq.worker")

SAFETY_SECONDS: Final = 30.0
"""How often the worker reads all notifications even if no watch fires, and checks other workers' tasks for progress."""
STUCK_SECONDS: Final = 10.0
"""A task whose step runs longer than this is reported as stuck, so that another worker takes it over."""
END_SECONDS: Final = 2.0
"""How long an ending worker tries to remove its notes of attempts, and its registration."""
GRACE_SECONDS: Final = 30.0
"""Default time that a stopped worker waits for the steps under way."""
CONCURRENCY: Final = 8
"""Default number of tasks that run at once."""
MAX_WATCHES: Final = 5_000
"""Watches that a worker uses, of the 10,000 of a connection; the notifications of other tasks are read each second."""
_SCAN_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 0.5  # how often a waiting drain checks whether it was stopped
_DRAIN_TRIES: Final = 6
_REST_SECONDS: Final = 1.0  # before the next try after a watch has failed, or for a paused queue


class Worker:
    """A worker on queues, which runs until it is stopped or has combined all queued updates; usable once.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners, observers and targets.
        queues: their names; empty for all queues of the store, including those configured later.
        roles: its roles, from `ROLES`.
        concurrency: how many tasks run at once.
        grace: how long a stopped worker waits for the steps under way.
        limits: of each pass.
        identity: a name that no other worker has, see `Membership`.
        beat: time between beats; other workers take over its tasks after a few missed beats.
        measure: whether it also measures queues and reports their backlog by events.
        history: whether it stores its work of each minute, see `cq.observers.telemetry.history`.
        app_path: MODULE:APP, by which `cq worker --app` finds the app: findings name it to start such a worker again.

    Attributes:
        counts: its counts so far, in total and by queue.
        is_finished: after its end: whether all steps under way ended within `grace`.
    """

    def __init__(
        self,
        db: Database,
        app: App | None = None,
        queues: Sequence[str] = (),
        *,
        roles: Collection[str] = ROLES,
        concurrency: int = CONCURRENCY,
        grace: Span = GRACE_SECONDS,
        limits: Limits | None = None,
        identity: str | None = None,
        beat: Span = BEAT_SECONDS,
        measure: bool = False,
        history: bool = True,
        app_path: str = "",
    ) -> None:
        _check_roles(roles)
        self.db = db
        self.names = [check_name(name) for name in queues]
        self.counts = WorkerCounts()
        self.is_finished = True
        does = {*roles, MEASURE} if measure else {*roles}
        self._work = Workload(db, app or App(), self.names, does, self.counts, limits)
        self._membership = Membership(db, does, self.names, every=span_of(beat), identity=identity)
        self._grace = span_of(grace)
        self._stopping = runtime.event()
        self._wake = runtime.event()
        self._changed, self._members_changed = WatchSlot(), WatchSlot()
        self._is_outdated = True  # whether a configuration may have changed since the latest `_load`
        self._is_shared = False  # whether owners are computed from the latest beat and the present jobs
        self._next_check = 0.0  # of all notifications, even if no watch fires
        self._released, self._stalled = ReleasedTasks(), StalledTasks()
        self._is_scanning = False  # whether there are more tasks than watches
        self._used = False
        self._draining = False
        at_once = passes_at_once(db, concurrency)
        self._reports = WorkerReports(self._membership.me, self.counts, at_once, app_path)
        self._history = HistoryWriter(db, self.counts, is_on=history)
        self._runner: Runner[Job] = Runner(
            self._run,
            self._failed,
            self._after,
            concurrency,
            lane=lambda job: job.lane,
            waited_seconds=lambda job: job.task.waited_seconds,
        )

    @property
    def totals(self) -> Counts:
        """Its counts so far, in total."""
        return self.counts.total

    def run(self, after_turn: Callable[[], object] = lambda: None) -> None:
        """Work until `stop` is called; waits for work by watches, without polling.

        Leaves alone, with a warning, queues that are paused or whose code this process lacks. Retries while the store
        does not answer. Calls `after_turn` after each successful turn of the loop, at least every `beat`.
        Raises `QueueNotConfigured` if a queue named does not exist, and `StoreError` if the store must be opened again,
        as after its file was replaced.
        """
        self._use()
        failures = 0
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    seconds = self._turn()
                    failures = 0
                    after_turn()
                except Exception as error:
                    if error_code(error) is None:
                        raise
                    failures += 1
                    seconds = delay_after(failures)
                    emit("store_failed", error=message_of(error), pause=seconds)
                self._wake.wait(seconds)
        finally:
            self._end()

    def drain(self) -> list[str]:
        """Combine until no update is queued at some moment, or `stop` is called; other workers may run, too.

        Then finish exports, outboxes, clouds and feeds. Returns one line for each part of the work that is undone,
        which an event has reported, too; an empty list if all is done. A queue that cannot be combined does not
        stop the others. At the end, it is an error if the worker was created for this queue by name.

        Raises:
            QueueNotConfigured: a queue named does not exist.
            ConfigurationError: a queue named has queued updates, and is paused or needs code that this process lacks.
            CorruptData: something stored of a queue named cannot be read.
            FDBError: the store fails repeatedly.
        """
        self._use()
        self._draining = True
        try:
            while not self._stopping.is_set():
                self._load()
                add_updates(self._work, self._stopping)
                jobs = self._work.notified()
                if jobs == []:
                    return self._finish()
                for job in jobs or []:  # None: a bucket without a job, which the next `_load` creates
                    self._runner.submit(job)
                while not self._runner.wait_idle(_STOP_SECONDS) and not self._stopping.is_set():
                    self._history.record()
                    self._reports.going_on()
            left = Left()
            left.add("", "the drain", "it was stopped before all updates were combined")
            return left.lines
        finally:
            self._end()

    def _finish(self) -> list[str]:
        """The last step of a drain: everything but passes; returns the lines for the work that is left."""
        left = Left()
        jobs = finish(self._work.others, self._stopping, self._failed)
        left.add_jobs(jobs, is_stopped=self._stopping.is_set())
        left.add_queues(self._work, self.names)
        left.add_lacking(self.db, self._work, self.names)
        return left.lines

    def stop(self) -> None:
        """Make `run` or `drain` return once the steps under way have ended, or after `grace`.

        From any thread. A signal handler must call it in a new thread, as the interrupted code may hold its locks.
        """
        self._stopping.set()
        self._wake.set()

    def _use(self) -> None:
        if self._used:
            raise RuntimeError("a worker can be used only once: create another")
        self._used = True
        self._reports.started()

    def _end(self) -> None:
        self._stopping.set()
        self._changed.cancel()
        self._members_changed.cancel()
        jobs = self._work.jobs
        for job in jobs:
            job.release()
        self.is_finished = self._runner.close(self._grace)
        if not self.is_finished:
            emit("steps_left", seconds=self._grace)
        self._clean_up(jobs)
        self._history.record(is_last=True)
        if not self._draining:
            self._deregister()
        self._reports.stopped()

    def _deregister(self) -> None:
        try:
            self._membership.leave(END_SECONDS)
        except Exception as error:
            if error_code(error) is None:
                raise
            log.warning("the worker's row could not be removed, other workers will remove it: %s", error)

    # The loop

    def _turn(self) -> float:
        """Run all due steps of the loop; returns the seconds until the next is due."""
        due = runtime.monotonic() >= self._next_check
        if self._is_outdated or self._work.seconds_paused() <= 0.0:
            self._load()
        if runtime.monotonic() >= self._membership.next_beat or not self._is_shared:
            self._beat()
        self._runner.replace_hanging()
        owned = [job for job in self._work.jobs if job.owned]
        if due:
            self._next_check = runtime.monotonic() + SAFETY_SECONDS
            self._submit_or_watch(owned)
            self._borrow_stalled()
        elif new := [job for job in owned if job.watch.is_free and (job.is_fresh or self._is_scanning)]:
            self._submit_or_watch(new)
        next_turn = min(self._membership.next_beat, self._next_check) - runtime.monotonic()
        scan = _SCAN_SECONDS if self._is_scanning else math.inf
        return max(0.0, min(next_turn, scan, self._work.seconds_paused()))

    def _load(self) -> None:
        """Update the jobs from the store's configurations, and watch for any change of these."""
        self._is_outdated = False  # before the read: a change during it sets the flag again
        try:
            gone, watch = self._work.load()
        except BaseException:
            self._is_outdated = True
            raise
        if self._draining:
            watch.cancel()
            for job in self._work.jobs:
                job.acquire()
        else:
            self._changed.hold(watch, self._outdated, lambda: None)  # the next beat notices a failed watch
            self._is_shared = False
        self._release(gone)

    def _outdated(self) -> None:
        self._is_outdated = True
        self._wake.set()

    def _beat(self) -> None:
        """Beat and read the other workers; redistribute the tasks if owners may have changed."""
        self._is_outdated |= self._changed.is_free  # the watch has failed, or is about to call back
        if self._members_changed.is_free:
            watch = transact(self.db, lambda tr: tr.watch(WORKERS_CHANGED))
            # If it fails, the next beat makes another.
            self._members_changed.hold(watch, self._hurry, lambda: None)
        is_busy = self._runner.has_run()
        if self._membership.beat(self._report(), is_busy=is_busy) or not self._is_shared:
            self._distribute()
        self._history.record()

    def _borrow_stalled(self) -> None:
        """Run stalled tasks of others: at first the next worker in a task's order does so, then one more each check."""
        others = [job for job in self._work.jobs if not job.owned]
        for job, checks in self._stalled.find(self.db, others).items():
            if self._membership.is_among(job.task_id, 1 + checks):
                log.warning("%s: makes no progress in its worker, so it runs here", job)
                job.borrow(self._membership.id)
                self._runner.submit(job)

    def _hurry(self) -> None:
        self._membership.hurry()
        self._wake.set()

    def _report(self) -> MemberReport:
        jobs = self._work.jobs
        stuck = {str(job.task_id) for job in self._runner.stuck(STUCK_SECONDS)}
        return MemberReport(
            lacking=self._work.lacking,
            stuck=frozenset(stuck | self._released.update(jobs)),
            facts=self._reports.facts([job for job in jobs if job.owned]),
            levels=self._work.levels,
        )

    def _distribute(self) -> None:
        """Acquire the tasks that this worker owns now, and release those that it no longer owns."""
        jobs = self._work.jobs
        mine = {job for job in jobs if self._membership.is_mine(job.task_id)}
        self._release([job for job in jobs if job.owned and job not in mine])
        taken = [job for job in jobs if job in mine and not job.owned]
        for job in taken:
            job.acquire(self._membership.id)
        self._reports.shared([job for job in jobs if job.owned], taken, self._membership.others)
        self._is_shared = True
        self._is_scanning = len(mine) > MAX_WATCHES

    def _release(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.release()
        idle = [job for job in jobs if self._runner.discard(job)]
        self._clean_up(idle)  # `_after` cleans up the others, once they end

    def _clean_up(self, jobs: Sequence[Job]) -> None:
        """Remove the notes, and free the resources, of released jobs that no longer run."""
        tasks = [job.task for job in jobs]
        end_attempts(self.db, [task for task in tasks if isinstance(task, CombineTask)], END_SECONDS)
        for task in tasks:
            task.end()

    # Runs of jobs

    def _submit_or_watch(self, jobs: Sequence[Job]) -> None:
        """Submit the notified jobs, and watch the notifications of the others."""
        waiting = [job for job in jobs if job.owned and not self._runner.is_busy(job)]
        for job in waiting:
            if job.task.notification is None:
                self._runner.submit(job, job.task.delay)
        room = len(waiting)
        if self._is_scanning:
            room = MAX_WATCHES - sum(not job.watch.is_free for job in self._work.jobs)
        notified, watches = find_or_watch(self.db, waiting, room)
        for job in notified:
            self._runner.submit(job)
        for job, watch in watches:
            submit = partial(self._runner.submit, job)
            job.watch.hold(watch, submit, partial(submit, _REST_SECONDS))
            if not job.owned:  # released by another thread meanwhile, which may have come before `hold`
                job.watch.cancel()

    def _after(self, job: Job) -> None:
        """Watch for a job's next work once it is done; clean up if it was released while it ran."""
        if self._draining or self._stopping.is_set():
            return
        try:
            if job.owned and (job.is_fresh or job.task.notification is not None):
                self._submit_or_watch([job])
            elif not job.owned:
                job.release()
                self._clean_up([job])
        except Exception as error:  # noqa: BLE001 - the job must not be lost: it runs again, even without work
            self._reports.failed(job, error, _REST_SECONDS)
            self._runner.submit(job, _REST_SECONDS)

    def _run(self, job: Job) -> float:
        """Run one step of a job; returns the seconds until the next, or `DONE`."""
        if not (job.owned or job.is_borrowed) or self._stopping.is_set():
            return DONE
        job.is_fresh = False
        try:
            seconds = job.run()
        except (CodeMismatch, FeedNotConfigured, QueueNotConfigured):
            self._outdated()
            return DONE
        except Paused:
            self._outdated()
            return DONE if self._draining else _REST_SECONDS
        job.failures = job.failures + 1 if job.task.problem and not job.task.is_waiting else 0
        if seconds == CAUGHT_UP and job.owned and not self._draining:
            return 0.0 if job.task.is_awaited else pause_after(runtime.monotonic() - job.begun)
        return DONE if job.task.problem and not job.owned else seconds  # the owner retries a borrowed task

    def _failed(self, job: Job, error: BaseException) -> float:
        job.failures += 1
        if self._draining and job.failures >= _DRAIN_TRIES:
            job.given_up = error
            return DONE
        delay = delay_after(job.failures)
        self._reports.failed(job, error, delay)
        return delay


def _check_roles(roles: Collection[str]) -> None:
    unknown = [each for each in roles if each not in ROLES]
    if unknown or not roles:
        raise InvalidConfiguration(
            f"expected roles of {', '.join(ROLES)}, got: {', '.join(roles) or 'none'}"
            f"{''.join(suggestion(each, ROLES) for each in unknown)}"
        )
