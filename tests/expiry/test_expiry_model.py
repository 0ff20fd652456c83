"""A queue with an expiry beside a model, under random adds, times, purges, refusals, and passes that die.

A step of the model is one pass, or all that are due. After each step the test compares what is stored with the model:
the values, the updates that wait, the times in the index, the changes that an observer has committed, and the top. Each
deletion must reach the observers once, and no update may be lost.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import cq
from cq import runtime
from cq.admin.purge import is_purging
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import NotNow
from cq.expiry.due import read_statistics
from cq.keys import QueueKeys, prefix_end
from cq.keys.expiry import ExpiryKeys
from cq.observer import EXPIRY, PURGE, UPDATES
from cq.observers.builtin import FACTORIES
from cq.observers.top import Ranking, top
from cq.passes import combine_pass
from cq.passes.plan import Limits
from cq.passes.reporting import call_observers
from cq.queue.missed_reports import read_missed, retry_missed
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.testing import drain
from cq.verify.queue import verify
from tests.clocks import Clock
from tests.faults import UNKNOWN, WrappedDatabase, WrappedTransaction
from tests.helpers import stored, values_of, waiting_of
from tests.simulation import expiringcanaries as canaries

QUEUE: Final = "queue"
PERIOD: Final = 600
SLICE: Final = PERIOD // 60
_LOG: Final = b"test/log/"
_LENGTH: Final = b"test/length"
_STATES: Final = QueueKeys(QUEUE).prefix + b"b"

Death = Literal["", "before the commit", "after the commit", "unknown, lost", "unknown, committed"]


class Died(Exception):
    """The process of a pass has died."""


class Dying(WrappedDatabase):
    """A database whose next commit of a pass has this end."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.death: Death = ""
        self.passes: set[WrappedTransaction] = set()

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "set" and args[0].startswith(_STATES):
            self.passes.add(tr)
        if what != "commit" or not self.death or tr not in self.passes:
            return super().call(tr, what, *args, **kwargs)
        death, self.death = self.death, ""
        self.passes.clear()
        if death in ("after the commit", "unknown, committed"):
            tr.inner.commit().wait()
        if death.startswith("unknown"):
            raise self.error(UNKNOWN)
        raise Died(death)


