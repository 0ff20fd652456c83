"""One pass over one bucket: read, combine, write, report.

    1. Read the bucket's state with a conflict range, so that two passes over one bucket conflict. Read its notification
       and its first rows, up to a limit, by snapshot reads, which conflict with no other transaction.
    2. Drop rows whose operation id an earlier transaction has added.
    3. Take as many rows as can be combined within the limits, and read the staged updates of their keys.
    4. Choose the keys to report: in hash order from the cursor, at most `max_report`. Fold all others: combine their
       updates with the staged ones, and stage the result or write it as rows again.
       If the rows were not read to their end, report no key, unless this has lasted too long (overload) or no
       observer hears the changes.
    5. Combine the updates of the reported keys with the current values, and write these.
    6. Clear the rows in one range, and the notification if no work remains and it is still the one read. Write the
       state with a fresh token.
    7. Report the changes to the observers, and a piece of the stored values to observers in backfill.

A pass touches the store only through its transaction and has no other effect, so a retry after
`commit_unknown_result` finds its own work done. Reading and reporting have separate limits, because observers can turn
a small row into large writes. `cq.passes.batch` has steps 1 to 3, `cq.passes.selection` and `cq.passes.repacking`
step 4, `cq.passes.reporting` step 7. `cq.passes.merge_pass` combines deep backlogs of many different keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import compress
from operator import not_
from typing import Final

from cq.admin.rebucket import is_blocked
from cq.app import QueueCode
from cq.errors import CqError
from cq.keys import QueueKeys, place, places, version_of
from cq.observer import EXPIRY, Change
from cq.passes.batch import Batch, Step, clear_rows, decide, read_batch, take, write_values
from cq.passes.bucket_cache import BucketCache
from cq.passes.columns import KeyColumn, fold, new_values, pending
from cq.passes.conversion import convert_some
from cq.passes.deletions import BucketExpiry, Deleted, next_deletion
from cq.passes.feeding import feed
from cq.passes.merge_pass import MergePass
from cq.passes.open_bucket import OpenBucket
from cq.passes.pass_result import ManyFailed, PassResult
from cq.passes.plan import PassPlan
from cq.passes.repacking import repack
from cq.passes.reporting import (
    BackfillPiece,
    BackfillReader,
    apply_or_isolate,
    backfill_positions,
    call_observers,
    changes_by_observer,
)
from cq.passes.runs import FIRST_RUN, Runs
from cq.passes.selection import choose
from cq.queue.bounded_reads import prefix_read, read_at_hashes
from cq.queue.bucket_state import fresh_token, needs_conversion
from cq.queue.ledger import count_dropped
from cq.queue.missed_reports import MissedReports
from cq.queue.set_aside import set_aside, set_broken_aside
from cq.store.api import VERSIONS_PER_SECOND, Transaction

_MANY_FAILURES: Final = 10
_LARGE_SHARE: Final = 0.2


class Pass:
    """One pass, in one transaction; `run` it once.

    Args:
        tr: a fresh transaction of either store, committed by the caller.
        code: the queue's configuration and code as this worker has them.
        bucket: number of the bucket.
        plan: what the caller has decided.
        cache: the worker's cache of the bucket; the pass does not change it.
        before_code: called with the encoded keys before the combiner and the observers see them.
    """

    def __init__(
        self,
        tr: Transaction,
        code: QueueCode,
        bucket: int,
        plan: PassPlan | None = None,
        cache: BucketCache | None = None,
        before_code: Callable[[list[bytes]], object] = lambda encoded_keys: None,
    ) -> None:
        self.tr = tr
        self.code = code
        self.config = code.config
        self.number = bucket
        self.plan = plan or PassPlan()
        self.limits = self.plan.limits
        self.cache = cache or BucketCache()
        self.before_code = before_code
        self.keys = QueueKeys(self.config.name)
        self.result = PassResult()
        # The caller reads these after the pass has failed:
        self.batch: Batch | None = None
        self.report: list[bytes] = []
        self.backfill: BackfillPiece | None = None
        self.is_reporting = False
        self.is_merging = False
        self.is_expiring = False
        self.expiry: BucketExpiry | None = None

    @property
    def _combiner(self) -> str:
        """The combiner, as a failure of it names it."""
        return f"combiner {self.config.combiner}"

    @property
    def blamed(self) -> list[bytes]:
        """The encoded keys reported to the observers; one of them may have caused the failure."""
        return self.report + (self.backfill.keys if self.backfill else [])

    def run(self) -> PassResult:
        """Run the whole pass, except for the commit: read, decide, and carry out the decision.

        Raises:
            CodeMismatch: the queue's configuration has changed and asks for other code.
            ManyFailed: too many keys cannot be combined.
            ReportFailed: an observer has raised.
            FDBError: from the store, also through an observer.
        """
        self.bucket = OpenBucket(self.tr, self.code, self.number, self.plan, self.cache)
        if is_blocked(self.tr.snapshot, self.config, self.number):
            self.result.blocked = True
            return self.result
        self.expiry = BucketExpiry.of(self.bucket)
        # A merge changes no index, and adds to no level.
        may_sort = self.plan.may_sort and self.expiry is None and not self.config.is_timed
        if may_sort and self.cache.runs.is_any:
            merged = self._merge(self.cache.runs)
            if merged is not None:
                return merged
            may_sort = False
        batch = self.batch = read_batch(self.bucket)
        self.result.foreign = batch.backlog.foreign
        self.result.cache_is_valid = self.bucket.is_cached
        self.positions = backfill_positions(self.tr, self.code, self.number, batch.state)
        self.missed = MissedReports(self.tr, self.config, self.number, batch.state)
        backfilling = next((each for each, cursor in self.positions.items() if cursor is not None), None)
        changed = self._change_values(batch)
        if changed is not None:
            return changed
        due = [] if self.bucket.is_former else self.missed.next_retries(max(1, self.plan.most_backfilled))
        if batch.is_empty and backfilling is None and not due and self.positions == batch.state.observers:
            self.result.more = self._may_be_due()
            if not batch.backlog.foreign and not self.result.more:
                self._clear_notification(batch)
            return self.result
        decision = decide(batch, may_sort=may_sort)
        if decision.step is Step.SORT:
            merged = self._merge(FIRST_RUN)
            if merged is not None:
                return merged
            decision = decide(batch, may_sort=False)
        take(batch, decision)
        self._combine(batch)
        if self.plan.most_backfilled and (due or backfilling is not None):
            self._backfill(batch, due, backfilling)
        self._finish(batch)
        self._call_observers()
        return self.result

    def _merge(self, runs: Runs) -> PassResult | None:
        """Write the next run or merge runs; None: nothing is written, and the rows are to be combined as usual."""
        self.is_merging = True
        merged = MergePass(self.bucket, runs).run()
        self.is_merging = merged is not None
        self.result.lost_runs = merged is None
        return merged

    # Combining and writing

    def _combine(self, batch: Batch) -> None:
        """Report the next keys, fold the others taken, and set aside those that fail."""
        chosen = choose(batch)
        self.report, self.all_staged_known = chosen.report, chosen.all_staged_known
        current = self._load_current()
        touched = list(dict.fromkeys([*batch.updates, *self.report]))
        self.before_code(touched)
        seen = touched if self.code.is_foreign else self.report
        is_by_key = self.config.expiry is not None and self.config.expiry.is_by_key
        are_seen = self.code.is_foreign or self.bucket.is_observed or is_by_key
        self.decoded = KeyColumn(self.config.key, seen, self.cache, are_seen=are_seen)
        feed(self.tr, self.code.combiner, batch)
        self._write_values(batch, current)
        self._fold(batch)
        self._refuse_many_failures(batch)
        self._set_aside(batch)

    def _load_current(self) -> dict[bytes, bytes | None]:
        """Return the current values of the keys to report, and drop keys beyond the read limit from the report."""
        known = self.cache.values if self.result.cache_is_valid else {}
        load = self.limits.load_bytes
        if self.expiry is not None:
            self.expiry.index.request(self.report)
        current = read_at_hashes(self.tr.snapshot, self.keys.value_at, self.report, known, load)
        self.report = self.missed.read(prefix_read(self.report, current), load)
        if self.expiry is not None:
            self.expiry.index.read(self.report)
        return current

    def _write_values(self, batch: Batch, current: dict[bytes, bytes | None]) -> None:
        """Write the new value of each key to report, and collect the changes."""
        self.changes: list[tuple[bytes, Change]] = []
        self.done: set[bytes] = set()
        write = partial(self._write_some, batch, current)
        apply_or_isolate(self.report, write, self.result.aside, self._combiner)
        self.result.reported = len(self.done)

    def _write_some(self, batch: Batch, current: dict[bytes, bytes | None], report: list[bytes]) -> None:
        keys = self.decoded.all(report)
        waiting = pending(batch.updates, batch.staged, report)
        before = [current[encoded] for encoded in report]
        values = new_values(self.code.value_combiner, self.config.value, keys, before, waiting)
        is_same = values.is_same()
        where = places(report)
        self.missed.check(report)
        moves = self.expiry.index.moves(report, keys, where, before, values.data) if self.expiry else ()
        # From here on no line may raise for a single key: the key would be set aside although it is combined.
        self.done.update(report)
        self.result.values.update(zip(report, values.data, strict=True))
        self._clear_staged(batch, report)
        write_values(self.tr, self.keys.values_at(where), values.data, is_same)
        if self.expiry is not None:
            self.expiry.index.write(moves)
        if self.code.observers:
            complete = batch.is_complete
            columns = zip(where, keys, values.old, values.new, is_same, strict=True)
            self.changes += [
                (at, Change(key, old, new, complete)) for at, key, old, new, same in columns if not same
            ]
            self.missed.clear(compress(report, map(not_, is_same)))

    def _clear_staged(self, batch: Batch, encoded_keys: Iterable[bytes]) -> None:
        if not batch.staged:
            return
        for encoded in encoded_keys:
            if batch.staged.get(encoded) is not None:
                self.tr.clear(self.keys.staged(encoded))
                self.result.staged[encoded] = None

    def _fold(self, batch: Batch) -> None:
        """Combine the taken updates of all unreported keys; write them as rows again, or stage them."""
        seen = self.done | self.result.aside.keys() | self.plan.rejected.keys()
        left = [encoded for encoded in batch.updates if encoded not in seen]
        folded: dict[bytes, bytes] = {}
        self._can_repack = batch.decision.step is Step.FOLD
        apply_or_isolate(left, partial(self._fold_some, batch, folded), self.result.aside, self._combiner)
        self.result.folded = len(folded)
        self.repacked: dict[bytes, bytes] = {}
        if folded and self._can_repack:
            self.repacked = repack(folded, batch.rows_taken)
        if not self.repacked:
            self._stage(folded)

    def _fold_some(self, batch: Batch, folded: dict[bytes, bytes], encoded_keys: list[bytes]) -> None:
        waiting = pending(batch.updates, batch.staged, encoded_keys)
        keys = self.decoded.all(encoded_keys) if self.code.is_foreign else [None] * len(encoded_keys)
        data, are_updates = fold(self.code.value_combiner, self.config.value, keys, waiting)
        folded.update(zip(encoded_keys, data, strict=True))
        self._can_repack &= are_updates

    def _stage(self, folded: dict[bytes, bytes]) -> None:
        for where, data in zip(places(list(folded)), folded.values(), strict=True):
            self.tr.set(self.keys.staged_at(where), data)
        self.result.staged.update(folded)

    # Setting aside

    def _refuse_many_failures(self, batch: Batch) -> None:
        failed, touched = len(self.result.aside), len(self.done) + self.result.folded
        if failed >= _MANY_FAILURES and failed > _LARGE_SHARE * (failed + touched):
            raise ManyFailed(self.result.aside)

    def _set_aside(self, batch: Batch) -> None:
        """Set aside the updates of keys that cannot be combined or reported; their current values stay unchanged."""
        for encoded, failure in self.plan.rejected.items():
            if batch.has_work(encoded):
                self.result.aside[encoded] = failure
        for encoded, failure in self.result.aside.items():
            try:
                (waiting,) = pending(batch.updates, batch.staged, [encoded])
            except CqError:  # unreadable staged updates are kept as bytes
                waiting = [batch.staged.get(encoded), *batch.updates.get(encoded, [])]
            set_aside(self.tr, self.keys, encoded, failure, waiting)
        self._clear_staged(batch, self.result.aside)
        broken = [each for each in batch.backlog.broken if batch.is_taken(each.key)]
        if broken:
            self.result.aside[b""] = set_broken_aside(self.tr, self.keys, broken)

    # Reports of values for the first time, or again

    def _backfill(self, batch: Batch, due: list[bytes], generation: int | None) -> None:
        """Read the next values to report again, or to a new observer; record a rejected one as missed instead."""
        limit, load = self.plan.most_backfilled, self.limits.load_bytes
        is_complete = partial(self._has_no_later, batch)
        reader = BackfillReader(self.tr, self.config, self.missed, limit, load, is_complete)
        if due or generation is None:
            backfill = reader.read_again(due)
        else:
            backfill = reader.read_first(self.number, generation, self.positions[generation] or b"")
        if self.plan.rejected_in_backfill:
            if not backfill.keys or backfill.keys[0] not in self.plan.rejected_in_backfill:
                return
            self.result.aside |= backfill.reject(self.plan.rejected_in_backfill, self.missed)
        elif due:
            self.missed.clear(backfill.keys, are_due=True)
        self.backfill = backfill
        self.result.backfilled = len(backfill.keys)

    def _has_no_later(self, batch: Batch, encoded: bytes) -> bool:
        """Whether a value derives from all updates of its key at the read version."""
        is_settled = encoded in self.done or encoded in self.result.aside or encoded not in batch.updates
        return is_settled and batch.is_complete and not batch.state.staged

    # Converting and deleting

    def _change_values(self, batch: Batch) -> PassResult | None:
        """Convert or delete the next values; None: the pass combines."""
        if needs_conversion(self.config, batch.state):
            return self._convert()
        deleted = next_deletion(batch, self.missed, self.expiry)
        return None if deleted is None else self._delete(deleted)

    def _delete(self, deleted: Deleted) -> PassResult:
        """Report deletions, and write the state. No update is combined in this pass."""
        self.changes, self.report = deleted.changes, deleted.keys
        self.is_expiring = deleted.cause == EXPIRY
        if self.is_expiring:
            self.result.expired = len(deleted.all_keys)
        else:
            self.result.purged = len(deleted.all_keys)
            self.result.invalidates_cache = True  # the purge has cleared the staged updates
        self.result.aside |= deleted.note_missed(self.missed, self.positions)
        self.result.values = dict.fromkeys(deleted.all_keys)
        self.before_code(self.report)
        self.result.more = True
        self.result.token = fresh_token()
        missed = self.missed.remain()
        state = replace(deleted.state, token=self.result.token, observers=self.positions, missed=missed)
        self.bucket.write_state(state)
        self._call_observers()
        return self.result

    def _convert(self) -> PassResult:
        """Convert the next values to the new version of the combiner, report them, and write the state."""
        plan = self.plan
        limit = 1 if plan.rejected else max(1, plan.most_reported)
        converted = convert_some(self.bucket, limit, self.missed.share(plan.limits.load_bytes))
        self.changes, self.report = converted.changes, converted.reported
        self.result.aside |= converted.note_missed(self.missed, self.positions)
        self.result.reported = len(converted.values)
        self.result.values = dict(converted.values)
        self.result.more = True
        self.result.completed = converted.state.converting is None  # so that the change is finished at once
        self.result.token = fresh_token()
        missed = self.missed.remain()
        state = replace(converted.state, token=self.result.token, observers=self.positions, missed=missed)
        self.bucket.write_state(state)
        self._call_observers()
        return self.result

    # Finishing

    def _finish(self, batch: Batch) -> None:
        self.result.rows = clear_rows(self.tr, self.keys, self.bucket.rows[0], batch)
        for key, data in self.repacked.items():
            self.tr.set(key, data)
        self.result.cut_at = batch.taken_bytes if batch.rest else None
        repeated = batch.repeated()
        self.result.repeated = len(repeated)
        count_dropped(self.tr, self.config, (pair for row in repeated for pair in row.updates))
        self.result.updates = sum(map(len, batch.updates.values()))
        staged = self._is_staged(batch)
        observers = dict(self.positions)
        if self.backfill is not None:
            observers |= self.backfill.reached
        self.result.completed = None in observers.values() and observers != batch.state.observers
        due = not self.bucket.is_former and bool(self.missed.next_retries(1))
        backfilling = due or any(cursor is not None for cursor in observers.values())
        self.result.backfilling = backfilling
        self.result.more = not batch.at_end or staged or bool(self.repacked) or backfilling
        self.result.more |= self._may_be_due()
        if not batch.at_end and batch.rows:
            last = version_of(batch.rows[-1].versionstamp)
            self.result.age = (self.bucket.read_version - last) / VERSIONS_PER_SECOND
        if not self.result.more and not self.result.foreign:
            self._clear_notification(batch)
        self.result.token = fresh_token()
        state = replace(
            batch.state,
            token=self.result.token,
            staged=staged,
            cursor=place(self.report[-1]) if self.report else batch.state.cursor,
            unfinished_since=0 if batch.at_end else batch.state.unfinished_since or self.bucket.read_version,
            observers=observers,
            missed=self.missed.remain(),
        )
        self.bucket.write_state(state)

    def _may_be_due(self) -> bool:
        """Whether a further pass must look for due keys."""
        return self.expiry is not None and self.expiry.may_be_due and not self.result.foreign

    def _is_staged(self, batch: Batch) -> bool:
        """Whether the bucket may have staged updates after this pass."""
        if not self.all_staged_known or (self.result.folded and not self.repacked):
            return True
        left = batch.staged.keys() - self.done - self.result.aside.keys()
        return any(batch.staged[encoded] is not None for encoded in left)

    def _clear_notification(self, batch: Batch) -> None:
        if batch.notification is not None:
            # An add after the read version has stored another versionstamp, which this comparison leaves in place.
            key = self.keys.notification(self.config.generation, self.number)
            self.tr.compare_and_clear(key, batch.notification)

    def _call_observers(self) -> None:
        """Call the observers after all other writes: they may add to this very queue, and their size is measured."""
        if not self.code.observers or not (self.changes or self.backfill):
            return
        if self.backfill is not None:
            self.before_code(self.blamed)
        news = changes_by_observer(self.positions, self.changes, self.missed.received, self.backfill)
        before = self.tr.get_approximate_size().wait()
        self.is_reporting = True
        self.result.observer_changes = call_observers(self.tr, self.code, news)
        self.is_reporting = False
        self.result.observer_bytes = self.tr.get_approximate_size().wait() - before
