"""One pass over one bucket, in one transaction: view, decision, effects.

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

Begin to read here. `cq.passes.view` reads (steps 1 and 2), and `cq.passes.decision` chooses rows and keys (3 and 4).
From this view, `cq.passes.combining` makes the effects (4 to 6): what to write, what to report, and the result.
`cq.passes.effects` writes them, and `cq.passes.reporting` calls the observers (7). Instead of steps 3 to 6, a pass may
convert values (`cq.passes.conversion`), delete some (`cq.passes.deletions`), sort a deep backlog
(`cq.passes.sorting`), or decide requests (`cq.passes.deciding`).

A pass touches the store only through its transaction and has no other effect, so a retry after
`commit_unknown_result` finds its own work done. Reading and reporting have separate limits, because observers can turn
a small row into large writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cq import runtime
from cq.admin.rebucketing import is_blocked
from cq.app import QueueCode
from cq.passes.bucket_cache import FIRST_RUN, BucketCache, Runs
from cq.passes.combining import combine
from cq.passes.conversion import convert
from cq.passes.deciding import decide_requests
from cq.passes.decision import choose, decide, take
from cq.passes.deletions import expire, purge
from cq.passes.effects import Effects, PassResult
from cq.passes.plan import PassPlan
from cq.passes.reporting import report, report_decisions
from cq.passes.sorting import sort
from cq.passes.view import Step, View, ViewReader
from cq.queue.bucket_state import needs_conversion, needs_purge
from cq.store.api import Transaction, outlived


class Pass:
    """One pass, in one transaction; `run` it once.

    Args:
        tr: a fresh transaction of either store, committed by the caller.
        code: the queue's configuration and code as this worker has them.
        bucket: number of the bucket.
        plan: what the caller has decided.
        cache: the worker's cache of the bucket; the pass does not change it.
        before_code: called with the encoded keys before the combiner and the observers see them.

    Attributes:
        view: what the pass has read so far.
        effects: what it writes; None before it is decided.
        is_reporting: whether an observer runs.
        is_slow: whether the combiner or the decider has taken longer than a transaction lives.
        is_sorting: whether the pass sorts.
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
        self.view = View(code, bucket, plan or PassPlan(), cache or BucketCache())
        self.effects: Effects | None = None
        self.before_code = before_code
        self.is_reporting = self.is_slow = False
        self.is_sorting = self._has_lost_runs = False
        self._read_at = math.inf

    @property
    def blamed(self) -> list[bytes]:
        """The encoded keys that may have caused the failure of the pass, see `Effects.blamed`."""
        return self.view.report if self.effects is None else self.effects.blamed

    @property
    def taken(self) -> int:
        """The number of keys whose updates it takes from rows; in a queue with a decider, the number of requests."""
        updates = self.view.taken.updates
        return len(updates) if self.view.code.decider is None else sum(map(len, updates.values()))

    @property
    def is_backfilling(self) -> bool:
        """Whether the pass reports values that no update has changed."""
        return self.effects is not None and bool(self.effects.backfilled)

    @property
    def is_expiring(self) -> bool:
        """Whether the pass deletes due keys."""
        return self.effects is not None and self.effects.is_expiring

    def run(self) -> PassResult:
        """Run the whole pass, except for the commit.

        Raises:
            CodeMismatch: the queue's configuration has changed and asks for other code.
            ManyFailed: too many keys cannot be combined.
            ReportFailed: an observer has raised.
            FeedNotConfigured, QueueNotConfigured: what a built-in observer writes to was deleted.
            FDBError: from the store, also through an observer.
        """
        reader = ViewReader(self.tr, self.view)
        view = self.view
        if view.config.former is not None and is_blocked(self.tr.snapshot, view.config, view.number):
            return PassResult(blocked=True)
        effects = self.effects = self._decide(reader)
        self.is_slow = bool(outlived(self._read_at))
        effects.result.lost_runs = self._has_lost_runs
        if effects.blamed and not view.report:  # the keys of updates are known already
            self.before_code(effects.blamed)
        effects.write(self.tr)
        # After all other writes: observers may add to this very queue, and their size is measured.
        if view.code.observers and (effects.changes or effects.news):
            self.is_reporting = True
            report(self.tr, view, effects)
            self.is_reporting = False
        if effects.decisions:
            self.is_reporting = True
            report_decisions(self.tr, view, effects)
            self.is_reporting = False
        return effects.result

    def _decide(self, reader: ViewReader) -> Effects:
        """Read what the pass needs, and return its effects."""
        view, plan = self.view, self.view.plan
        if plan.may_sort and view.cache.runs.is_any:
            reader.read_state()
            if sorted_effects := self._sort(reader, view.cache.runs):
                return sorted_effects
        reader.read_bucket()  # a store that is slow to begin a transaction delays only this read
        self._read_at = runtime.monotonic()
        self._compare_state()
        if changed := self._change(reader):
            return changed
        if view.is_idle and not view.withdrawn:
            return idle(view)
        if view.code.decider is not None:
            return decide_requests(view, reader, self.before_code)
        decision = decide(view, may_sort=plan.may_sort and not self._has_lost_runs)
        if decision.step is Step.SORT:
            if sorted_effects := self._sort(reader, FIRST_RUN):
                return sorted_effects
            decision = decide(view, may_sort=False)
        view.taken = take(view, decision, reader)
        view.report = choose(view, reader)
        reader.read_current()
        if plan.max_backfill:
            reader.read_backfill()
        if view.code.runs_application_code:
            self.before_code(view.touched)
        return combine(view)

    def _compare_state(self) -> None:
        """Set no key aside if another worker's pass has committed since it failed: its updates may be later ones."""
        plan = self.view.plan
        if plan.rejected and plan.rejected_at not in (None, self.view.state.token):
            self.view.plan = replace(plan, rejected={})

    def _change(self, reader: ViewReader) -> Effects | None:
        """The effects of converting or deleting the next values; None: the pass combines."""
        view = self.view
        if needs_conversion(view.config, view.state):
            return convert(view, reader)
        if needs_purge(view.config, view.state):
            return purge(view, reader)
        return None if view.expiry is None else expire(view, reader, view.expiry)

    def _sort(self, reader: ViewReader, runs: Runs) -> Effects | None:
        self.is_sorting = True
        effects = sort(self.view, reader, runs)
        self.is_sorting, self._has_lost_runs = effects is not None, effects is None
        return effects


def idle(view: View) -> Effects:
    """The effects of a pass without work: clear the notification."""
    effects = Effects(view)
    result = effects.result
    result.more = view.may_be_due
    if not result.found_copied and not result.more:
        effects.clear_notification(view)
    return effects
