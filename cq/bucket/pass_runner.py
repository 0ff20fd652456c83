"""Runs passes over one bucket: commits them, keeps the bucket's cache, adapts their sizes and handles their failures.

FoundationDB has no savepoints: the writes of a failed observer stay in its transaction. So the runner discards the
transaction and runs the pass again in a new one, which reports half of the keys and folds the others, down to one key.
It then sets that key's updates aside in a transaction that calls no observer. From then on the key is a suspect: it is
reported alone, if no other key has work or now and then, so that it does not delay the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq.app import QueueCode
from cq.bucket.attempt_notes import Attempts, PoisonKey
from cq.bucket.expiry_turns import ExpiryTurns
from cq.bucket.pass_size import HIGH_RATE, LOW_RATE, PassSize
from cq.bucket.quarantine import Quarantine
from cq.failure import KeyFailure
from cq.passes.bucket_cache import NO_RUNS, BucketCache
from cq.passes.combine_pass import Pass
from cq.passes.effects import PassResult
from cq.passes.plan import Limits, PassPlan
from cq.passes.reporting import ReportFailed
from cq.store.api import (
    NOT_COMMITTED,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    Database,
    Transaction,
    error_code,
)


class PassRunner:
    """Runs passes over one bucket, in one thread at a time.

    Args:
        db: a database of either store.
        code: the queue's configuration and code.
        number: number of the bucket.
        limits: limits of each pass.
        cache: the cache of the bucket from an earlier runner.
    """

    def __init__(
        self,
        db: Database,
        code: QueueCode,
        number: int,
        *,
        limits: Limits | None = None,
        cache: BucketCache | None = None,
    ) -> None:
        self.db = db
        self.code = code
        self.number = number
        self.cache = cache or BucketCache()
        self.limits = limits or Limits()
        self.size = PassSize(self.limits, observer_rate=_first_rate(code))
        self.quarantine = Quarantine()
        self.expiry = ExpiryTurns()
        self.attempts = Attempts(db, code.config, number)
        self._backfilling = False
        # False after runs failed or another worker touched them, until the bucket is empty.
        self._may_sort = True
        self._passes = 0

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
            self.size.begin()
            attempt = self._pass(tr)
            try:
                result = attempt.run()
                is_committed = self._commit(tr, attempt, result)
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
                    self._apply_result(attempt, result)
                    return result
                tr = self.db.create_transaction()
            if should_stop():
                return PassResult()
            retries += 1

    def reset_pass_count(self) -> None:
        """Count passes from zero again, as other workers may run passes before the next one."""
        self._passes = 0

    def _begin_attempt(self) -> None:
        if not self.code.runs_application_code:
            return
        self.attempts.begin(self.limits.stale_seconds)
        if self.attempts.cautious and not self._passes:
            self.size.begin_small()

    def _pass(self, tr: Transaction) -> Pass:
        self._passes += 1
        size, quarantine, limits, config = self.size, self.quarantine, self.size.limits(), self.code.config
        is_rejecting = bool(quarantine.rejected or quarantine.rejected_in_backfill)
        # Alternate between reports and a backfill, so that a failure has one cause.
        is_backfill = self._backfilling and self._passes % 2 == 0
        max_report = 0 if is_backfill or is_rejecting else min(size.reports.now, limits.max_report)
        max_backfill = min(size.backfills.now, limits.max_report) if is_backfill and not is_rejecting else 0
        max_take = 1 if quarantine.rejected and self.attempts.cautious else size.max_take
        # Runs are not for an application's code, and no key of them can be taken alone or set aside. A merge changes no
        # index of an expiry, and adds to no level.
        is_unusual = (
            self.code.observers or self.code.runs_application_code or config.expiry or config.is_timed
        )
        plan = PassPlan(
            limits=limits,
            max_report=max_report,
            max_backfill=1 if quarantine.rejected_in_backfill else max_backfill,
            max_take=max_take,
            suspects=quarantine.suspects,
            try_suspect=bool(quarantine.suspects) and quarantine.is_turn_of_suspect(self._passes),
            rejected=quarantine.rejected,
            rejected_in_backfill=quarantine.rejected_in_backfill,
            rejected_in_expiry=quarantine.rejected_in_expiry,
            checks_due=config.expiry is not None and self.expiry.checks_due,
            expires_first=config.expiry is None or self.expiry.expires_first,
            may_sort=self._may_sort and not (is_unusual or quarantine.suspects or is_rejecting or max_take),
        )
        return Pass(tr, self.code, self.number, plan, self.cache, self._before_code)

    def _before_code(self, encoded_keys: list[bytes]) -> None:
        if not self.quarantine.rejects:
            self.attempts.note(encoded_keys)

    def _commit(self, tr: Transaction, attempt: Pass, result: PassResult) -> bool:
        """Commit a pass and return True, unless updates set aside make it too large; the next one then reads less.

        Updates set aside are written as they were read, in addition to the writes that the limits bound.
        """
        if result.aside:
            backlog = attempt.view.backlog
            is_divisible = len(backlog.rows) + len(backlog.broken) > 1
            if is_divisible and tr.get_approximate_size().wait() > self.limits.transaction_bytes:
                self.size.halve_reads(backlog.size)
                return False
        tr.commit().wait()
        return True

    # When a pass fails

    def _after_error(self, tr: Transaction, attempt: Pass, error: Exception) -> Any:
        """Return the transaction for the next try; raise the error if a retry cannot help."""
        code = error_code(error)
        if code is None:
            raise error
        if self._is_fault_of_keys(attempt, code):
            self._shrink(attempt, error)
            return self.db.create_transaction()
        self.size.refused(code)
        try:
            tr.on_error(code).wait()
        except Exception as not_retryable:
            if error_code(not_retryable) is None or not attempt.is_reporting:
                raise
            # An observer raised it: retry while `Quarantine.is_failed` allows.
            return self.db.create_transaction()
        return tr

    def _is_fault_of_keys(self, attempt: Pass, code: int) -> bool:
        """Return whether the error calls for fewer keys instead of the same pass again."""
        if 2000 <= code < 3000:  # errors of the client: too large, illegal keys, bad operations
            return True
        slow = code == TRANSACTION_TOO_OLD
        if slow and len(attempt.blamed) > 1:
            return True
        may_be = attempt.is_reporting or (slow and bool(self.code.observers))
        # Other errors do not count: under contention many occur that no key causes.
        return may_be and bool(attempt.blamed) and self.quarantine.is_failed(attempt.blamed[0])

    def _shrink(self, attempt: Pass, error: Exception) -> None:
        """Make the next pass smaller than the failed one, or let it set the only key aside; else raise the error."""
        self.cache.invalidate()
        self.quarantine.count_tries(attempt.blamed)
        if attempt.is_sorting:
            self._may_sort = False  # the usual way finds the key at fault
        elif not self.size.halve_keys(attempt, is_too_large=error_code(error) == TRANSACTION_TOO_LARGE):
            if not attempt.blamed:
                raise error
            self._reject_key(attempt, attempt.blamed[0], error)

    def _reject(self, attempt: Pass, error: PoisonKey) -> None:
        """Set aside a key that has killed workers; in a backfill, once it is the next key."""
        if attempt.is_backfilling and len(attempt.blamed) > 1:
            self.size.backfills.now = 1
        else:
            self._reject_key(attempt, error.encoded_key, error)

    def _reject_key(self, attempt: Pass, encoded: bytes, error: Exception) -> None:
        """Let the next pass set the key aside, in the same kind of step; raise the error if it must be reported."""
        if attempt.is_expiring and any(each.keeps_totals for each in self.code.config.observers):
            raise error  # a slice that leaves a window without a report would stay in the totals: try again later
        failure = error.failure if isinstance(error, ReportFailed) else KeyFailure.of(error, text=str(error))
        self.quarantine.reject(
            encoded, failure, in_backfill=attempt.is_backfilling, in_expiry=attempt.is_expiring
        )

    # When it has succeeded

    def _apply_result(self, attempt: Pass, result: PassResult) -> None:
        """Adapt the cache and the next passes to a committed pass."""
        self.size.committed(result, attempt.blamed, self.code.config.name)
        if self.quarantine.is_any or result.aside:
            self.quarantine.committed(result)
        if attempt.view.expiry is not None:
            self.expiry.committed(attempt.view.expiry, has_expired=attempt.is_expiring)
        if result.invalidates_cache or not result.cache_is_valid:
            self.cache.invalidate()
        if result.token:
            self.cache.update(result.token, result.values, result.staged, result.runs)
        self._backfilling = result.backfilling
        if result.lost_runs:
            self.cache.runs, self._may_sort = NO_RUNS, False
        if not result.more:
            self._may_sort = True
            if self.attempts.cautious:
                self._forget_deaths()

    def _forget_deaths(self) -> None:
        """Clear the notes of dead workers; on an error of the store leave that to a later pass."""
        try:  # the pass is committed: its result must be returned
            self.attempts.forget_deaths()
        except Exception as error:
            if error_code(error) is None:
                raise


def _first_rate(code: QueueCode) -> float:
    """Return the bytes that observers write per byte of a written value, as assumed before the first report.

    The observer of totals writes a row with each update: far less than a value of a fixed size costs.
    """
    if not code.observers:
        return 0.0
    return HIGH_RATE if code.is_heard or code.config.value.grows else LOW_RATE
