"""What happens when a pass fails: retries, halving, setting aside, and work that kills its worker."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import cq
from cq.bucket.failure_share import FailureShare
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import TOTALS, QueueConfig, read_config
from cq.encoding import codec
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.observers import window_totals
from cq.observers.worker.worker import Worker
from cq.passes.combine_pass import Pass
from cq.passes.effects import Effects, ManyFailed
from cq.passes.plan import Limits, PassPlan
from cq.passes.reporting import ReportFailed
from cq.store import api
from cq.store.transact import transact
from cq.windows import Window
from tests.kit.busy import in_threads
from tests.kit.clocks import jumping, set_clock
from tests.kit.faults import Died, error_class
from tests.kit.observing import Seen, SeenInStore, app_with
from tests.kit.queues import add, aside, buckets_of, code_of, combine_all, nothing_queued, stored, values


def keys_aside(db: Any, name: str) -> set[Any]:
    return {codec.decode(each.encoded_key) for each in aside(db, name)}


def test_an_observer_that_raises_for_one_key_sets_aside_just_that_key(db: Any, name: str) -> None:
    told: list[cq.Change] = []

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        tr.set(b"test/" + name.encode(), b"written before the failure")
        if any(change.key == "k13" for change in changes):
            raise RuntimeError("not 13")
        tr.clear(b"test/" + name.encode())
        told.extend(changes)

    app = app_with(db, name, observer, buckets=1)
    for _ in range(3):
        add(db, name, {f"k{number}": 1 for number in range(100)})
        combine_all(db, name, app)

    assert keys_aside(db, name) == {"k13"}
    assert all(each.error == "observer 'observer': RuntimeError: not 13" for each in aside(db, name))
    assert sum(sum(each.updates) for each in aside(db, name)) == 3
    assert values(db, name) == {f"k{number}": 3 for number in range(100) if number != 13}
    assert transact(db, lambda tr: tr.get(b"test/" + name.encode()).value) is None
    assert nothing_queued(db, name)


def test_a_failure_has_the_code_the_frames_and_the_number_of_failed_passes(db: Any, name: str) -> None:
    tries = 0

    def refuse(tr: Any, changes: list[cq.Change]) -> None:
        nonlocal tries
        if any(change.key == "bad" for change in changes):
            tries += 1
            raise ValueError("not this one")

    app = app_with(db, name, refuse, buckets=1)
    add(db, name, {"bad": 1, **{f"k{number}": 1 for number in range(30)}})

    combine_all(db, name, app)

    (piece,) = aside(db, name)
    assert piece.failure.tries == tries > 1
    assert piece.failure.code == "observer refuse@1"
    assert piece.failure.trace[-1].endswith('in refuse: raise ValueError("not this one")')
    assert 0 < piece.failure.first <= piece.failure.last


def test_a_combiner_that_fails_is_named_with_its_frames(db: Any, name: str) -> None:
    def half(key: str, values: Sequence[int]) -> int:
        return sum(values) // (0 if key == "bad" else 1)

    app = app_with(db, name, combiner=cq.Combiner("half", 3, half), buckets=1)
    add(db, name, {"bad": 1, "good": 2})

    combine_all(db, name, app)

    (piece,) = aside(db, name)
    assert piece.failure.code == "combiner half@3"
    assert [line.split(" in ")[1] for line in piece.failure.trace] == [
        'half: return sum(values) // (0 if key == "bad" else 1)'
    ]


def test_a_key_that_has_failed_costs_the_others_no_further_retries(db: Any, name: str) -> None:
    calls = []

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        calls.append(len(changes))
        if any(change.key == "bad" for change in changes):
            raise RuntimeError("no")

    app = app_with(db, name, observer, buckets=1)
    bucket = buckets_of(db, name, app)[0]

    def work() -> int:
        calls.clear()
        add(db, name, {"bad": 1, **{f"k{number}": 1 for number in range(100)}})
        while bucket.combine().more:
            pass
        return len(calls)

    first = work()
    assert work() < first
    assert work() <= 4


def begin_again(tr: Any) -> None:
    tr.on_error(error_class(tr)(1020)).wait()


@pytest.mark.parametrize("resets", [lambda tr: tr.reset(), begin_again], ids=["reset", "on_error"])
def test_an_observer_that_resets_the_transaction_fails_for_its_key(db: Any, name: str, resets: Any) -> None:
    """Else what the pass has written would be gone, and what later observers write would be committed."""
    app, later = cq.App(), f"{name}-later".encode()

    def careless(tr: Any, changes: list[cq.Change]) -> None:
        if any(change.key == "bad" for change in changes):
            resets(tr)

    def count(tr: Any, changes: list[cq.Change]) -> None:
        tr.add(later, len(changes).to_bytes(8, "little"))

    app.queue(name, observers=[careless, count])
    app.configure(db, name, buckets=1)
    add(db, name, {"bad": 1, **{f"k{number}": 1 for number in range(5)}})
    combine_all(db, name, app)

    assert keys_aside(db, name) == {"bad"}
    assert "it has reset the transaction" in aside(db, name)[0].error
    assert len(values(db, name)) == 5
    assert transact(db, lambda tr: tr.get(later).value) == (5).to_bytes(8, "little")


def test_retryable_errors_of_an_observer_are_retried(db: Any, name: str) -> None:
    failures = [1020, 1007, 1021]

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if failures:
            raise error_class(tr)(failures.pop())

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"a": 1})
    combine_all(db, name, app)

    assert aside(db, name) == []
    assert values(db, name) == {"a": 1}


def test_conflicts_do_not_count_against_a_key_that_is_too_old_once(db: Any, name: str) -> None:
    calls = 0

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        nonlocal calls
        calls += 1
        if calls in (3, 6, 9):
            raise error_class(tr)(1007)
        if calls < 12:  # another worker passes over the bucket meanwhile, and takes nothing
            transact(db, lambda tr: tr.add_write_conflict_key(QueueKeys(name).state(1, 0)))

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"a": 1})
    combine_all(db, name, app)

    assert calls == 12
    assert aside(db, name) == []
    assert values(db, name) == {"a": 1}


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize("code", [1007, 1031])
def test_a_key_whose_combination_takes_too_long_does_not_delay_others(
    db: Any, name: str, code: int, is_observed: bool
) -> None:
    """A transaction that has combined it is too old; on a cluster, its time limit may come first.

    With observers a pass reports nothing until it reads all rows: it folds the key.
    """
    slow: list[Any] = []

    def combine(key: Any, values: Sequence[int]) -> int:
        slow.extend(key for _ in values if key == "slow")
        clock.passed += 31 * len(slow)
        return sum(values)

    seen = [cq.Observer("seen", 1, SeenInStore(db, name))] if is_observed else []
    app = app_with(db, name, *seen, combiner=cq.Combiner("slow", 1, combine), buckets=1)
    add(db, name, {"a": 1, "slow": 1, "b": 1})
    commit = Effects.write

    def write(effects: Effects, tr: Any) -> None:
        if slow:
            slow.clear()
            raise error_class(tr)(code)
        commit(effects, tr)

    with pytest.MonkeyPatch.context() as patch, jumping() as clock:
        patch.setattr(Effects, "write", write)
        combine_all(db, name, app)
    assert keys_aside(db, name) == {"slow"}
    assert values(db, name) == {"a": 1, "b": 1}


class _Limited:
    """A database whose transactions have a time limit, as those of a cluster have."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.options = db.options

    def create_transaction(self) -> Any:
        tr = self._db.create_transaction()
        tr.options.set_timeout(400)
        return tr