class Recorder:
    """An observer that writes each change into a log, and refuses the deletions of some keys."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def __call__(self, tr: Any, changes: list[cq.Change]) -> None:
        length = int(tr.get(_LENGTH).value or 0)
        for number, change in enumerate(changes, length):
            if change.cause != UPDATES and change.key in self.refused:
                raise RuntimeError("refused")
            entry = [change.key, change.old, change.new, change.cause]
            tr.set(_LOG + b"%08d" % number, codec.encode(entry))
        tr.set(_LENGTH, b"%d" % (length + len(changes)))


class Model(RuleBasedStateMachine):
    """The queue, and what must be in it.

    Attributes:
        totals: {key: sum of its updates since its latest deletion}.
        times: {key: the time of its latest combined update, as the index has it}.
        values: as stored after the latest step.
        waiting: keys with updates that no pass has combined, added since the latest purge.
        purged: keys with a value that a purge has not deleted yet.
        view: {key: value} by the log.
        expired: the number of keys that have expired since the latest purge.
    """

    def __init__(self) -> None:
        super().__init__()
        self.around = ExitStack()
        memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there
        folder = tempfile.mkdtemp(prefix="cq-expiry-", dir=memory if memory.is_dir() else None)
        self.around.callback(shutil.rmtree, folder)
        self.clock = Clock()
        self.around.enter_context(runtime.using(self.clock))
        self.db = self.around.enter_context(Database(Path(folder, "queue.db"), power_safe=False))
        self.dying = Dying(self.db)
        self.totals: Counter[str] = Counter()
        self.times: dict[str, int] = {}
        self.values: dict[str, int] = {}
        self.waiting: set[str] = set()
        self.purged: set[str] = set()
        self.view: dict[str, int] = {}
        self.expired = self.length = 0
        self.runners: dict[int, PassRunner] = {}
        self.recorder = Recorder()
        self.app = cq.App()
        self.app.queue(QUEUE, observers=[cq.Observer("recorder", 1, self.recorder)])

    def teardown(self) -> None:
        self.around.close()

    @initialize(
        buckets=st.integers(1, 3),
        read_bytes=st.sampled_from((100, 2_000_000)),
        repack_bytes=st.sampled_from((0, 600_000)),
        load_bytes=st.sampled_from((100, 200_000)),
        max_report=st.sampled_from((1, 2, 1_000)),
    )
    def configure(self, buckets: int, **limits: int) -> None:
        self.limits = Limits(**limits)
        self.app.configure(self.db, QUEUE, expire=PERIOD, buckets=buckets)
        cq.put_observer(self.db, QUEUE, top(every=0))
        drain(self.db, app=self.app)

    # Steps that no pass makes

    @rule(updates=st.dictionaries(st.sampled_from("abcd"), st.sampled_from((-1, 1, 2)), min_size=1))
    def add(self, updates: dict[str, int]) -> None:
        transact(self.db, lambda tr: cq.CombineQueue[str, int](QUEUE).add(tr, updates))
        for key, number in updates.items():
            self.totals[key] += number
            self.waiting.add(key)

    @rule(seconds=st.sampled_from((SLICE, PERIOD - SLICE, PERIOD, PERIOD + SLICE)))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(what=st.sampled_from(("refuse", "purge", "retry", "rebucket")), number=st.integers(1, 4))
    def change(self, what: str, number: int) -> None:
        match what:
            case "refuse":
                self.recorder.refused = set("abcd"[:number])
            case "purge":
                self.purge()
            case "retry":
                self.retry()
            case "rebucket":
                self.drain()
                cq.rebucket(self.db, QUEUE, number)
                self.drain()

    def purge(self) -> None:
        try:
            cq.purge(self.db, QUEUE)
        except NotNow:
            return
        self.runners.clear()
        self.purged = set(self.values)
        for found in (self.totals, self.times, self.waiting):
            found.clear()
        self.expired = 0

    def retry(self) -> None:
        self.recorder.refused = set()
        retry_missed(self.db, QUEUE)
        self.drain()
        assert self.view == self.values

    # Passes

    @rule(
        number=st.integers(0, 2),
        death=st.sampled_from(
            ("", "", "before the commit", "after the commit", "unknown, lost", "unknown, committed")
        ),
    )
    def combine(self, number: int, death: Death) -> None:
        code = self.app.code(transact(self.db, lambda tr: read_config(tr, QUEUE)), FACTORIES)
        bucket = number % code.config.buckets
        if bucket not in self.runners:
            self.runners[bucket] = PassRunner(self.dying, code, bucket, limits=self.limits)
        before = stored(self.db, (b"", b"\xff"))
        self.dying.death = death
        try:
            self.runners[bucket].combine()
        except Died:
            del self.runners[bucket]
            # A pass first notes the keys that it tries, in a transaction of its own.
            if death == "before the commit":
                assert _without_attempts(stored(self.db, (b"", b"\xff"))) == _without_attempts(before)
        self.dying.death = ""
        self.compare()

    @rule()
    def drain(self) -> None:
        drain(self.db, app=self.app)
        self.runners.clear()
        self.compare()

    # The comparison

    def compare(self) -> None:
        """Follow a step of passes, and compare."""
        values, waiting = values_of(self.db, QUEUE), waiting_of(self.db, QUEUE)
        reported = self._follow_log()
        for key in self.values.keys() - values.keys():
            cause = reported.get(key)
            if key in self.purged:
                assert cause == PURGE or (cause is None and key in self.recorder.refused)
            elif cause != UPDATES:
                assert cause == EXPIRY or (cause is None and key in self.recorder.refused)
                assert self.times[key] + PERIOD <= self.clock.now, f"{key} has expired too early"
                assert key not in self.waiting, f"{key} has expired with updates that wait"
                self.expired += 1
                del self.totals[key]
        combined = self.waiting - waiting.keys()
        self.times |= dict.fromkeys(combined, int(self.clock.now) // SLICE * SLICE + SLICE)
        self.purged = (self.purged & values.keys()) - combined
        self.values = values
        self.waiting -= combined
        if not is_purging(self.db, QUEUE):
            sums = Counter({key: sum(updates) for key, updates in waiting.items()})
            sums.update(values)
            assert {key: total for key, total in sums.items() if total} == {
                key: total for key, total in self.totals.items() if total
            }
        self._compare_index()
        self._compare_top()

    def _follow_log(self) -> dict[str, str]:
        """Apply the new changes of the log to the view; returns {key: cause} of its deletions."""
        causes = {}
        log = stored(self.db, (_LOG + b"%08d" % self.length, prefix_end(_LOG)))
        self.length += len(log)
        for _, entry in log:
            key, old, new, cause = codec.decode(entry)
            assert self.view.get(key) == old
            assert old != new
            if new is None:
                del self.view[key]
                causes[key] = cause
            else:
                self.view[key] = new
        return causes

    def _compare_index(self) -> None:
        index = ExpiryKeys(QUEUE)
        entries = [index.parse_entry(key) for key, _ in stored(self.db, index.entries())]
        found = [(codec.decode(where[4:]), time) for time, where in entries]
        expected = [(key, self.times[key]) for key in self.values.keys() - self.purged]
        assert sorted(found) == sorted(expected)
        config = transact(self.db, lambda tr: read_config(tr, QUEUE))
        statistics = transact(self.db, lambda tr: read_statistics(tr.snapshot, config))
        assert statistics is not None
        assert statistics.expired == self.expired

    def _compare_top(self) -> None:
        """All that the observers have is stored, except for reports that they missed."""
        missed = {codec.decode(key) for key, _ in transact(self.db, lambda tr: read_missed(tr, QUEUE))}
        page = transact(self.db, lambda tr: Ranking[str, int](QUEUE).page(tr.snapshot, 10))
        for view in (self.view, {entry.key: entry.score for entry in page.entries}):
            known = {key: value for key, value in view.items() if key not in missed}
            assert known == {key: value for key, value in self.values.items() if key not in missed}


class Ending(Model):
    """At the end, all keys expire."""

    def teardown(self) -> None:
        try:
            if hasattr(self, "limits"):
                self.end()
        finally:
            super().teardown()

    def end(self) -> None:
        self.retry()
        self.clock.now += PERIOD + SLICE
        self.drain()
        assert self.values == self.view == {}
        assert list(verify(self.db, QUEUE)) == []


def _without_attempts(rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(key, value) for key, value in rows if not key.startswith(b"cq/q/queue/a")]


def test_a_queue_has_the_values_times_and_reports_of_the_model() -> None:
    run_state_machine_as_test(Ending, settings=settings(stateful_step_count=30))


def reports_beside_the_pass() -> Any:
    """Observers commit what they write, whatever becomes of the pass."""

    def call(tr: Any, code: Any, news: Any) -> int:
        if not isinstance(tr, WrappedTransaction):
            return call_observers(tr, code, news)
        return transact(tr.database.inner, lambda own: call_observers(own, code, news))

    return patch.object(combine_pass, "call_observers", call)


@pytest.mark.parametrize(
    "canary",
    [
        canaries.expires_keys_with_queued_updates,
        canaries.reports_expiry_twice,
        canaries.expires_without_a_word,
        reports_beside_the_pass,
    ],
)
def test_the_model_finds_a_broken_variant(canary: Callable[[], Any]) -> None:
    found = settings(max_examples=200, stateful_step_count=30, derandomize=True, phases=[Phase.generate])
    with canary(), pytest.raises(AssertionError):
        run_state_machine_as_test(Ending, settings=settings(found, database=None))
