"""One bucket as a worker sees it: committed passes, what it remembers and has learnt, and what to do when a pass fails.

FoundationDB has no savepoints: what a failed observer wrote stays in its transaction, so the transaction is thrown
away and the pass is run again in a new one, reporting half of the keys and folding the rest, down to one. That
key's updates are then set aside in a transaction that calls no observer. A key that has failed is from then on
reported last and alone, so that it costs the others nothing.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from cq import codec
from cq.app import QueueCode
from cq.combining import Limits, Pass, PassResult, ReportFailed
from cq.keys import QueueKeys
from cq.state import Memory
from cq.store.api import TRANSACTION_TOO_OLD, Database, Transaction, error_code
from cq.store.transact import transact

WRITE_BYTES: Final = 500_000
"""What the observers of one pass may write, as predicted from what their reports have cost so far."""
MAX_REPORT: Final = 5_000
_FIRST_COST: Final = 5_000  # bytes that observers write for a change, before any has been seen
_MAX_SUSPECTS: Final = 1_000
_TOO_OLD_IS_FAILURE: Final = 5
_DEATHS_BEFORE_CONDEMNING: Final = 5


class FailureShare:
    """How many of a queue's keys fail in this process: above a share it is the deployment that is broken, not the data.

    Thread-safe. `is_broken` from ten different failed keys on, when they are over a fifth of all keys seen lately.
    """

    MIN_FAILED = 10
    SHARE = 0.2
    _WINDOW = 10_000

    def __init__(self) -> None:
        self._lock = Lock()
        self._failed: dict[bytes, str] = {}
        self._reported = 0

    def report(self, reported: int, failed: dict[bytes, str]) -> None:
        """Count the keys of a committed pass."""
        with self._lock:
            self._reported += reported
            self._failed.update(failed)
            if self._reported > self._WINDOW:
                self._reported //= 2
                self._failed = dict(list(self._failed.items())[len(self._failed) // 2 :])

    @property
    def is_broken(self) -> bool:
        """Whether to pause the queue rather than to go on setting keys aside."""
        with self._lock:
            failed = len(self._failed)
            return failed >= self.MIN_FAILED and failed > self.SHARE * (failed + self._reported)

    def describe(self) -> str:
        """The reason for a pause, with the latest error."""
        with self._lock:
            failed, latest = len(self._failed), next(reversed(self._failed.values()), "")
            return f"{failed} of the last {failed + self._reported} keys failed, the latest with: {latest}"


class Bucket:
    """Runs passes over one bucket; to be used by one thread at a time.

    Args:
        db: a database of either store.
        code: the queue's configuration and code.
        bucket: which one.
        failures: shared by all buckets of the queue.
        limits: of each pass.
    """

    def __init__(
        self,
        db: Database,
        code: QueueCode,
        bucket: int,
        *,
        failures: FailureShare | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.db = db
        self.code = code
        self.bucket = bucket
        self.failures = failures or FailureShare()
        self.limits = limits or Limits()
        self.memory = Memory()
        self._attempt_key = QueueKeys(code.config.name).attempt(code.config.generation, bucket)
        self._noted = False
        self._deaths = 0
        self._max_report = MAX_REPORT
        self._max_take: int | None = None
        self._cost: float = _FIRST_COST if code.observers else 1
        self._suspects: dict[bytes, None] = {}
        self._condemned: dict[bytes, str] = {}
        self._too_old = 0

    def combine(self) -> PassResult:
        """One pass, committed; keys that fail are set aside, and retries done as the store asks.

        Raises:
            CodeMismatch: the queue now asks for other code.
            FDBError: the store cannot go on (it timed out, say); to be tried again later.
        """
        if self.code.is_foreign and not self._noted:
            self._note_attempt()
        tr = self.db.create_transaction()
        while True:
            attempt = self._pass(tr)
            try:
                result = attempt.run()
                if self._deaths:
                    tr.set(self._attempt_key, codec.encode(1))
                tr.commit().wait()
            except ReportFailed as error:
                self._shrink(attempt, error)
                tr = self.db.create_transaction()
            except Exception as error:
                self.memory.forget()
                code = error_code(error)
                if code is None:
                    raise
                if self._is_failure(code):
                    self._shrink(attempt, error)
                    tr = self.db.create_transaction()
                else:
                    tr.on_error(error).wait()
            else:
                self._learn(result)
                return result

    def end(self) -> None:
        """Take back the note of an attempt: this worker leaves the bucket in good order."""
        if self._noted:
            transact(self.db, lambda tr: tr.clear(self._attempt_key))
            self._noted = False

    def _pass(self, tr: Transaction) -> Pass:
        return Pass(
            tr,
            self.code,
            self.bucket,
            memory=self.memory,
            limits=self.limits,
            max_report=max(1, min(self._max_report, int(WRITE_BYTES / self._cost))),
            max_take=self._max_take,
            last=self._suspects,
            condemned=self._condemned,
        )

    def _is_failure(self, code: int) -> bool:
        """Whether an error of the store is due to what is reported, and not to be cured by trying the same again."""
        if code == TRANSACTION_TOO_OLD:
            self._too_old += 1
            return self._too_old % _TOO_OLD_IS_FAILURE == 0
        return 2000 <= code < 3000  # the client's own doing: too large, illegal keys, bad operations

    def _shrink(self, attempt: Pass, error: Exception) -> None:
        """Ask less of the next pass than of the one that failed."""
        self.memory.forget()
        reported, taken = len(attempt.report), len(attempt.updates)
        if reported > 1:
            self._max_report = reported // 2
        elif reported == 1:
            self._condemned = {attempt.report[0]: str(error)}
        elif taken > 1:
            self._max_take = taken // 2
        else:
            raise error

    def _learn(self, result: PassResult) -> None:
        """Take over what a committed pass has found out."""
        self._too_old = 0
        self._deaths = 0
        if not result.was_ours:
            self.memory.forget()
        if result.token:
            self.memory.take(result.token, result.values)
        for encoded in self._suspects.keys() & result.values.keys():
            del self._suspects[encoded]
        self._condemned = {}
        self.failures.report(result.reported, result.aside)
        for encoded in result.aside:
            self._suspects[encoded] = None
            if len(self._suspects) > _MAX_SUSPECTS:
                del self._suspects[next(iter(self._suspects))]
        if result.changes:
            cost = max(1.0, result.observer_bytes / result.changes)
            self._cost = cost if cost > self._cost else 0.7 * self._cost + 0.3 * cost
        self._grow(result)

    def _grow(self, result: PassResult) -> None:
        if result.reported:
            self._max_report = min(2 * self._max_report, MAX_REPORT)
        if self._max_take is not None:
            self._max_take = 2 * self._max_take if self._max_take < MAX_REPORT else None

    # Code that kills its process leaves no exception behind, but its note of the attempt

    def _note_attempt(self) -> None:
        """Note that a run begins; if one has not ended, begin with one key, and in the end condemn it."""
        self._deaths = transact(self.db, self._write_note)
        self._noted = True
        if self._deaths:
            self._max_report = self._max_take = 1
        if self._deaths >= _DEATHS_BEFORE_CONDEMNING:
            first = transact(self.db, lambda tr: self._pass(tr).first_key())
            if first is not None:
                self._condemned = {first: f"{self._deaths} workers in a row died with this key"}

    def _write_note(self, tr: Transaction) -> int:
        noted = tr.get(self._attempt_key).value
        deaths = 0 if noted is None else int(codec.decode(noted))
        tr.set(self._attempt_key, codec.encode(deaths + 1))
        return deaths