@pytest.mark.parametrize("kind", ["combiner", "observer"])
def test_a_key_whose_code_outlasts_the_time_limit_of_a_transaction_is_set_aside(
    db: Any, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LIFETIME_SECONDS", 0.2)

    def combine(key: Any, values: Sequence[int]) -> int:
        time.sleep(0.5 if key == kind == "combiner" else 0)
        return sum(values)

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        time.sleep(0.5 if kind == "observer" in [change.key for change in changes] else 0)

    app = app_with(db, name, observer, combiner=cq.Combiner("slow", 1, combine), buckets=1)
    add(db, name, {"a": 1, "b": 1, kind: 1})
    runner = PassRunner(_Limited(db), code_of(db, name, app), 0)
    while runner.combine().more:
        pass
    assert keys_aside(db, name) == {kind}
    assert "timed out" in aside(db, name)[0].error
    assert values(db, name) == {"a": 1, "b": 1}


def test_an_update_that_two_workers_find_at_fault_is_set_aside_without_later_ones(db: Any, name: str) -> None:
    def refuse(tr: Any, changes: list[cq.Change]) -> None:
        if any((change.new or 0) < 0 for change in changes):
            raise RuntimeError("refused")

    app = app_with(db, name, refuse, buckets=1)
    add(db, name, {"a": -1})
    slower, faster = (PassRunner(db, code_of(db, name, app), 0) for _ in range(2))
    while not slower.quarantine.rejected:
        slower.combine(lambda: True)  # no pass is committed
    while not aside(db, name):
        faster.combine()
    add(db, name, {"a": 5})
    while slower.combine().more:
        pass
    assert [each.updates for each in aside(db, name)] == [[-1]]
    assert values(db, name) == {"a": 5}


def test_timeouts_of_a_store_that_does_not_answer_set_no_key_aside(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=cq.Combiner("fast", 1, lambda key, values: sum(values)), buckets=1)
    add(db, name, {"a": 1})
    bucket = buckets_of(db, name, app)[0]

    def write(effects: Effects, tr: Any) -> None:
        tr.options.set_timeout(1)
        time.sleep(0.01)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Effects, "write", write)
        for _ in range(20):
            with pytest.raises(Exception, match="1031"):
                bucket.combine()
    combine_all(db, name, app)
    assert aside(db, name) == []
    assert values(db, name) == {"a": 1}


