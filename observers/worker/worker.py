"""The worker: which tasks are its own, when to wait, when to stop.

Each task is a job that is either under way in one of a few threads or waits for its watch. Several are in flight at
once, to hide the store's latency. The loop beats, shares the tasks out anew when workers come or go, and looks at the
queues again when a configuration has changed, of which a watch tells, too.

Stopping finishes the steps under way. Nothing is lost either way: a pass is one transaction.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from cq import keys, runtime
from cq.app import App
from cq.errors import CodeMismatch, InvalidConfiguration, QueueNotConfigured
from cq.observers.scheduling.coalescing import Coalescer
from cq.observers.scheduling.members import BEAT_SECONDS, MEASURE, ROLES, MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.notifications import find_or_watch
from cq.observers.scheduling.runner import DONE, Lane, Runner
from cq.observers.scheduling.takeover import ReleasedTasks, StalledTasks
from cq.observers.scheduling.task import Job
from cq.observers.tasks.combine import CombineTask, Paused, end_attempts, passes_at_once
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker.drain import finish, report_left
from cq.observers.worker.reports import WorkerReports
from cq.observers.worker.workload import Workload
from cq.passes.batch import Limits
from cq.store.api import Database, error_code
from cq.store.transact import transact
from cq.store.watch_slot import WatchSlot

log = logging.getLogger("cq.worker")

SAFETY_SECONDS: Final = 30.0
"""How often everything is looked at although no watch has fired, and whether the tasks of others get on."""
STUCK_SECONDS: Final = 10.0
"""After how long a step that comes to no end lets others take its task over."""
END_SECONDS: Final = 2.0
"""How long a worker that ends tries to take back its notes and its registration."""
GRACE_SECONDS: Final = 30.0
"""How long a worker that is stopped waits for the steps under way, unless told otherwise."""
CONCURRENCY: Final = 8
"""How many tasks are in flight at once, unless told otherwise."""
MOST_WATCHES: Final = 5_000
"""Of the 10,000 that a connection can have; tasks beyond are looked at once a second."""
_SCAN_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.5  # how often a drain that waits looks whether it is to stop
_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 10.0
_DRAIN_TRIES: Final = 6
_REST_SECONDS: Final = 1.0  # when a watch was refused, or a queue paused


class Worker:
    """Works on queues, until stopped or until everything queued is combined; to be used once.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners and observers, and exporters.
        queues: their names; none for all queues of the store, also those configured later.
        roles: what it does, of `ROLES`.
        concurrency: how many tasks are in flight at once.
        grace: for how many seconds the steps under way may go on when it is stopped.
        limits: of each pass.
        identity: a name that is this worker's alone, see `Membership`.
        beat_seconds: how often it says that it lives; others take its tasks over when it has not for a few times.
        measure: whether it also tells, by events, how much waits in the queues that are its share.

    Attributes:
        totals: what it has done so far.
        is_finished: once it has ended: whether all steps under way came to an end in time.
    """

    def __init__(
        self,
        db: Database,
        app: App | None = None,
        queues: Sequence[str] = (),
        *,
        roles: Collection[str] = ROLES,
        concurrency: int = CONCURRENCY,
        grace: float = GRACE_SECONDS,
        limits: Limits | None = None,
        identity: str | None = None,
        beat_seconds: float = BEAT_SECONDS,
        measure: bool = False,
    ) -> None:
        if not roles or set(roles) - set(ROLES):
            raise InvalidConfiguration(
                f"expected roles of {', '.join(ROLES)}, got: {', '.join(roles) or 'none'}"
            )
        self.db = db
        self.names = [keys.check_name(name) for name in queues]
        self.totals = WorkerCounts()
        self.is_finished = True
        does = {*roles, MEASURE} if measure else {*roles}
        self._work = Workload(db, app or App(), self.names, does, self.totals, limits)
        self._membership = Membership(db, does, self.names, every=beat_seconds, identity=identity)
        self._grace = grace
        self._stopping = runtime.event()
        self._wake = runtime.event()
        self._changed, self._members_changed = WatchSlot(), WatchSlot()
        self._is_outdated = True  # something of the configuration may have changed
        self._is_shared = False  # whether tasks are shared out as of the latest beat
        self._next_look = 0.0
        self._next_resumption = math.inf  # when a pause ends by itself
        self._released, self._stalled = ReleasedTasks(), StalledTasks()
        self._coalescer = Coalescer()
        self._steps = 0  # of tasks, until the latest beat
        self._taken: list[Job] = []  # jobs that are neither watched nor run yet
        self._is_scanning = False  # whether there are more tasks than watches
        self._used = False
        self._draining = False
        self._reports = WorkerReports(self._membership.me, self.totals, passes_at_once(db, concurrency))
        self._runner: Runner[Job] = Runner(
            self._run,
            self._failed,
            self._after,
            concurrency,
            lane=lambda job: Lane(job.task_id.queue, job.weight, type(job.task), job.task.max_parallel),
            waited_seconds=lambda job: job.task.waited_seconds,
        )

    def run(self, after_turn: Callable[[], object] = lambda: None) -> None:
        """Work until `stop` is called, waiting for work without polling.

        Queues that are paused, or whose code this process lacks, are left alone, with a warning. While the store does
        not answer, it tries again. `after_turn` is called after each turn of the loop that has succeeded, at least once
        in `beat_seconds`. Raises `QueueNotConfigured` when a queue named does not exist.
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
                    seconds = _delay(failures)
                    emit("store_failed", error=str(error), pause=seconds)
                self._wake.wait(seconds)
        finally:
            self._end()

    def drain(self) -> None:
        """Combine until nothing is queued at some moment, or `stop` is called, also while other workers run.

        A queue that cannot be combined does not stop the others. At the end it is an error if the worker was made for
        this queue by name; otherwise an event reports it.

        Raises:
            QueueNotConfigured: a queue named does not exist.
            ConfigurationError: a queue named has queued updates, and is paused or needs code that this process lacks.
            CorruptData: something stored of a queue named cannot be read.
            FDBError: the store fails again and again.
        """
        self._use()
        self._draining = True
        try:
            while not self._stopping.is_set():
                self._load()
                self._work.expire_windows()
                jobs = self._work.notified()
                if jobs == []:
                    finish(self._work.others, self._stopping, self._failed)
                    report_left(self._work, self.names)
                    return
                for job in jobs or []:
                    self._runner.submit(job)
                while not self._runner.wait_idle(_LOOK_SECONDS) and not self._stopping.is_set():
                    pass
        finally:
            self._end()

    def stop(self) -> None:
        """Make `run` or `drain` return once the steps under way are done, or their time is over.

        From any thread; in a signal handler call it in a thread of its own, as it takes locks.
        """
        self._stopping.set()
        self._wake.set()

    def _use(self) -> None:
        if self._used:
            raise RuntimeError("a worker can be used once: make another")
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
        self._take_back(jobs)
        if not self._draining:
            self._deregister()
        self._reports.stopped()

    def _deregister(self) -> None:
        try:
            self._membership.leave(END_SECONDS)
        except Exception as error:
            if error_code(error) is None:
                raise
            log.warning("the registration is left behind: %s", error)

    # The loop

    def _turn(self) -> float:
        """Do what is due; returns after how many seconds something will be."""
        due = runtime.monotonic() >= self._next_look
        if self._is_outdated or runtime.monotonic() >= self._next_resumption:
            self._load()
        if runtime.monotonic() >= self._membership.next_beat or not self._is_shared:
            self._beat()
        if self._taken:
            self._arm(self._taken)
            self._taken = []
        if due:
            self._next_look = runtime.monotonic() + SAFETY_SECONDS
            self._arm([job for job in self._work.jobs if job.owned])
            self._rescue()
        elif self._is_scanning:
            self._arm([job for job in self._work.jobs if job.owned and job.watch.is_free])
        return max(0.0, self._next_turn() - runtime.monotonic())

    def _next_turn(self) -> float:
        scan = runtime.monotonic() + _SCAN_SECONDS if self._is_scanning else math.inf
        return min(self._membership.next_beat, self._next_look, self._next_resumption, scan)

    def _load(self) -> None:
        """Find out which queues there are, and wait for any change of that."""
        self._is_outdated = False
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
            self._changed.hold(watch, self._outdated, lambda: None)  # the next beat sees that it has failed
            self._is_shared = False
            self._next_resumption = runtime.monotonic() + self._work.seconds_paused()
        self._leave(gone)

    def _outdated(self) -> None:
        self._is_outdated = True
        self._wake.set()

    def _beat(self) -> None:
        """Say that this worker lives, and see who else does; share the tasks out if that has changed."""
        self._is_outdated |= self._changed.is_free  # the watch has failed, or is about to say so itself
        if self._members_changed.is_free:
            watch = transact(self.db, lambda tr: tr.watch(keys.WORKERS_CHANGED))
            self._members_changed.hold(watch, self._hurry, lambda: None)  # the next beats look without it
        steps, self._steps = self._steps, self._runner.steps
        if self._membership.beat(self._report(), is_busy=self._steps > steps) or not self._is_shared:
            self._share_out()

    def _rescue(self) -> None:
        """Run the tasks of others that do not get on; wherever they run, a pass is one transaction.

        First it is the next worker in order that does so, then the one behind it, too, and so on.
        """
        others = [job for job in self._work.jobs if not job.owned]
        for job, looks in self._stalled.find(self.db, others).items():
            if self._membership.is_among(job.task_id, 1 + looks):
                log.warning("%s: its worker does not get on with it, so it is run here", job)
                job.borrow()
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
            exporters=self._work.exporters,
            facts=self._reports.facts([job for job in jobs if job.owned]),
        )

    def _share_out(self) -> None:
        """Take up the tasks that are this worker's, and leave those that are not any more."""
        jobs = self._work.jobs
        mine = {job for job in jobs if self._membership.is_mine(job.task_id)}
        self._leave([job for job in jobs if job.owned and job not in mine])
        taken = [job for job in jobs if job in mine and not job.owned]
        for job in taken:
            job.acquire()
        self._reports.shared([job for job in jobs if job.owned], taken, self._membership.others)
        self._is_shared = True
        self._is_scanning = len(mine) > MOST_WATCHES
        self._taken += taken

    def _leave(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.release()
        self._take_back([job for job in jobs if self._runner.discard(job)])

    def _take_back(self, jobs: Sequence[Job]) -> None:
        """What is to be done for jobs that were left, once they do not run any more."""
        tasks = [job.task for job in jobs]
        end_attempts(self.db, [task for task in tasks if isinstance(task, CombineTask)], END_SECONDS)
        for task in tasks:
            task.end()

    # When jobs run

    def _arm(self, jobs: Sequence[Job]) -> None:
        """Submit the jobs that are notified, and watch those of the others that are not watched."""
        waiting = [job for job in jobs if job.owned and not self._runner.is_busy(job)]
        for job in waiting:
            if job.task.notification is None:
                self._runner.submit(job, job.task.delay)
        room = len(waiting)
        if self._is_scanning:
            room = MOST_WATCHES - sum(not job.watch.is_free for job in self._work.jobs)
        notified, watches = find_or_watch(self.db, waiting, room)
        for job in notified:
            self._woken(job)
        for job, watch in watches:
            job.watch.hold(watch, partial(self._woken, job), partial(self._runner.submit, job, _REST_SECONDS))
            if not job.owned:
                job.watch.cancel()

    def _woken(self, job: Job) -> None:
        """There is work for a job."""
        self._runner.submit(job, self._coalescer.pause(job))

    def _after(self, job: Job) -> None:
        """A job is done, or was left while it ran."""
        if self._draining or self._stopping.is_set():
            return
        try:
            if job.owned and (job.is_fresh or job.task.notification is not None):
                self._arm([job])
            elif not job.owned:
                job.release()
                self._take_back([job])
        except Exception as error:  # noqa: BLE001 - it must not be lost: it runs again, if in vain
            self._reports.failed(job, error, _REST_SECONDS)
            self._runner.submit(job, _REST_SECONDS)

    def _run(self, job: Job) -> float:
        """One step of a job; returns when it is to run again."""
        if not (job.owned or job.is_borrowed) or self._stopping.is_set():
            return DONE
        job.is_fresh = False
        begun = runtime.monotonic()
        try:
            seconds = job.task.run()
        except (CodeMismatch, QueueNotConfigured):
            self._outdated()
            return DONE
        except Paused:
            self._outdated()
            return DONE if self._draining else _REST_SECONDS
        finally:
            self._coalescer.record_step(job, begun)
        job.failures = job.failures + 1 if job.task.problem else 0
        return DONE if job.failures and not job.owned else seconds  # the owner tries again

    def _failed(self, job: Job, error: BaseException) -> float:
        job.failures += 1
        if self._draining and job.failures >= _DRAIN_TRIES:
            job.given_up = error
            return DONE
        delay = _delay(job.failures)
        self._reports.failed(job, error, delay)
        return delay


def _delay(failures: int) -> float:
    return min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 1, 30))
