"""Runs passes over one bucket: commits them, keeps the bucket's cache, adapts their sizes and handles their failures.

FoundationDB has no savepoints: the writes of a failed observer stay in its transaction. So the runner discards the
transaction and runs the pass again in a new one, which reports half of the keys and folds the others, down to one key.
It then sets that key's updates aside in a transaction that calls no observer. From then on the key is a suspect: it is
reported alone, if no other key has work or now and then, so that it does not delay the others.

A pass should take less than a second: a transaction lives for five, and other workers wait for the bucket. So passes
are smaller after a failure or a slow pass, and larger after a success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from cq import runtime
from cq.app import QueueCode
from cq.bucket.attempt_notes import Attempts, PoisonKey
from cq.bucket.quarantine import Quarantine
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.passes.bucket_cache import NO_RUNS, BucketCache
from cq.passes.combine_pass import Pass
from cq.passes.effects import PassResult
from cq.passes.plan import Limits, PassPlan
from cq.passes.reporting import ReportFailed
from cq.plain_text import message_of
from cq.store.api import (
    NOT_COMMITTED,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    Database,
    Transaction,
    error_code,
)
from cq.store.sizes import SET_COPIES, WRITE_BYTES

SLOW_SECONDS: Final = 1.0
_MIN_SHARE: Final = 1 / 64
# If passes are slow at any size, smaller ones would only be more of them.
_MIN_SHARE_WHEN_SLOW: Final = 1 / 16
_REFUSALS: Final = (NOT_COMMITTED, TRANSACTION_TOO_OLD)
_FIRST_REQUESTS: Final = 1_000
"""Limit of the requests that the first pass decides: how long a decider takes is not known yet."""
_MAX_ISOLATED: Final = 8
"""Failing requests in a row that are set aside one by one: an observer that always raises would take hours."""
_LEAST_READ: Final = 100_000  # bytes of rows, if a pass could take few of the rows read
_BETWEEN_EXPIRIES: Final = 2
"""Passes with other work between two that delete due keys, if rows are queued: one of them may be a backfill."""
LOW_RATE: Final = 0.5
HIGH_RATE: Final = 25.0
"""Bytes that observers write per byte of a written value, as assumed before the first report."""


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
        if code.decider is not None:
            self.size.begin_with(_FIRST_REQUESTS)
        self.quarantine = Quarantine()
        self.attempts = Attempts(db, code.config, number)
        self._backfilling = False
        # False after runs failed or another worker touched them, until the bucket is empty.
        self._may_sort = True
        self._passes = 0
        self._since_expiry = _BETWEEN_EXPIRIES  # passes after the last one that deleted due keys

    def combine(self, should_stop: Callable[[], bool] = lambda: False) -> PassResult:
        """Run and commit one pass; retry as the store asks, and set failing keys aside.

        `should_stop` is called before each retry; if it returns True, no pass is committed.

        Raises:
            CodeMismatch: the queue now asks for other code.
            FeedNotConfigured, QueueNotConfigured: what a built-in observer writes to was deleted.
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
        max_take = size.max_take
        if quarantine.rejected and self.attempts.cautious:  # which request has killed workers is not known
            max_take = 1 if self.code.decider is None else None
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
            rejected_at=quarantine.rejected_at,
            rejected_in_backfill=quarantine.rejected_in_backfill,
            rejected_in_expiry=quarantine.rejected_in_expiry,
            expires_first=self._since_expiry >= _BETWEEN_EXPIRIES,
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
            if error_code(not_retryable) is None or not (attempt.is_reporting or _is_too_slow(attempt, code)):
                raise
            # Code of the application is the cause: retry while `Quarantine.is_failed` allows.
            return self.db.create_transaction()
        return tr

    def _is_fault_of_keys(self, attempt: Pass, code: int) -> bool:
        """Return whether the error calls for fewer keys instead of the same pass again."""
        if 2000 <= code < 3000:  # errors of the client: too large, illegal keys, bad operations
            return True
        slow = _is_too_slow(attempt, code)
        if slow and max(len(attempt.blamed), attempt.taken) > 1:
            return True
        may_be = attempt.is_reporting or (
            slow and (bool(self.code.observers) or self.code.runs_application_code)
        )
        # Other errors do not count: under contention many occur that no key causes.
        return may_be and bool(attempt.blamed) and self.quarantine.is_failed(attempt.blamed[0])

    def _shrink(self, attempt: Pass, error: Exception) -> None:
        """Make the next pass smaller than the failed one, or let it set the only key aside; else raise the error."""
        self.cache.invalidate()
        self.quarantine.count_tries(attempt.blamed)
        if attempt.is_sorting:
            self._may_sort = False  # the usual way finds the key at fault
        elif not self.size.halve_keys(attempt, error_code(error)):
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
        failure = (
            error.failure if isinstance(error, ReportFailed) else KeyFailure.of(error, text=message_of(error))
        )
        self.quarantine.reject(
            encoded,
            failure,
            attempt.view.state.token,
            in_backfill=attempt.is_backfilling,
            in_expiry=attempt.is_expiring,
        )

    # When it has succeeded

    def _apply_result(self, attempt: Pass, result: PassResult) -> None:
        """Adapt the cache and the next passes to a committed pass."""
        self.size.committed(result, attempt.blamed, self.code.config.name)
        if self.quarantine.is_any or result.aside:
            self.quarantine.committed(result)
        self._since_expiry = 0 if attempt.is_expiring else self._since_expiry + 1
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