def test_a_slow_combiner_makes_passes_smaller_that_fold_most_keys(db: Any, name: str) -> None:
    """A transaction is too old if it has combined updates of more than eight keys."""
    combined: list[Any] = []

    def combine(key: Any, values: Sequence[int]) -> int:
        combined.append(key)
        return sum(values)

    seen = SeenInStore(db, name)
    observer = cq.Observer("seen", 1, seen)
    app = app_with(db, name, observer, combiner=cq.Combiner("slow", 1, combine), buckets=1)
    expected = {f"k{number}": 1 for number in range(40)}
    add(db, name, expected)
    commit = Effects.write

    def write(effects: Effects, tr: Any) -> None:
        some, combined[:] = combined[:], []
        if len(set(some)) > 8:
            raise error_class(tr)(1007)
        commit(effects, tr)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Effects, "write", write)
        combine_all(db, name, app)
    assert aside(db, name) == []
    assert values(db, name) == seen.values == expected


@pytest.mark.parametrize("code", [2101, 2103, 2005, 2004])
def test_writes_that_the_store_refuses_are_the_failure_of_their_key(db: Any, name: str, code: int) -> None:
    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if not any(change.key == "bad" for change in changes):
            return
        target = b"test/" + name.encode()
        if code == 2101:
            for number in range(120):
                tr.set(target + b"%d" % number, bytes(90_000))
        elif code == 2103:
            tr.set(target, bytes(100_001))
        elif code == 2005:
            tr.clear_range(target + b"b", target + b"a")
        else:
            tr.set(b"\xff/x", b"")

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"bad": 1, **{f"k{number}": 1 for number in range(20)}})
    combine_all(db, name, app)

    assert keys_aside(db, name) == {"bad"}
    assert str(code) in aside(db, name)[0].error
    assert len(values(db, name)) == 20


def test_reports_that_write_much_are_split_over_passes(db: Any, name: str) -> None:
    """One row of 5,000 updates whose observer writes 2 kB for each change: 10 MB in all."""
    sizes = []

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        for change in changes:
            tr.set(b"test/" + name.encode() + b"/%d" % change.key, bytes(2000))
        sizes.append(tr.get_approximate_size().wait())

    app = app_with(db, name, observer, key=int, buckets=1)
    add(db, name, dict.fromkeys(range(5000), 1))
    combine_all(db, name, app)

    assert len(values(db, name)) == 5000
    assert aside(db, name) == []
    assert max(sizes) < 1_500_000
    assert len(sizes) < 100
    assert nothing_queued(db, name)


