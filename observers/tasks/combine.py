"""The tasks that combine queued updates, one for each bucket."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from cq import runtime
from cq.admin.backfill import publish_generations
from cq.admin.conversion import finish_conversion
from cq.admin.flags import pause_failing
from cq.app import QueueCode
from cq.bucket.failure_share import FailureShare
from cq.bucket.pass_runner import PassRunner
from cq.errors import CorruptData, CqError
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.observers.scheduling.members import TaskId
from cq.observers.scheduling.runner import CAUGHT_UP, DONE
from cq.observers.scheduling.task import Task, WorkPart
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.passes.bucket_cache import BucketCache
from cq.passes.effects import ManyFailed, PassResult
from cq.passes.plan import LOCAL_LIMITS, Limits
from cq.store.api import Database, Transaction, error_code, is_local
from cq.store.transact import transact

log = logging.getLogger("cq.worker")


BLOCKED_SECONDS: Final = 0.1
"""How soon to retry a bucket that must wait until the queue's former buckets are drained."""


_MEMORY_BYTES: Final = 64_000_000  # of all caches of a worker together
LOCAL_PASSES: Final = 1
"""How many passes over a queue a worker runs at once in a local store, if they call no code of the application.

A local store has no latency to hide, and passes in several threads compete for the interpreter and the processor's
caches, which costs a sixth of the time. Code of an application may block, and must not delay the other buckets.
"""


class Paused(CqError):
    """This process has paused the queue, and is about to read that in its configuration."""


class CombineTask(Task):
    """The task that runs passes over one bucket."""

    def __init__(self, passes: PassRunner, failures: FailureShare, totals: WorkerCounts) -> None:
        config = passes.code.config
        self.passes = passes
        self.notification = QueueKeys(config.name).notification(config.generation, passes.number)
        self.notification_prefix = self.notification[:-4]  # without the bucket's number
        self.progress_key = QueueKeys(config.name).state(config.generation, passes.number)
        if _is_one_by_one(passes.db, passes.code):
            self.max_parallel = LOCAL_PASSES
        self.waited_seconds = 0.0
        self.is_awaited = config.decider is not None
        self.calls_application = passes.code.runs_application_code
        self._failures = failures
        self._totals = totals
        self._is_left = False

    def __str__(self) -> str:
        return f"bucket {self.passes.number} of queue {self.passes.code.config.name!r}"

    def run(self) -> float:
        """Run one pass; returns as `Task.run`.

        Raises what `PassRunner.combine` raises. In addition: `Paused` if too many keys fail, so that it has paused the
        queue; `CorruptData` if the first remaining row is stamped later than the store's versions.
        """
        if self._failures.is_paused:
            raise Paused
        begun = runtime.monotonic()
        try:
            # Stops retrying when the worker releases the task.
            result = self.passes.combine(lambda: self._is_left)
        except ManyFailed as error:
            self._pause(str(error), error.first)
        self.waited_seconds = result.age
        if result.has_worked:
            seconds = runtime.monotonic() - begun
            self._totals.count(self.passes.code.config.name, result, seconds)
            self._emit(result, seconds)
        done = result.reported + result.backfilled + result.purged + result.expired
        self._failures.report(done, result.aside)
        if self._failures.is_broken:
            self._pause(self._failures.describe(), self._failures.latest)
        if result.completed:
            # This was the last part of the bucket's backfill or conversion; the other buckets may be done, too.
            publish_generations(self.passes.db, self.passes.code.config.name)
            finish_conversion(self.passes.db, self.passes.code.config.name)
        if result.found_copied:  # the bucket cannot advance past this row
            raise CorruptData(
                "a row is stamped later than the read version: was it copied here from elsewhere?"
            )
        if result.blocked:
            return BLOCKED_SECONDS
        return 0.0 if result.more else CAUGHT_UP if result.has_worked else DONE

    def enter(self, worker: bytes) -> None:
        self._is_left = False

    def leave(self) -> None:
        self._is_left = True

    def end(self) -> None:
        """Begin anew if it is acquired again. `end_attempts` clears the notes of attempts of all buckets at once."""
        self.passes.reset_pass_count()

    def _emit(self, result: PassResult, seconds: float) -> None:
        queue, bucket = self.passes.code.config.name, self.passes.number
        aside = result.aside | result.failed
        emit(
            "pass_done",
            queue=queue,
            bucket=bucket,
            seconds=seconds,
            rows=result.rows,
            updates=result.updates,
            reported=result.reported,
            folded=result.folded,
            told=result.backfilled,
            purged=result.purged,
            repeated=result.repeated,
            aside=len(aside),
            conflicts=result.conflicts,
            retries=result.retries,
        )
        if result.decided:
            waited = result.waited + seconds
            emit(
                "requests_decided",
                queue=queue,
                bucket=bucket,
                decided=result.decided,
                refused=result.refused,
                waited=waited,
            )
        if result.expired:
            emit("keys_expired", queue=queue, bucket=bucket, expired=result.expired)
        for encoded, failure in aside.items():
            emit(
                "key_set_aside",
                queue=queue,
                bucket=bucket,
                key=self._shown(encoded),
                error=failure.error,
                code=failure.code,
                trace=list(failure.trace),
            )

    def _shown(self, encoded: bytes) -> str:
        if not encoded:
            return "a row"
        try:
            return ascii(self.passes.code.config.key.decode(encoded))
        except (CorruptData, ValueError):
            return ascii(encoded)

    def _pause(self, reason: str, latest: KeyFailure) -> NoReturn:
        """Pause the queue: so many keys fail that the deployment is broken, not the data."""
        name = self.passes.code.config.name
        self._failures.is_paused = True  # stops the other buckets at once, before they read the configuration
        pause_failing(self.passes.db, name, reason)
        emit("queue_broken", queue=name, reason=reason, code=latest.code, trace=list(latest.trace))
        raise Paused


