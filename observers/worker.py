"""The worker: which buckets have work, when to wait, when to stop.

Each bucket is a task that is either under way in one of a few threads or waits for its watch. A watch is made in a
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
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cq import keys
from cq.app import App, QueueCode
from cq.combining import Limits, PassResult
from cq.config import pause, queue_names, read_config, read_flags
from cq.errors import CodeMismatch, ConfigurationError, QueueNotConfigured
from cq.keys import QueueKeys
from cq.markers import trim_markers
from cq.observers.runner import DONE, Runner
from cq.observers.tasks import QueueTasks, Task, Totals
from cq.observers.watchslot import WatchSlot
from cq.store.api import Database, Transaction, Void, error_code
from cq.store.transact import transact

log = logging.getLogger("cq.worker")

SAFETY_SECONDS: Final = 30.0
"""How often notifications are looked at although no watch has fired."""
TRIM_SECONDS: Final = 3600.0
"""How often operation ids are looked through for ones to forget."""
_LOOK_SECONDS: Final = 0.5  # how often a drain that waits looks whether it is to stop
_FIRST_DELAY: Final = 0.1
_LAST_DELAY: Final = 10.0
_DRAIN_TRIES: Final = 6


class Worker:
    """Combines queues, until stopped or until everything queued is combined.

    Args:
        db: a database of either store.
        app: the code for queues that need more than built-in combiners.
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
        self._concurrency = concurrency
        self._queues: dict[str, QueueTasks] = {}
        self._problems: dict[str, str] = {}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._changed = WatchSlot()
        self._draining = False
        self._error: Exception | None = None
        self._trimmed = time.monotonic()

    def run(self) -> None:
        """Combine until `stop` is called, waiting for work without polling.

        Queues that are paused, or whose code this process lacks, are left alone, with a warning. Raises
        `QueueNotConfigured` when a queue named does not exist, and the store's `FDBError` when it cannot be read.
        """
        self._start()
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                self._changed.hold(self._load(), self._wake.set)
                self._arm([task for task in self._tasks() if not self._runner.is_busy(task)])
                self._wake.wait(SAFETY_SECONDS)
                self._trim_markers()
        finally:
            self._end()

    def drain(self) -> None:
        """Combine until nothing is queued at some moment, or `stop` is called.

        Raises:
            QueueNotConfigured: a queue named does not exist.
            ConfigurationError: something is queued that this process lacks the code for, or in a queue that is paused.
            FDBError: the store fails again and again.
        """
        self._draining = True
        self._start()
        try:
            while not self._stopping.is_set() and self._error is None:
                self._load().cancel()
                tasks = self._notified()
                if not tasks:
                    return
                for task in tasks:
                    self._runner.submit(task)
                while not self._runner.wait_idle(_LOOK_SECONDS) and not self._stopping.is_set():
                    pass
            if self._error is not None:
                raise self._error
        finally:
            self._end()

    def stop(self) -> None:
        """Make `run` or `drain` return once the passes under way are done; from any thread or signal handler."""
        self._stopping.set()
        self._wake.set()

    def _start(self) -> None:
        self._runner: Runner[Task] = Runner(self._pass, self._rearm, self._concurrency)

    def _end(self) -> None:
        self._stopping.set()
        self._changed.cancel()
        self._runner.close()
        for queue in self._queues.values():
            queue.retire()
            for task in queue.tasks:
                with suppress(Exception):  # the store may be what has failed; a note too many does no harm
                    task.bucket.end()

    def _tasks(self) -> list[Task]:
        return [task for queue in self._queues.values() for task in queue.tasks]

    # Which queues

    def _load(self) -> Void:
        """Read which queues there are to combine; returns a watch on all configurations."""
        found, watch = transact(self.db, self._read_queues)
        for name in self._queues.keys() - found.keys():
            self._queues.pop(name).retire()
        for name, (code, problem) in found.items():
            self._use(name, code, problem)
        self._problems = {name: problem for name, (_, problem) in found.items()}
        return watch

    def _read_queues(self, tr: Transaction) -> tuple[dict[str, tuple[QueueCode | None, str]], Void]:
        found: dict[str, tuple[QueueCode | None, str]] = {}
        for name in self.names or queue_names(tr.snapshot):
            config = read_config(tr.snapshot, name)
            flags = read_flags(tr.snapshot, name)
            if flags.paused:
                found[name] = None, f"queue {name!r} is paused ({flags.reason})"
                continue
            try:
                found[name] = self.app.code(config), ""
            except CodeMismatch as error:
                found[name] = None, str(error)
        return found, tr.watch(keys.CHANGED)

    def _use(self, name: str, code: QueueCode | None, problem: str) -> None:
        if problem and self._problems.get(name) != problem and not self._draining:
            log.warning("left alone: %s", problem)
        current = self._queues.get(name)
        if current is not None and current.code != code:
            self._queues.pop(name).retire()
            current = None
        if code is not None and current is None:
            self._queues[name] = QueueTasks(self.db, code, self._limits)

    # Which buckets

    def _arm(self, tasks: Sequence[Task]) -> None:
        """Submit the tasks that are notified, and watch the others."""
        for task, watch in transact(self.db, lambda tr: _watch(tr, tasks)):
            if watch is None:
                self._runner.submit(task)
            else:
                task.watch.hold(watch, partial(self._runner.submit, task))

    def _rearm(self, task: Task) -> None:
        if self._draining or task.retired or self._stopping.is_set():
            return
        try:
            self._arm([task])
        except Exception as error:
            if error_code(error) is None:
                raise
            log.warning("%s cannot be watched: %s", task, error)
            self._wake.set()

    def _notified(self) -> list[Task]:
        """The tasks with notifications, at one read version for all queues."""
        return transact(self.db, self._read_notified)

    def _read_notified(self, tr: Transaction) -> list[Task]:
        rows = {name: tr.snapshot.get_range(*QueueKeys(name).notifications()) for name in self._problems}
        tasks = []
        for name, found in rows.items():
            for row in found:
                if self._problems[name]:
                    raise ConfigurationError(f"updates wait that cannot be combined: {self._problems[name]}")
                _, number = QueueKeys(name).bucket_of_notification(row.key)
                tasks.append(self._queues[name].tasks[number])
        return tasks

    # Passes

    def _pass(self, task: Task) -> float:
        """One pass; returns when the task is to run again."""
        if task.retired or self._stopping.is_set():
            return DONE
        try:
            result = task.bucket.combine()
        except (CodeMismatch, QueueNotConfigured):
            self._wake.set()  # the configuration has changed: read it again
            return DONE
        except Exception as error:  # noqa: BLE001 - whatever it is, it must hold up this bucket only
            return self._failed(task, error)
        task.failures = 0
        self.totals.count(result)
        self._tell(task, result)
        if task.queue.failures.is_broken:
            self._pause(task)
            return DONE
        return _LAST_DELAY if result.foreign else 0.0 if result.more else DONE

    def _tell(self, task: Task, result: PassResult) -> None:
        for encoded, error in result.aside.items():
            log.warning("%s: set aside %s: %s", task, task.shown(encoded), error)
        if result.foreign:
            log.error("%s: a row is stamped later than the read version: was it copied here?", task)

    def _failed(self, task: Task, error: Exception) -> float:
        task.failures += 1
        if self._draining and task.failures >= _DRAIN_TRIES:
            self._error = error
            self._stopping.set()
            return DONE
        delay = min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** (task.failures - 1))
        log.warning("%s: the pass failed, again in %.1f s: %s: %s", task, delay, type(error).__name__, error)
        return delay

    def _pause(self, task: Task) -> None:
        """Pause a queue of which too many keys fail: that is the deployment's fault, not theirs."""
        reason = task.queue.failures.describe()
        name = task.queue.code.config.name
        log.error("queue %r is paused: %s", name, reason)
        task.queue.retire()
        pause(self.db, name, reason)
        self._wake.set()

    def _trim_markers(self) -> None:
        if time.monotonic() - self._trimmed >= TRIM_SECONDS:
            self._trimmed = time.monotonic()
            for name in self._queues:
                trim_markers(self.db, name)


def _watch(tr: Transaction, tasks: Sequence[Task]) -> list[tuple[Task, Any]]:
    """For each task a watch on its notification, or None where there is one."""
    found = [(task, tr.snapshot.get(task.notification)) for task in tasks]
    return [(task, None if value.present() else tr.watch(task.notification)) for task, value in found]