def test_errors_that_are_not_the_keys_fault_are_raised(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    transact(db, lambda tr: tr.set(QueueKeys(name).state(1, 0), b"foreign"))

    with pytest.raises(cq.errors.CorruptData):
        buckets_of(db, name)[0].combine()
    assert not nothing_queued(db, name)
    assert aside(db, name) == []


AT_ONCE = Limits(stale_seconds=0)  # notes of attempts are those of workers that died


def combine_until_drained(db: Any, name: str, app: cq.App, arrivals: bool = False) -> int:
    """Workers that are started again whenever one dies; returns how many died."""
    deaths = 0
    while not nothing_queued(db, name):
        if arrivals and deaths < 10:
            add(db, name, {f"a{deaths}": 1, f"z{deaths}": 1})
        try:
            combine_all(db, name, app, AT_ONCE)
        except Died:
            deaths += 1
            assert deaths < 60
    return deaths


@pytest.mark.parametrize("arrivals", [False, True])
def test_a_key_that_kills_its_workers_is_found_and_set_aside(db: Any, name: str, arrivals: bool) -> None:
    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if any(change.key == "killer" for change in changes):
            raise Died

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"killer": 1, **{f"k{number}": 1 for number in range(10)}})

    deaths = combine_until_drained(db, name, app, arrivals)

    assert keys_aside(db, name) == {"killer"}
    assert "workers have died with this key" in aside(db, name)[0].error
    assert len(values(db, name)) >= 10
    assert 1 < deaths <= 20
    assert (
        stored(db, QueueKeys(name).attempts(1, 0)) != []
    )  # of the last worker, which has ended without a word


def test_a_combiner_that_kills_its_workers_is_found_too(db: Any, name: str) -> None:
    def combine(key: str, values: Any) -> int:
        if key == "killer":
            raise Died
        return sum(values)

    app = app_with(db, name, combiner=cq.Combiner("deadly", 1, combine), buckets=1)
    for _ in range(2):
        add(db, name, {"killer": 1, **{f"k{number}": 1 for number in range(5)}})

    combine_until_drained(db, name, app)

    assert keys_aside(db, name) == {"killer"}
    assert values(db, name) == {f"k{number}": 2 for number in range(5)}


def test_workers_killed_for_other_reasons_condemn_no_key(db: Any, name: str) -> None:
    app = app_with(db, name, Seen().observer, buckets=1)
    for turn in range(20):
        add(db, name, {f"k{turn}": 1})
        buckets_of(db, name, app, AT_ONCE)[0].combine()  # each by a worker that then dies without a word

    assert aside(db, name) == []
    assert len(values(db, name)) == 20


def test_workers_that_live_condemn_no_key_of_each_other(db: Any, name: str) -> None:
    """Eight workers begin on one bucket at once, with an observer that takes its time."""
    together = threading.Barrier(8)
    waited = threading.local()

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if not hasattr(waited, "once"):
            waited.once = together.wait(60)

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"only": 1})
    in_threads(*(buckets_of(db, name, app)[0].combine for _ in range(8)))

    assert aside(db, name) == []
    assert values(db, name) == {"only": 1}


def test_a_worker_that_leaves_in_good_order_takes_its_note_back(db: Any, name: str) -> None:
    app = app_with(db, name, Seen().observer, buckets=1)
    add(db, name, {"a": 1})
    bucket = buckets_of(db, name, app)[0]
    bucket.combine()
    assert len(stored(db, QueueKeys(name).attempts(1, 0))) == 1

    transact(db, bucket.attempts.end)

    assert stored(db, QueueKeys(name).attempts(1, 0)) == []


def test_queues_of_built_in_code_cost_no_note(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    buckets_of(db, name)[0].combine()

    assert stored(db, QueueKeys(name).attempts(1, 0)) == []


@pytest.mark.parametrize("code", [1007, 1020, 1021, 1036, 1025, 1031, 1101])
def test_a_store_error_that_an_observer_always_raises_is_its_keys_failure(
    db: Any, name: str, code: int
) -> None:
    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if any(change.key == "bad" for change in changes):
            raise error_class(tr)(code)

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"bad": 1, **{f"k{number}": 1 for number in range(5)}})
    combine_all(db, name, app)

    assert keys_aside(db, name) == {"bad"}
    assert len(values(db, name)) == 5


@pytest.mark.parametrize("error", [SystemExit(3), OSError("caf\udce9"), ValueError("x" * 5000)])
def test_whatever_an_observer_raises_can_be_stored(db: Any, name: str, error: BaseException) -> None:
    def observer(tr: Any, changes: list[cq.Change]) -> None:
        raise error

    app = app_with(db, name, observer, buckets=1)
    add(db, name, {"bad": 1})
    combine_all(db, name, app)

    assert keys_aside(db, name) == {"bad"}
    assert type(error).__name__ in aside(db, name)[0].error