class QueuePasses:
    """Makes the tasks that combine the buckets of one worker's queues.

    Args:
        db: a database of either store.
        totals: the worker's counters.
        limits: the limits of a pass; None: by the kind of store.
    """

    def __init__(self, db: Database, totals: WorkerCounts, limits: Limits | None) -> None:
        self._db, self._totals, self._limits = db, totals, limits
        self._failures: dict[str, FailureShare] = {}

    def parts(self, codes: Mapping[str, QueueCode], names: Collection[str]) -> Iterator[WorkPart]:
        """The work for queues with these configurations and functions; `names` also has those left alone at present.

        A queue has a part for each shape: the former one too, while a rebucketing drains its buckets.
        """
        # The failures of queues left alone begin anew.
        self._failures = {
            name: share for name, share in self._failures.items() if name in codes and not share.is_paused
        }
        for name, code in codes.items():
            failures = self._failures.setdefault(name, FailureShare())
            memory = _MEMORY_BYTES // len(names) // code.config.buckets
            for shape in code.shapes:
                first = TaskId.of_bucket(name, shape.config.generation)
                yield WorkPart(first, (code.config, failures), partial(self._make, shape, failures, memory))

    def _make(self, shape: QueueCode, failures: FailureShare, memory: int) -> list[CombineTask]:
        is_one_bucket = is_local(self._db) and shape.config.buckets == 1
        is_large = is_one_bucket or _is_one_by_one(self._db, shape)
        limits = LOCAL_LIMITS if self._limits is None and is_large else self._limits
        tasks = []
        for number in range(shape.config.buckets):
            passes = PassRunner(self._db, shape, number, limits=limits, cache=BucketCache(memory))
            tasks.append(CombineTask(passes, failures, self._totals))
        return tasks


def _is_one_by_one(db: Database, code: QueueCode) -> bool:
    """Whether `LOCAL_PASSES` applies to a queue."""
    return is_local(db) and not code.runs_application_code


def passes_at_once(db: Database, concurrency: int) -> int:
    """Maximum number of concurrent passes of a worker that runs up to `concurrency` tasks at once."""
    return min(LOCAL_PASSES, concurrency) if is_local(db) else concurrency


def end_attempts(db: Database, tasks: Sequence[CombineTask], seconds: float) -> None:
    """Clear the notes of attempts of buckets that the worker has released; tries for up to `seconds`."""
    begun = [task.passes.attempts for task in tasks if task.passes.attempts.begun]
    if not begun:
        return

    def end(tr: Transaction) -> None:  # one transaction for all buckets: the worker must release them quickly
        tr.options.set_timeout(int(seconds * 1000))
        for attempts in begun:
            attempts.end(tr)

    try:
        transact(db, end)
    except Exception as error:
        if error_code(error) is None:
            raise
        # A remaining note only makes other workers cautious for a while, as if this worker had died.
        log.warning("the notes of attempts were not cleared: %s", error)
    for attempts in begun:
        attempts.begun = False
