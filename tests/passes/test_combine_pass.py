"""One pass: what it reads, combines, folds, reports and leaves."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

import cq
from cq import admin
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.passes.bucket_cache import BucketCache
from cq.passes.combine_pass import Pass
from cq.passes.effects import PassResult
from cq.passes.plan import Limits, PassPlan
from cq.queue.bucket_state import BucketState
from cq.store.transact import transact
from tests.kit.observing import Seen, app_with, concatenation
from tests.kit.queues import (
    STAGING,
    add,
    aside,
    buckets_of,
    code_of,
    combine_all,
    commits,
    configured,
    nothing_queued,
    stored,
    values,
)
from tests.passes.passhelpers import BEGIN, READ, calls_of, choosy, one_pass


def test_a_pass_issues_just_the_calls_it_must(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1}, {"a": 1, "b": 2})

    reads, writes, _ = calls_of(db, code_of(db, name), BucketCache())

    assert reads == [
        "get",  # the notification
        "get",  # the metadata version
        "get_range",  # rows
        "get",  # current value of a
        "get",  # current value of b
    ]
    assert writes == [
        "get_read_version",
        "get",  # the bucket's state, for real: the lock
        "add_read_conflict_key",  # the queue's configuration
        "clear_range",  # the rows
        "set",  # value of a
        "set",  # value of b
        "set",  # the state
        "compare_and_clear",  # the notification
    ]


def test_a_pass_that_folds_reads_and_writes_each_key_once_and_remembers_it(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1, "b": 1}, {"a": 1})
    code, cache = code_of(db, name), BucketCache()

    # The rows cleared, a and b staged, the state.
    first = calls_of(db, code, cache, limits=STAGING, max_report=0)
    assert first[:2] == (READ, [*BEGIN, "clear_range", *["set"] * 3])
    add(db, name, {"a": 1, "c": 1})

    # Of what is staged only that of c is not known.
    second = calls_of(db, code, cache, limits=STAGING, max_report=0)
    assert second[:2] == ([*READ, "get"], [*BEGIN, "clear_range", *["set"] * 3])

    # All that is staged in one range, and the current values; each value set and what was staged cleared, no rows.
    third = calls_of(db, code, cache)
    reads = [*READ, *["get_range"] * 2, *["get"] * 3]
    assert third[:2] == (reads, [*BEGIN, *["clear"] * 3, *["set"] * 4, "compare_and_clear"])
    assert values(db, name) == {"a": 3, "b": 1, "c": 1}


def test_values_of_many_keys_that_lie_together_are_read_as_ranges(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(1_000)})
    one_pass(db, name)
    add(db, name, {f"k{number}": 1 for number in range(1_500)})

    reads, *_ = calls_of(db, code_of(db, name), BucketCache(), max_report=2_000)

    assert reads == [*READ, *["get_range"] * 3]  # of 256 rows, of 512, and of what is left
    assert values(db, name) == {f"k{number}": 1 + (number < 1_000) for number in range(1_500)}


def test_values_of_few_of_many_keys_are_read_one_by_one(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(3_000)})
    one_pass(db, name, max_report=3_000)
    add(db, name, {f"k{number}": 1 for number in range(0, 3_000, 10)})

    reads, *_ = calls_of(db, code_of(db, name), BucketCache())

    assert reads[3] == "get_range"  # 256 rows, too few of which are wanted
    assert set(reads[4:]) == {"get"}
    assert 250 < len(reads[4:]) < 300


def test_a_pass_over_an_empty_bucket_writes_nothing(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)

    assert one_pass(db, name) == PassResult()
    assert stored(db, (QueueKeys(name).state(1, 0), QueueKeys(name).state(1, 1))) == []


def test_remembered_values_are_not_read_again(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1, "b": 1})
    code, cache = code_of(db, name), BucketCache()
    calls_of(db, code, cache)
    add(db, name, {"a": 1, "c": 1})

    reads, _, result = calls_of(db, code, cache)

    assert result.cache_is_valid
    assert reads == [*READ, "get"]  # and c, which is new
    assert values(db, name) == {"a": 2, "b": 1, "c": 1}


def test_a_repeated_row_is_counted_by_the_pass_that_takes_it_away(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1}, once="id")
    add(db, name, {"b": 1})
    add(db, name, {"a": 1}, once="id")

    results = [one_pass(db, name, max_take=1) for _ in range(2)]

    assert [(result.rows, result.repeated) for result in results] == [(1, 0), (2, 1)]


def test_values_remembered_before_somebody_else_passed_are_not_used(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    cache = BucketCache()
    first = one_pass(db, name, cache=cache)
    cache.update(first.token, first.values, first.staged)
    add(db, name, {"a": 1})
    one_pass(db, name)
    add(db, name, {"a": 1})

    assert not one_pass(db, name, cache=cache).cache_is_valid
    assert values(db, name) == {"a": 3}


def test_two_passes_over_one_bucket_conflict(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    code = code_of(db, name)
    first, second = db.create_transaction(), db.create_transaction()
    Pass(first, code, 0).run()
    Pass(second, code, 0).run()
    first.commit().wait()

    assert not commits(second)


def test_an_add_during_a_pass_neither_conflicts_nor_gets_lost(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    code, tr = code_of(db, name), db.create_transaction()
    result = Pass(tr, code, 0).run()
    add(db, name, {"a": 1})
    tr.commit().wait()

    assert not result.more
    assert len(stored(db, QueueKeys(name).notifications())) == 1  # that of the second add stands
    combine_all(db, name)
    assert values(db, name) == {"a": 2}
    assert nothing_queued(db, name)


def test_an_add_may_be_committed_from_before_the_pass_to_after_it(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    open_add = db.create_transaction()
    cq.CombineQueue(name).add(open_add, {"a": 1})
    combine_all(db, name)
    open_add.commit().wait()

    combine_all(db, name)
    assert values(db, name) == {"a": 2}


def test_what_cannot_be_reported_is_folded_and_no_key_starves(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(10)}, {f"k{number}": 1 for number in range(10)})

    first = one_pass(db, name, app, max_report=3)
    assert (first.reported, first.folded, first.more) == (3, 7, True)
    assert len(seen.changes) == 3
    rounds = 1
    while one_pass(db, name, app, max_report=3).more:
        add(db, name, {"k0": 1})  # keys that go on changing take nobody's turn
        rounds += 1

    assert rounds <= 6
    assert {key: value for key, value in seen.values.items() if key != "k0"} == {
        f"k{number}": 2 for number in range(1, 10)
    }
    combine_all(db, name, app)
    assert seen.values == values(db, name)
    assert nothing_queued(db, name)


@pytest.mark.parametrize(("limits", "most"), [(STAGING, 0), (Limits(), 1)], ids=["staged", "rows"])
def test_partial_combinations_do_not_vanish_before_they_are_reported(
    db: Any, name: str, limits: Limits, most: int
) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 5})
    combine_all(db, name)
    add(db, name, {"a": 1, "b": 1}, {"a": -1, "b": -1})
    folded = one_pass(db, name, limits=limits, max_report=most, suspects=[codec.encode("a")])
    add(db, name, {"a": 1})

    assert folded.folded >= 1
    combine_all(db, name)
    assert values(db, name) == {"a": 6}


@pytest.mark.parametrize(("limits", "most"), [(STAGING, 0), (Limits(), 1)], ids=["staged", "rows"])
def test_a_delete_folded_ahead_of_its_report_deletes(db: Any, name: str, limits: Limits, most: int) -> None:
    cq.configure(db, name, value=int, combiner="last", buckets=1)
    add(db, name, {"a": 1, "b": 1})
    combine_all(db, name)
    add(db, name, {"a": 2, "b": 2}, {"a": cq.DELETE, "b": cq.DELETE})
    assert one_pass(db, name, limits=limits, max_report=most).folded

    combine_all(db, name)
    assert values(db, name) == {}


def test_equal_old_and_new_values_are_not_reported(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, {"a": 2})
    combine_all(db, name, app)
    add(db, name, {"a": 1, "b": 1}, {"a": -1, "b": -1})
    combine_all(db, name, app)

    assert [(change.key, change.old, change.new) for change in seen.changes] == [("a", None, 2)]


def test_a_backlog_is_folded_to_its_end_before_it_is_reported(db: Any, name: str) -> None:
    """The value reported derives from all updates committed before, also when one pass cannot read them all."""
    seen = Seen()
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, *({"a": 1, f"k{number}": 1} for number in range(200)))

    results = combine_all(db, name, app, Limits(read_bytes=1000))

    first = next(number for number, result in enumerate(results) if result.reported)
    assert first > 10
    assert not any(result.rows for result in results[first + 1 :])
    assert [(change.new, change.complete) for change in seen.changes if change.key == "a"] == [(200, True)]
    assert nothing_queued(db, name)


def test_a_bucket_in_overload_reports_a_prefix_and_says_so(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, *({"a": 1} for _ in range(100)))

    limits = Limits(read_bytes=500, overload_seconds=0.0)
    results = combine_all(db, name, app, limits)

    assert results[0].reported == 0  # the first pass only finds out
    told = [(change.old, change.new, change.complete) for change in seen.changes]
    assert len(told) > 3
    assert told[-1] == (told[-2][1], 100, True)
    assert not any(complete for _, _, complete in told[:-1])


def test_combining_keeps_commit_order_through_folding_and_partial_rows(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=concatenation, value=list, buckets=1)
    for number in range(60):
        add(db, name, {f"k{number % 7}": [number], f"k{(number + 3) % 7}": [number]})

    step = 0
    while True:
        step += 1
        result = one_pass(
            db, name, app, limits=Limits(read_bytes=300), max_report=1 + step % 3, max_take=1 + step % 4
        )
        if not result.more:
            break
        assert step < 1000

    for key, value in cq.CombineQueue(name).scan(db):
        assert value == sorted(value), key
    total = [item for _, value in cq.CombineQueue(name).scan(db) for item in value]
    assert sorted(total) == sorted([*range(60), *range(60)])


def test_staged_values_are_read_within_limits_and_rows_split_where_they_end(db: Any, name: str) -> None:
    cq.configure(db, name, value=set, combiner="union", buckets=1)
    wide = {f"k{number}": {bytes(3000)} for number in range(100)}
    add(db, name, *({key: {bytes([turn]) * 3000} for key in wide} for turn in range(3)))
    limits = Limits(read_bytes=200_000, load_bytes=50_000)

    results = []
    while True:
        code, tr = code_of(db, name), db.create_transaction()
        results.append(Pass(tr, code, 0, PassPlan(limits, max_report=10)).run())
        assert tr.get_approximate_size().wait() < 1_000_000
        tr.commit().wait()
        if not results[-1].more:
            break
        assert len(results) < 500

    assert all(len(value) == 3 for _, value in cq.CombineQueue(name).scan(db))
    assert len(values(db, name)) == 100
    assert nothing_queued(db, name)


def test_a_combiner_that_fails_for_a_key_sets_only_that_key_aside(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=choosy, buckets=1)
    add(db, name, {"bad": 1, "good": 1}, {"bad": 2, "good": 2})

    combine_all(db, name, app)

    assert values(db, name) == {"good": 3}
    assert [(codec.decode(each.encoded_key), each.error, each.updates) for each in aside(db, name)] == [
        ("bad", "RuntimeError: no", [1, 2])
    ]
    assert nothing_queued(db, name)


def test_a_combiner_that_returns_none_or_another_type_is_found_out(db: Any, name: str) -> None:
    odd = cq.Combiner("odd", 1, lambda key, values: None if key == "none" else "text")
    app = app_with(db, name, combiner=odd, buckets=1)
    add(db, name, {"none": 1, "text": 1}, {"none": 1, "text": 1})

    combine_all(db, name, app)

    assert {codec.decode(each.encoded_key): each.error for each in aside(db, name)} == {
        "none": "InvalidData: the combiner 'odd' returned None for the key 'none'",
        "text": "InvalidData: expected a value of type int, got: 'text' (str)",
    }


def test_a_union_that_grows_past_the_limit_is_set_aside_with_its_updates(db: Any, name: str) -> None:
    cq.configure(db, name, value=set, combiner="union", buckets=1)
    queue = cq.CombineQueue(name)
    for number in range(15):
        add(db, name, {"big": {bytes([number]) * 9_000}, "small": {number}})
        combine_all(db, name)

    big: Any = transact(db, lambda tr: queue.get(tr, "big"))
    kept = set().union(*(update for each in aside(db, name) for update in each.updates))
    assert len(big) == 11  # 99 kB
    assert kept == {bytes([number]) * 9_000 for number in range(15)} - big
    assert all("TooLarge" in each.error for each in aside(db, name))
    assert transact(db, lambda tr: queue.get(tr, "small")) == set(range(15))


def test_a_pass_of_other_code_than_configured_is_refused(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    code = code_of(db, name)
    other = configured(db, f"{name}-2", buckets=2)

    with pytest.raises(cq.errors.CodeMismatch):
        transact(db, lambda tr: Pass(tr, cq.App().code(_renamed(other, name)), 0).run())
    transact(db, lambda tr: Pass(tr, code, 0).run())


def _renamed(config: admin.QueueConfig, name: str) -> admin.QueueConfig:
    return admin.QueueConfig(
        name,
        key=config.key,
        value=config.value,
        combiner=config.combiner,
        observers=config.observers,
        buckets=config.buckets,
    )


@pytest.mark.parametrize("missed", [False, True])
@pytest.mark.parametrize("converting", [b"", b"cursor", None])
def test_a_state_comes_back_as_it_was(missed: bool, converting: bytes | None) -> None:
    state = BucketState(
        b"token", True, b"cursor", 7, {1: None, 2: b"cursor"}, missed=missed, converting=converting
    )

    assert BucketState.from_bytes(state.to_bytes()) == state


def test_a_row_from_the_future_keeps_its_notification_also_alone(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    queue = QueueKeys(name)
    future = queue.rows(1, 0)[0] + b"\x7f" + bytes(17)
    add(db, name, {"a": 1})
    combine_all(db, name)

    def write(tr: Any) -> None:
        tr.set(future, codec.encode([None, codec.encode("a"), 100]))
        tr.set(queue.notification(1, 0), b"copied, too")

    transact(db, write)

    assert one_pass(db, name).found_copied
    assert stored(db, queue.notifications()) != []


def test_large_values_do_not_take_the_turns_of_others(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, value=set, combiner="union", buckets=1)
    hot = [f"large{number}" for number in range(10)]
    add(db, name, *({key: {bytes([turn]) * 20_000} for key in hot} for turn in range(4)))
    combine_all(db, name, app)
    bucket = buckets_of(db, name, app, Limits(load_bytes=200_000))[0]
    seen.changes.clear()
    for turn in range(40):
        add(db, name, {**{key: {turn} for key in hot}, f"small{turn % 20}": {turn}})
        bucket.combine()

    reports = Counter(change.key for change in seen.changes)
    assert min(reports[key] for key in hot) >= max(reports[key] for key in hot) // 2


def test_what_an_observer_does_to_its_changes_stays_with_it(db: Any, name: str) -> None:
    def observer(tr: Any, changes: list[cq.Change[str, Any]]) -> None:
        for change in changes:
            assert change.new is not None
            change.new.clear()

    seen = Seen()
    app = app_with(db, name, observer, seen.observer, value=set, combiner="union", buckets=1)
    bucket = buckets_of(db, name, app)[0]
    for number in range(4):
        add(db, name, {"a": {number}})
        bucket.combine()

    assert values(db, name) == seen.values == {"a": {0, 1, 2, 3}}


def test_values_that_only_python_calls_equal_are_told_apart(db: Any, name: str) -> None:
    cq.configure(db, name, value="any", combiner="last", buckets=1)
    for value in ([1], [True], [1.0]):
        add(db, name, {"a": value})
        combine_all(db, name)
        assert repr(transact(db, lambda tr: cq.CombineQueue(name).get(tr, "a"))) == repr(value)


def test_values_that_cannot_be_compared_are_a_change_and_nothing_is_set_aside(db: Any, name: str) -> None:
    def combine(key: str, values: Any) -> list[Any]:
        return values[0] if len(values) == 1 else [Decimal("sNaN")]  # it raises when it is compared

    app = app_with(db, name, combiner=cq.Combiner("odd", 1, combine), value=list, buckets=1)
    add(db, name, {"a": [1]})
    combine_all(db, name, app)
    add(db, name, {"a": [2]})

    result = one_pass(db, name, app)

    assert (result.aside, aside(db, name)) == ({}, [])
    assert [codec.encode(value) for _, value in cq.CombineQueue(name).scan(db)] == [*result.values.values()]


def test_sets_in_another_order_are_no_change(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, value=set, combiner="union", buckets=1)
    for items in ({1, 9, 17}, {17, 1}, {9}):
        add(db, name, {"a": items})
        combine_all(db, name, app)

    assert len(seen.changes) == 1


def test_a_combiner_sees_single_values_too(db: Any, name: str) -> None:
    cq.configure(db, name, value=dict, combiner="counter", buckets=1)
    add(db, name, {"a": {"x": 0}, "b": {"x": 0, "y": 1}})
    combine_all(db, name)

    assert values(db, name) == {"b": {"y": 1}}


def test_an_observer_may_add_to_the_queue_it_observes(db: Any, name: str) -> None:
    queue = cq.CombineQueue(name)

    def echo(tr: Any, changes: list[cq.Change]) -> None:
        queue.add(tr, {change.key + "'": change.new for change in changes if len(change.key) < 4})

    app = app_with(db, name, echo, buckets=1)
    add(db, name, {"a": 2})
    while not nothing_queued(db, name):
        combine_all(db, name, app)

    assert dict(queue.scan(db)) == {"a": 2, "a'": 2, "a''": 2, "a'''": 2}