@pytest.mark.parametrize("value", ["int", "any"])
def test_a_combiner_that_ends_the_process_sets_its_key_aside(db: Any, name: str, value: str) -> None:
    def combine(key: str, values: Any) -> Any:
        if key == "bad":
            sys.exit(3)
        return sum(values)

    app = app_with(db, name, combiner=cq.Combiner("leaving", 1, combine), value=value, rollup="1m:1h")
    for _ in range(2):
        add(db, name, {"bad": 1, "good": 1})
    Worker(db, app, [name]).drain()

    assert keys_aside(db, name) == {"bad"}
    assert {each.error for each in aside(db, name)} == {"SystemExit: 3"}
    assert values(db, name) == {"good": 2}


def test_a_combiner_that_fails_for_many_keys_sets_none_aside(db: Any, name: str) -> None:
    def combine(key: str, values: Any) -> int:
        raise RuntimeError("broken")

    app = app_with(db, name, combiner=cq.Combiner("broken", 1, combine), buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(100)})

    with pytest.raises(ManyFailed, match="100 keys of one pass failed, one with: RuntimeError: broken"):
        buckets_of(db, name, app)[0].combine()
    assert aside(db, name) == []
    assert not nothing_queued(db, name)


def test_a_key_that_has_failed_once_has_its_turn_in_a_busy_bucket_too(db: Any, name: str) -> None:
    failures = [RuntimeError("for once")]

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if failures and any(change.key == "a" for change in changes):
            raise failures.pop()

    app = app_with(db, name, observer, buckets=1)
    bucket = buckets_of(db, name, app)[0]
    add(db, name, {"a": 1})
    while bucket.combine().more:
        pass
    for _ in range(30):
        add(db, name, {"a": 1, "hot": 1})
        bucket.combine()

    assert values(db, name)["a"] > 0


def test_a_bucket_of_very_many_small_keys_stays_within_a_transaction(db: Any, name: str) -> None:
    cq.configure(db, name, key=int, buckets=1)
    for start in range(0, 40_000, 5_000):
        add(db, name, dict.fromkeys(range(start, start + 5_000), 1))
    sizes = []
    code = code_of(db, name)
    while True:
        tr = db.create_transaction()
        result = Pass(tr, code, 0, PassPlan(max_report=5_000)).run()
        sizes.append(tr.get_approximate_size().wait())
        tr.commit().wait()
        if not result.more:
            break

    assert max(sizes) < 5_000_000
    assert len(values(db, name)) == 40_000
    assert nothing_queued(db, name)


class TestFailureShare:
    """When too many keys fail it is the deployment that is broken."""

    def test_many_failed_keys_break_it(self) -> None:
        share = FailureShare()
        share.report(30, {b"%d" % number: KeyFailure(f"error {number}") for number in range(10)})

        assert share.is_broken
        assert share.describe() == "10 of the last 40 keys failed, the latest with: error 9"

    @pytest.mark.parametrize(("reported", "failed"), [(0, 9), (40, 10)])
    def test_fewer_than_ten_keys_and_up_to_a_fifth_break_nothing(self, reported: int, failed: int) -> None:
        share = FailureShare()
        share.report(reported, {b"%d" % number: KeyFailure("x") for number in range(failed)})

        assert not share.is_broken

    def test_one_key_that_fails_again_and_again_counts_once(self) -> None:
        share = FailureShare()
        for _ in range(100):
            share.report(0, {b"bad": KeyFailure("x")})

        assert not share.is_broken


def test_a_slice_of_a_window_is_not_deleted_before_it_is_subtracted(db: Any, name: str) -> None:
    is_refused = True

    def observer(config: QueueConfig, settings: Any, generation: int) -> Any:
        keep = window_totals.observer(config, settings, generation)

        def refuse(tr: Any, changes: list[cq.Change]) -> None:
            if is_refused and any(change.new is None for change in changes):
                raise RuntimeError("no slice may leave")
            keep(tr, changes)

        return refuse

    def combine(part: str) -> None:
        config = transact(db, lambda tr: read_config(tr, part))
        runner = PassRunner(db, cq.App().code(config, {TOTALS: observer}), 0)
        while runner.combine().more:
            pass

    with set_clock() as clock:
        cq.configure(db, name, window=(10, 1), buckets=1)
        transact(db, lambda tr: Window[str](name).add(tr, {"a": 5, "b": 7}))
        parts = [name, f"{name}.slices", f"{name}.window"]
        for part in parts:
            combine(part)
        clock.now += 12
        for _ in range(3):
            with pytest.raises(ReportFailed):
                combine(f"{name}.slices")
        is_refused = False
        for part in parts:
            combine(part)
    assert [values(db, part) for part in parts] == [{"a": 5, "b": 7}, {}, {}]
