"""Runs passes over one bucket: commits them, keeps the bucket's cache, adapts their sizes and handles their failures.

FoundationDB has no savepoints: the writes of a failed observer stay in its transaction. So the runner discards the
transaction and runs the pass again in a new one, which reports half of the keys and folds the others, down to one key.
It then sets that key's updates aside in a transaction that calls no observer. From then on the key is a suspect: it is
reported alone, if no other key has work or now and then, so that it does not delay the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from cq.app import QueueCode
from cq.bucket.attempt_notes import Attempts, PoisonKey
from cq.bucket.pace import Pace
from cq.keys import QueueKeys
from cq.passes.batch import Limits
from cq.passes.bucket_cache import BucketCache
from cq.passes.combine_pass import Pass
from cq.passes.merge_pass import MergePass
from cq.passes.pass_result import PassResult
from cq.passes.reporting import ReportFailed
from cq.passes.runs import FIRST_RUN, NO_RUNS, CannotMerge, SortBacklog
from cq.store.api import (
    NOT_COMMITTED,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    Database,
    Transaction,
    error_code,
)
from cq.store.write_sizes import SET_COPIES, WRITE_BYTES

_LEAST_READ: Final = 100_000  # bytes of rows, if a pass could take few of the rows read
_FIRST_RATE: Final = (
    25.0  # assumed bytes that observers write per byte of a written value, before the first report
)
_MAX_SUSPECTS: Final = 1_000
_TRY_SUSPECT_EVERY: Final = 8
_PATIENCE: Final = 5  # transient errors at one key, after which the key counts as failed


class PassRunner:
    """Runs passes over one bucket, in one thread at a time.

    Args:
        db: a database of either store.
        code: the queue's configuration and code.
        bucket: number of the bucket.
        limits: limits of each pass.
        cache: the cache of the bucket from an earlier runner.
    """

    def __init__(
        self,
        db: Database,
        code: QueueCode,
        bucket: int,
        *,
        limits: Limits | None = None,
        cache: BucketCache | None = None,
    ) -> None:
        self.db = db
        self.code = code
        self.bucket = bucket
        self.limits = limits or Limits()
        self.cache = cache or BucketCache()
        self.pace = Pace()
        self.attempts = Attempts(db, code.config, bucket)
        self._max_report = self.limits.max_report
        self._max_take: int | None = None
        self._read_bytes = self.limits.read_bytes
        self._observer_rate = _FIRST_RATE if code.observers else 0.0
        self._suspects: dict[bytes, None] = {}
        self._rejected: dict[bytes, str] = {}
        self._max_backfill = self.limits.max_report
        self._rejected_in_backfill: dict[bytes, str] = {}
        self._backfilling = False
        self._may_sort = (
            True  # False after runs failed or another worker touched them, until the bucket is empty
        )
        self._passes = 0
        self._errors_by_key: Counter[bytes] = Counter()  # transient errors by the first key blamed

    def combine(self, should_stop: Callable[[], bool] = lambda: False) -> PassResult:
        """Run and commit one pass; retry as the store asks, and set failing keys aside.

        `should_stop` is called before each retry; if it returns True, no pass is committed.

        Raises:
            CodeMismatch: the queue now asks for other code.
            ManyFailed: too many keys of the pass cannot be combined; no pass is committed.
            FDBError: an error that the store does not retry, such as a timeout; try again later.
        """
        self._begin_attempt()
        tr = self.db.create_transaction()
        retries = conflicts = 0
        while True:
            self.pace.begin()
            attempt = self._pass(tr)
            try:
                result = attempt.run()
                is_committed = self._commit(tr, attempt, result)
            except SortBacklog:  # the next attempt is a `MergePass`
                self.cache.runs = FIRST_RUN
                tr = self.db.create_transaction()
            except CannotMerge:  # the next attempt is a `Pass`
                self.cache.runs, self._may_sort = NO_RUNS, False
                tr = self.db.create_transaction()
            except PoisonKey as error:
                self._reject(attempt, error)
                tr = self.db.create_transaction()
            except ReportFailed as error:
                self._shrink(attempt, error)
                tr = self.db.create_transaction()
            except Exception as error:  # noqa: BLE001 - `_after_error` distinguishes errors by their code
                conflicts += error_code(error) == NOT_COMMITTED
                tr = self._after_error(tr, attempt, error)
            else:
                if is_committed:
                    result.retries, result.conflicts = retries, conflicts
                    self._apply_result(result, attempt.blamed)
                    return result
                tr = self.db.create_transaction()
            if should_stop():
                return PassResult()
            retries += 1

    def reset_pass_count(self) -> None:
        """Count passes from zero again, as other workers may run passes before the next one."""
        self._passes = 0

    def _begin_attempt(self) -> None:
        if not self.code.is_foreign:
            return
        self.attempts.begin(self.limits.stale_seconds)
        if self.attempts.cautious and not self._passes:
            self._max_report = self._max_take = self._max_backfill = 1

    def _pass(self, tr: Transaction) -> Pass | MergePass:
        self._passes += 1
        limits = self._affordable_limits(self.pace.limits(self.limits))
        # A merging pass cannot set keys aside, run foreign code or take single keys.
        is_unusual = self.code.is_foreign or self._suspects or self._rejected or self._max_take
        may_sort = self._may_sort and not is_unusual
        if may_sort and self.cache.runs.is_any:
            return MergePass(tr, self.code, self.bucket, self.cache, limits)
        backfill = self._backfilling and self._passes % 2 == 0  # alternate, so that a failure has one cause
        return Pass(
            tr,
            self.code,
            self.bucket,
            cache=self.cache,
            limits=replace(limits, read_bytes=min(limits.read_bytes, self._read_bytes)),
            max_report=0 if backfill else min(self._max_report, limits.max_report),
            max_backfill=min(self._max_backfill, limits.max_report) if backfill else 0,
            max_take=1 if self._rejected and self.attempts.cautious else self._max_take,
            suspects=self._suspects,
            try_suspect=self._passes % _TRY_SUSPECT_EVERY == 0,
            rejected=self._rejected,
            rejected_in_backfill=self._rejected_in_backfill,
            may_sort=may_sort,
            before_code=self._before_code,
        )

    def _affordable_limits(self, limits: Limits) -> Limits:
        """Reduce the reports so that the predicted writes of observers keep to their limit."""
        if not self._observer_rate:
            return limits
        most = max(1, int(self.pace.share * limits.observer_bytes / self._observer_rate))
        return replace(limits, reported_bytes=most, load_bytes=min(limits.load_bytes, most))

    def _before_code(self, encoded_keys: list[bytes]) -> None:
        if not self._rejected and not self._rejected_in_backfill:
            self.attempts.note(encoded_keys)

    def _commit(self, tr: Transaction, attempt: Pass | MergePass, result: PassResult) -> bool:
        """Commit a pass and return True, unless updates set aside make it too large; the next one then reads less.

        Updates set aside are written as they were read, in addition to the writes that the limits bound.
        """
        if result.aside and isinstance(attempt, Pass) and attempt.batch is not None:
            backlog = attempt.batch.backlog
            is_divisible = len(backlog.rows) + len(backlog.broken) > 1
            if is_divisible and tr.get_approximate_size().wait() > self.limits.transaction_bytes:
                self._read_bytes = min(self._read_bytes, backlog.size) // 2
                return False
        tr.commit().wait()
        return True

    # When a pass fails

    def _after_error(self, tr: Transaction, attempt: Pass | MergePass, error: Exception) -> Any:
        """Return the transaction for the next try; raise the error if a retry cannot help."""
        code = error_code(error)
        if code is None:
            raise error
        self.pace.failed(code)
        if self._is_fault_of_keys(attempt, code):
            self._shrink(attempt, error)
            return self.db.create_transaction()
        try:
            tr.on_error(code).wait()
        except Exception as not_retryable:
            if error_code(not_retryable) is None or not attempt.is_reporting:
                raise
            return self.db.create_transaction()  # an observer raised it: retry until `_PATIENCE` is used up
        return tr

    def _is_fault_of_keys(self, attempt: Pass | MergePass, code: int) -> bool:
        """Return whether the error calls for a smaller pass instead of the same one again."""
        if 2000 <= code < 3000:  # errors of the client: too large, illegal keys, bad operations
            return True
        slow = code == TRANSACTION_TOO_OLD
        if slow and len(attempt.blamed) > 1:
            return True
        may_be = attempt.is_reporting or (slow and bool(self.code.observers))
        if not may_be or not attempt.blamed:
            return False
        # Other errors do not count: under contention many occur that no key causes.
        self._errors_by_key[attempt.blamed[0]] += 1
        return self._errors_by_key[attempt.blamed[0]] >= _PATIENCE

    def _shrink(self, attempt: Pass | MergePass, error: Exception) -> None:
        """Make the next pass smaller than the failed one; raise the error if it cannot be smaller."""
        self.cache.invalidate()
        if isinstance(attempt, MergePass):
            self._may_sort = False  # ordinary passes find the key at fault
            return
        blamed = attempt.blamed
        taken = len(attempt.batch.updates) if attempt.batch else 0
        too_large = error_code(error) == TRANSACTION_TOO_LARGE
        # Take fewer rows first: with many folded keys the size does not depend on the reported ones.
        if too_large and taken > max(1, len(blamed)):
            self._max_take = taken // 2
        elif len(blamed) > 1 and attempt.backfill:
            self._max_backfill = len(blamed) // 2
        elif len(blamed) > 1:
            self._max_report = len(blamed) // 2
        elif blamed and attempt.backfill:
            self._rejected_in_backfill = {blamed[0]: str(error)}
        elif blamed:
            self._rejected = {blamed[0]: str(error)}
        elif taken > 1:
            self._max_take = taken // 2
        else:
            raise error

    def _reject(self, attempt: Pass | MergePass, error: PoisonKey) -> None:
        """Set aside a key that has killed workers; in a backfill, once it is the next key."""
        if attempt.backfill is None:
            self._rejected = {error.encoded_key: str(error)}
        elif len(attempt.backfill.keys) == 1:
            self._rejected_in_backfill = {error.encoded_key: str(error)}
        else:
            self._max_backfill = 1

    # When it has succeeded

    def _apply_result(self, result: PassResult, reported: Sequence[bytes]) -> None:
        """Adapt the cache and the sizes of passes to a committed pass that reported these keys."""
        self.pace.committed()
        self._errors_by_key.clear()
        if result.invalidates_cache or not result.cache_is_valid:
            self.cache.invalidate()
        if result.token:
            self.cache.update(result.token, result.values, result.staged, result.runs)
        self._rejected = {}
        self._rejected_in_backfill = {}
        self._backfilling = result.backfilling
        self._update_suspects(result)
        if result.observer_changes and reported:
            prefix = len(QueueKeys(self.code.config.name).value(b""))
            cost = WRITE_BYTES + SET_COPIES * (prefix + sum(map(len, reported)) / len(reported))
            rate = result.observer_bytes / (result.observer_changes * cost)
            self._observer_rate = max(
                0.1, rate if rate > self._observer_rate else 0.7 * self._observer_rate + 0.3 * rate
            )
        if result.reported or result.purged:
            self._max_report = min(2 * self._max_report, self.limits.max_report)
        before, self._read_bytes = self._read_bytes, self.limits.read_bytes
        if result.cut_at is not None:  # rows read but not taken are read again
            self._read_bytes = min(max(_LEAST_READ, 5 * result.cut_at // 4), self._read_bytes)
        elif result.aside:  # more keys to set aside may follow
            self._read_bytes = min(max(_LEAST_READ, 2 * before), self._read_bytes)
        if result.backfilled:
            self._max_backfill = min(2 * self._max_backfill, self.limits.max_report)
        if self._max_take is not None:
            self._max_take = 2 * self._max_take if self._max_take < self.limits.max_report else None
        if not result.more:
            self._may_sort = True
            self._forget_deaths()

    def _update_suspects(self, result: PassResult) -> None:
        """Add the keys that have failed, remove those that succeeded."""
        for encoded in self._suspects.keys() & result.values.keys():
            del self._suspects[encoded]
        for encoded in result.aside:
            self._suspects[encoded] = None
            if len(self._suspects) > _MAX_SUSPECTS:
                del self._suspects[next(iter(self._suspects))]

    def _forget_deaths(self) -> None:
        """Clear the notes of dead workers; on an error of the store leave that to a later pass."""
        try:  # the pass is committed: its result must be returned
            self.attempts.forget_deaths()
        except Exception as error:
            if error_code(error) is None:
                raise
