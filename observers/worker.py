"""The worker: which buckets have work, when to wait, when to stop.

Each bucket is a job that is either under way in one of a few threads or waits for its watch. A watch is made in a
transaction that only reads, at the read version at which the bucket's notification was found absent, so no add
is missed; it fires within milliseconds of the add. Several buckets are in flight at once, to hide the store's latency.
One more watch, on a key that every change of configuration writes, tells when to look at the queues again.

Stopping finishes the passes under way. Nothing is lost either way: a pass is one transaction.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from cq import keys
from cq.app import App
from cq.batch import Limits
from cq.errors import CodeMismatch, ConfigurationError, QueueNotConfigured
from cq.failures import FailureShare
from cq.observers.builtin import observer_tasks
from cq.observers.combining import CombineTask, Paused, combine_tasks
from cq.observers.jobs import Job, Totals
from cq.observers.queues import Found, OpenQueue, find_queues, notified_buckets
from cq.observers.runner import DONE, Runner
from cq.observers.trimming import FIRST_SECONDS, TrimTask
from cq.observers.watchslot import WatchSlot
from cq.store.api import Database, Transaction, error_code
from cq.store.transact import transact

log = logging.getLogger("cq.worker")

SAFETY_SECONDS: Final = 30.0
"""How often notifications are looked at although no watch has fired."""
END_SECONDS: Final = 2.0
"""How long a worker that ends tries to take back its notes."""
_LOOK_SECONDS: Final = 0.5  # how often a drain that waits looks whether it is to stop
_OTHERS_SECONDS: Final = 10.0  # how long a drain waits for what works for observers and goes on failing
_MOST_SECONDS: Final = 600.0  # how long it lets such work go on that has always more to do
_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 10.0
_DRAIN_TRIES: Final = 6
_REST_SECONDS: Final = 1.0  # when a watch was refused, or a queue paused
_MEMORY_BYTES: Final = 64_000_000  # for current values, of all queues together


class Worker:
    """Combines queues, until stopped or until everything queued is combined; to be used once.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners and observers.
        queues: their names; none for all queues of the store, also those configured later.
        concurrency: how many buckets are in flight at once.
        limits: of each pass.
    """

    def __init__(
        self,
        db: Database,
        app: App | None = None,
        queues: Sequence[str] = (),
        *,
        concurrency: int = 4,
        limits: Limits | None = None,
    ) -> None:
        self.db = db
        self.app = app or App()
        self.names = [keys.check_name(name) for name in queues]
        self.totals = Totals()
        self._limits = limits
        self._found: dict[str, Found] = {}
        self._open: dict[str, OpenQueue] = {}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._changed = WatchSlot()
        self._used = False
        self._draining = False
        self._error: BaseException | None = None
        self._runner: Runner[Job] = Runner(self._run, self._failed, self._rearm, concurrency)

    def run(self) -> None:
        """Combine until `stop` is called, waiting for work without polling.

        Queues that are paused, or whose code this process lacks, are left alone, with a warning. While the store does
        not answer, it tries again. Raises `QueueNotConfigured` when a queue named does not exist.
        """
        self._use()
        failures = 0
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    self._look()
                    failures, seconds = 0, SAFETY_SECONDS
                except Exception as error:
                    if error_code(error) is None:
                        raise
                    failures += 1
                    seconds = _delay(failures)
                    log.warning("the store cannot be read, again in %.1f s: %s", seconds, error)
                self._wake.wait(seconds)
        finally:
            self._end()

    def drain(self) -> None:
        """Combine until nothing is queued at some moment, or `stop` is called.

        Raises:
            QueueNotConfigured: a queue named does not exist.
            ConfigurationError: something is queued that this process lacks the code for, or in a queue that is paused.
            CorruptData: a bucket's rows are stamped later than the store's versions.
            FDBError: the store fails again and again.
        """
        self._use()
        self._draining = True
        try:
            while not self._stopping.is_set():
                self._load()
                jobs = self._notified()
                if not jobs:
                    self._finish_others()
                    return
                for job in jobs:
                    self._runner.submit(job)
                while not self._runner.wait_idle(_LOOK_SECONDS) and not self._stopping.is_set():
                    pass
            if self._error is not None:
                raise self._error
        finally:
            self._end()

    def stop(self) -> None:
        """Make `run` or `drain` return once the passes under way are done.

        From any thread; in a signal handler call it in a thread of its own, as it takes locks.
        """
        self._stopping.set()
        self._wake.set()

    def _use(self) -> None:
        if self._used:
            raise RuntimeError("a worker can be used once: make another")
        self._used = True

    def _end(self) -> None:
        self._stopping.set()
        self._changed.cancel()
        self._runner.close()
        self._close(list(self._open.values()))

    # Which queues

    def _load(self) -> None:
        """Find out which queues there are to combine, and wait for any change of that."""
        found, watch = find_queues(self.db, self.app, self.names)
        if self._draining:
            watch.cancel()
        else:
            self._changed.hold(watch, self._wake.set, lambda: None)  # without it, the safety look does
        for name, each in found.items():
            if each.problem and self._problem(name) != each.problem and not self._draining:
                log.warning("left alone: %s", each.problem)
        self._found = found
        self._close([self._open.pop(name) for name in list(self._open) if not self._is_current(name)])
        for name, each in found.items():
            if each.code is not None and name not in self._open:
                self._open_queue(name, each)

    def _problem(self, name: str) -> str:
        return self._found[name].problem if name in self._found else ""

    def _is_current(self, name: str) -> bool:
        """Whether a queue that is open is still to be worked on, as it was configured when it was opened."""
        found, queue = self._found.get(name), self._open[name]
        if found is None or found.code is None or queue.failures.is_paused:
            return False
        return found.code.config == queue.code.config

    def _open_queue(self, name: str, found: Found) -> None:
        code = found.code
        if code is None:
            return
        memory = _MEMORY_BYTES // max(1, len(self._found))
        failures = FailureShare()
        tasks = combine_tasks(
            self.db,
            code,
            failures,
            self.totals,
            self._stopping.is_set,
            limits=self._limits,
            memory_bytes=memory,
        )
        trim = Job(TrimTask(self.db, name))
        others = [trim, *map(Job, observer_tasks(self.db, code.config))]
        self._open[name] = OpenQueue(code, failures, [Job(task) for task in tasks], others)
        if not self._draining:
            self._runner.submit(trim, FIRST_SECONDS)

    def _close(self, queues: list[OpenQueue]) -> None:
        """Retire the jobs of these queues, and take back their notes of attempts."""
        for queue in queues:
            queue.retire()
        jobs = [job for queue in queues for job in queue.jobs]

        def end(tr: Transaction) -> None:
            tr.options.set_timeout(int(END_SECONDS * 1000))
            for job in jobs:
                if isinstance(job.task, CombineTask):
                    job.task.bucket.attempts.end(tr)

        try:
            transact(self.db, end)
        except Exception as error:
            if error_code(error) is None:
                raise
            log.warning("notes of attempts are left behind: %s", error)
        for job in jobs:
            job.task.end()

    # Which jobs

    def _look(self) -> None:
        """Look at the configuration, and see to it that every job runs or is watched."""
        self._load()
        jobs = [job for queue in self._open.values() for job in queue.jobs]
        self._arm([job for job in jobs if job.task.notification and not self._runner.is_busy(job)])

    def _arm(self, jobs: Sequence[Job]) -> None:
        """Submit the jobs that are notified, and watch those of the others that are not watched."""
        for job, watch in transact(self.db, lambda tr: _watch(tr, jobs)):
            if watch is not None:
                job.watch.hold(
                    watch,
                    partial(self._runner.submit, job),
                    partial(self._runner.submit, job, _REST_SECONDS),
                )
            else:
                self._runner.submit(job)

    def _rearm(self, job: Job) -> None:
        if self._draining or job.retired or self._stopping.is_set() or job.task.notification is None:
            return
        try:
            self._arm([job])
        except Exception as error:  # noqa: BLE001 - it must not be lost: it runs again, if in vain
            log.warning("%s cannot be watched: %s", job, error)
            self._runner.submit(job, _REST_SECONDS)

    def _notified(self) -> list[Job]:
        """The jobs of all buckets with work, at one read version."""
        jobs = []
        for name, buckets in notified_buckets(self.db, list(self._found)).items():
            if buckets and self._problem(name):
                raise ConfigurationError(f"updates wait that cannot be combined: {self._problem(name)}")
            jobs += [self._open[name].buckets[number] for number in buckets]
        return jobs

    def _finish_others(self) -> None:
        """Run what works for observers until it has nothing to do, or goes on failing."""
        left = [job for queue in self._open.values() for job in queue.others if job.task.notification]
        deadline = time.monotonic() + _OTHERS_SECONDS
        while left:
            again = {job: self._finish(job, deadline) for job in left}
            left = [job for job, seconds in again.items() if seconds != DONE]
            seconds = min((again[job] for job in left), default=0.0)
            if time.monotonic() + seconds > deadline or self._stopping.wait(seconds):
                break
        for job in left:
            log.warning("%s: left with work to do", job)

    def _finish(self, job: Job, deadline: float) -> float:
        """Run a job until it has nothing to do or wants to wait, or has had its time without coming to an end."""
        deadline += _MOST_SECONDS
        try:
            while (seconds := job.task.run()) == 0.0 and not self._stopping.is_set():
                if time.monotonic() > deadline:
                    break
        except Exception as error:
            if error_code(error) is None:
                raise
            return self._failed(job, error)
        return seconds

    # Running them

    def _run(self, job: Job) -> float:
        """One step of a job; returns when it is to run again."""
        if job.retired or self._stopping.is_set():
            return DONE
        try:
            seconds = job.task.run()
        except (CodeMismatch, QueueNotConfigured):
            self._wake.set()  # the configuration has changed: look at it again
            return DONE
        except Paused:
            self._wake.set()
            return DONE if self._draining else _REST_SECONDS
        job.failures = 0
        return seconds

    def _failed(self, job: Job, error: BaseException) -> float:
        job.failures += 1
        if self._draining and job.failures >= _DRAIN_TRIES:
            self._give_up(error)
            return DONE
        delay = _delay(job.failures)
        log.warning("%s: failed, again in %.1f s: %s: %s", job, delay, type(error).__name__, error)
        return delay

    def _give_up(self, error: BaseException) -> None:
        self._error = error
        self.stop()


def _watch(tr: Transaction, jobs: Sequence[Job]) -> list[tuple[Job, Any]]:
    """The jobs that are notified, with None, and those that are neither that nor watched, with a watch."""
    found = [(job, key, tr.snapshot.get(key)) for job in jobs if (key := job.task.notification) is not None]
    notified: list[tuple[Job, Any]] = [(job, None) for job, _, value in found if value.present()]
    silent = [(job, key) for job, key, value in found if not value.present() and job.watch.is_free]
    return notified + [(job, tr.watch(key)) for job, key in silent]


def _delay(failures: int) -> float:
    return min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 1, 30))