def _is_too_slow(attempt: Pass, code: int) -> bool:
    """Return whether its transaction is too old; if code takes still longer, a cluster's time limit comes first."""
    if code == TRANSACTION_TIMED_OUT:
        return attempt.is_slow or attempt.is_reporting
    return code == TRANSACTION_TOO_OLD


def _first_rate(code: QueueCode) -> float:
    """Return the bytes that observers write per byte of a written value, as assumed before the first report.

    The observer of totals writes a row with each update: far less than a value of a fixed size costs.
    """
    if not code.observers:
        return 0.0
    return HIGH_RATE if code.is_heard or code.config.value.grows else LOW_RATE


class KeyLimit:
    """A limit on a number of keys, up to `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most

    def halve(self, failed: int) -> None:
        """Allow half of the number of keys of a failed pass."""
        self.now = max(1, failed // 2)

    def double(self) -> None:
        """Allow twice as many keys, after a success."""
        self.now = min(2 * self.now, self.most)


class PassSize:
    """The size of the next pass over one bucket.

    Each size is halved by a failure that it may have caused, and doubled by a success, up to the given limits.

    Args:
        given: the limits of each pass.
        observer_rate: bytes that observers write per byte of a written value, before the first report; 0: no observers.
        clock: returns the time in seconds.

    Attributes:
        share: the share of the bytes and keys of the given limits that a pass may use now.
        reports, backfills, takes: the number of keys that a pass may report, backfill, and take from the rows. A pass
            with a decider takes requests instead of keys.
        isolated: the number of requests that have failed alone since a pass last reported a key.
    """

    def __init__(
        self, given: Limits, *, observer_rate: float = 0.0, clock: Callable[[], float] = runtime.monotonic
    ) -> None:
        self.given = given
        self.share = 1.0
        self.reports, self.backfills = KeyLimit(given.max_report), KeyLimit(given.max_report)
        self.takes = KeyLimit(max(2, given.max_report))  # so that a limit of one key is a limit
        self.isolated = 0
        self._read_bytes = given.read_bytes
        self._observer_rate = observer_rate
        self._clock = clock
        self._begun = clock()

    def begin(self) -> None:
        """Note the start of a pass."""
        self._begun = self._clock()

    def begin_with(self, requests: int) -> None:
        """Begin with this number of requests; each fast pass may take twice as many as the one before."""
        self.takes.now = min(requests, self.takes.most)

    def begin_small(self) -> None:
        """Begin with a single key, as a worker seems to have died with one of the keys."""
        self.reports.now = self.backfills.now = self.takes.now = 1

    @property
    def max_take(self) -> int | None:
        """The number of keys or requests to take from the rows; None: no limit, as no pass has failed of late."""
        return None if self.takes.now == self.takes.most else self.takes.now

    def limits(self) -> Limits:
        """Return the limits of the next pass."""
        given, share = self.given, self.share
        limits = given
        if share < 1.0:
            limits = replace(
                given,
                read_bytes=int(given.read_bytes * share),
                load_bytes=int(given.load_bytes * share),
                write_bytes=int(given.write_bytes * share),
                repack_bytes=int(given.repack_bytes * share),
                max_report=max(1, int(given.max_report * share)),
            )
        if self._read_bytes < limits.read_bytes:
            limits = replace(limits, read_bytes=self._read_bytes)
        if self._observer_rate:
            # Report only as much as keeps the predicted writes of observers to their limit.
            most = max(1, int(share * given.observer_bytes / self._observer_rate))
            limits = replace(limits, reported_bytes=most, load_bytes=min(limits.load_bytes, most))
        return limits

    def refused(self, code: int) -> None:
        """Halve the share if the store has refused a pass as too old or in conflict, and no key is to blame."""
        if code in _REFUSALS:
            self._halve_share(_MIN_SHARE)

    def halve_keys(self, failed: Pass, code: int | None) -> bool:
        """Halve the number of keys that a failed pass has reported or taken; return False if it was a single one.

        In a queue with a decider, the requests of a single key are halved too, down to the one at fault. After eight
        of these in a row, all requests that a failed pass has taken are set aside: twice as many each time.

        `code` is that of the store's error, None for another one.
        """
        blamed, taken = len(failed.blamed), failed.taken
        # Take fewer rows first: with many folded keys neither size nor time depend on the reported ones.
        is_too_large = code == TRANSACTION_TOO_LARGE and taken > blamed
        is_too_slow = code in (TRANSACTION_TOO_OLD, TRANSACTION_TIMED_OUT) and taken >= blamed
        if taken > 1 and (is_too_large or is_too_slow or not blamed):
            self.takes.halve(taken)
        elif blamed > 1:
            (self.backfills if failed.is_backfilling else self.reports).halve(blamed)
        elif taken and failed.view.code.decider is not None and self.isolated < _MAX_ISOLATED:
            self.takes.halve(taken)
            self.isolated += taken == 1
            return taken > 1
        else:
            return False
        return True

    def halve_reads(self, read: int) -> None:
        """Read half of these bytes of rows, as the updates to set aside have made the transaction too large."""
        self._read_bytes = min(self._read_bytes, read) // 2

    def committed(self, result: PassResult, reported: Sequence[bytes], name: str) -> None:
        """Adapt the sizes to a committed pass over a bucket of queue `name` that has reported these keys."""
        seconds = self._clock() - self._begun
        if result.reported:
            self.isolated = 0
        if seconds > SLOW_SECONDS:
            self._halve_share(_MIN_SHARE_WHEN_SLOW)
        elif 2 * seconds < SLOW_SECONDS:
            self.share = min(1.0, 2 * self.share)
        if seconds < 2 * SLOW_SECONDS:  # twice as many might take longer than a transaction lives
            if result.reported or result.purged or result.expired:
                self.reports.double()
            if result.backfilled:
                self.backfills.double()
            self.takes.double()
        before, self._read_bytes = self._read_bytes, self.given.read_bytes
        if result.cut_at is not None:  # rows read but not taken are read again
            self._read_bytes = min(max(_LEAST_READ, 5 * result.cut_at // 4), self._read_bytes)
        elif result.aside:  # more keys to set aside may follow
            self._read_bytes = min(max(_LEAST_READ, 2 * before), self._read_bytes)
        if result.observer_changes and reported:
            self._learn_rate(result, reported, len(QueueKeys(name).value(b"")))

    def _learn_rate(self, result: PassResult, reported: Sequence[bytes], prefix: int) -> None:
        cost = WRITE_BYTES + SET_COPIES * (prefix + sum(map(len, reported)) / len(reported))
        rate, known = result.observer_bytes / (result.observer_changes * cost), self._observer_rate
        self._observer_rate = max(0.1, rate if rate > known else 0.7 * known + 0.3 * rate)

    def _halve_share(self, least: float) -> None:
        self.share = max(min(least, self.share), self.share / 2)
