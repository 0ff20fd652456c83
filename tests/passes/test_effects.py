"""What passes decide, as tables: from a view that is written down here to its effects, without a store."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pytest

import cq
from cq.app import QueueCode
from cq.combiners import sum_
from cq.config.queue import Named, ObserverConfig, QueueConfig
from cq.encoding import codec
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.passes.bucket_cache import BucketCache
from cq.passes.combining import combine
from cq.passes.decision import Decision, decide
from cq.passes.effects import ManyFailed
from cq.passes.plan import Limits, PassPlan
from cq.passes.view import Step, Taken, View
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import MissedReports
from cq.queue.rows import Backlog, Row, by_key

KEYS: Final = QueueKeys("q")
OBSERVER: Final = ObserverConfig("seen", 1, {}, 1)


def row(number: int, **updates: int) -> Row:
    """A row of a transaction with this version."""
    key = KEYS.rows(1, 0)[0] + number.to_bytes(8, "big") + bytes(10)
    pairs = ((codec.encode(word), update) for word, update in updates.items())
    return Row.of(key, codec.encode([None, *chain.from_iterable(pairs)]), None)


def view(*rows: Row, is_observed: bool = False, combiner: Any = sum_, **details: Any) -> View:
    """The view of a pass that has read these rows of bucket 0, and takes all of them."""
    observers = (OBSERVER,) if is_observed else ()
    config = QueueConfig(
        "q",
        key=codec.KeyType.parse(str),
        value=codec.ValueType.parse(int),
        combiner=Named(combiner.name, combiner.version),
        observers=observers,
        buckets=1,
        observer_generations=1,
    )
    code = QueueCode(config, combiner, tuple((lambda tr, changes: None) for _ in observers))
    found = View(code, 0, details.pop("plan", PassPlan()), BucketCache(), read_version=9_000_000)
    found.state = details.pop("state", BucketState(token=b"before"))
    found.rows, found.queued = list(rows), by_key(rows)
    at_end = details.pop("at_end", True)
    last_key = rows[-1].key if rows else None
    found.backlog = Backlog(
        found.rows, at_end=at_end, last_key=last_key, size=sum(each.size for each in rows)
    )
    found.taken = Taken(details.pop("step", Step.COMBINE), found.queued)
    found.positions = {1: None} if is_observed else {}
    found.missed = MissedReports(config, 0, found.state) if is_observed else None
    for name, value in details.items():
        setattr(found, name, value)
    return found


def reporting(*words: str, **current: int) -> dict[str, Any]:
    """The part of a view with the keys to report and their current values."""
    keys = {word: codec.encode(word) for word in words}
    values = {key: codec.encode(current[word]) if word in current else None for word, key in keys.items()}
    return {"report": list(keys.values()), "current": values}


def written(effects: Any, at: Any = KEYS.value) -> dict[str, Any]:
    """{word: what the effects set for it, None if they clear it} of the words a to d."""
    keys = {word: at(codec.encode(word)) for word in "abcd"}
    found = {word: effects.sets[key] for word, key in keys.items() if key in effects.sets}
    return {word: None if data is None else codec.decode(data) for word, data in found.items()}


def state_of(effects: Any) -> BucketState:
    return BucketState.from_bytes(effects.sets[KEYS.state(1, 0)])


def test_reported_keys_get_the_sum_of_their_value_and_their_updates() -> None:
    effects = combine(view(row(1, a=1, b=2), row(2, a=3, c=-5), **reporting("a", "b", "c", b=10, c=5)))

    assert written(effects) == {"a": 4, "b": 12, "c": None}
    assert effects.ranges == [(KEYS.rows(1, 0)[0], row(2).key + b"\0")]
    assert (effects.result.reported, effects.result.updates, effects.result.rows) == (3, 4, 2)
    assert not effects.result.more
    assert state_of(effects).token not in (b"", b"before")


def test_an_update_that_changes_nothing_is_not_written() -> None:
    effects = combine(view(row(1, a=0), is_observed=True, **reporting("a", a=7)))

    assert written(effects) == {}
    assert effects.changes == []
    assert effects.result.reported == 1


def test_keys_that_are_not_reported_are_folded_and_staged_after_what_is_staged() -> None:
    state = BucketState(token=b"before", staged=True)
    staged = {codec.encode("b"): codec.encode(100)}
    effects = combine(view(row(1, a=1, b=2), row(2, b=3), state=state, staged=staged, **reporting("a")))

    assert written(effects) == {"a": 1}
    assert written(effects, KEYS.staged) == {"b": 105}
    assert (effects.result.folded, effects.result.more) == (1, True)
    assert state_of(effects).staged


def test_a_fold_writes_rows_again_under_the_keys_of_the_first_ones() -> None:
    rows = [row(number, a=1, b=2) for number in range(1, 4)]
    effects = combine(view(*rows, step=Step.FOLD, report=[]))

    content = codec.decode(effects.sets[rows[0].key] or b"")
    assert dict(zip(content[1::2], content[2::2], strict=True)) == {
        codec.encode("a"): 3,
        codec.encode("b"): 6,
    }
    assert written(effects, KEYS.staged) == {}
    assert effects.result.more
    assert not state_of(effects).staged


def test_observers_receive_changes_that_are_complete_only_if_all_rows_are_taken() -> None:
    changes = combine(view(row(1, a=1), is_observed=True, **reporting("a", a=1))).changes
    overload = combine(view(row(1, a=1), is_observed=True, at_end=False, **reporting("a", a=1)))

    assert [change for _, change in changes] == [cq.Change("a", 1, 2, complete=True)]
    assert [change for _, change in overload.changes] == [cq.Change("a", 1, 2, complete=False)]
    assert overload.result.more
    assert state_of(overload).unfinished_since == 9_000_000


def test_the_updates_of_a_rejected_key_are_set_aside_and_its_value_stays() -> None:
    plan = PassPlan(max_report=0, rejected={codec.encode("a"): KeyFailure("no")})
    effects = combine(view(row(1, a=1, b=2), plan=plan))

    assert list(effects.result.aside) == [codec.encode("a")]
    assert written(effects) == {}
    assert written(effects, KEYS.staged) == {"b": 2}
    ((operation, key, data),) = effects.atomics
    assert operation == "set_versionstamped_key"
    assert codec.encode("a") in key
    assert codec.decode(data)[1:] == [1]


def _refuses_a(key: str, values: Any) -> int:
    if key == "a":
        raise ValueError("no")
    return sum(values)


def test_a_key_at_which_the_combiner_fails_is_set_aside_and_the_others_go_on() -> None:
    combiner = cq.Combiner("refuses", 1, _refuses_a)
    effects = combine(view(row(1, a=1, b=2), combiner=combiner, **reporting("a", "b")))

    assert list(effects.result.aside) == [codec.encode("a")]
    assert written(effects) == {"b": 2}


def _refuses(key: str, values: Any) -> int:
    raise ValueError("no")


def test_if_too_many_keys_fail_nothing_is_decided() -> None:
    words = {f"k{number}": 1 for number in range(10)}
    combiner = cq.Combiner("refuses", 1, _refuses)

    with pytest.raises(ManyFailed, match="10 keys of one pass failed"):
        combine(view(row(1, **words), combiner=combiner, **reporting(*words)))


def test_a_new_observer_receives_stored_values_up_to_the_place_reached() -> None:
    plan = PassPlan(max_report=0, max_backfill=2)
    values = [(codec.encode(key), codec.encode(number)) for key, number in (("a", 1), ("b", 2))]
    found = view(is_observed=True, plan=plan, first=(values, b"place"))
    found.positions = {1: b""}
    effects = combine(found)

    assert effects.news == {1: [cq.Change("a", None, 1, True), cq.Change("b", None, 2, True)]}
    assert state_of(effects).observers == {1: b"place"}
    assert effects.result.backfilling


def test_a_value_that_an_observer_rejects_in_a_backfill_is_noted_as_missed() -> None:
    a = codec.encode("a")
    plan = PassPlan(max_report=0, max_backfill=1, rejected_in_backfill={a: KeyFailure("no")})
    found = view(is_observed=True, plan=plan, first=([(a, codec.encode(1))], None))
    found.positions = {1: b""}
    effects = combine(found)

    assert effects.news == {}
    assert list(effects.result.aside) == [a]
    assert state_of(effects).missed
    assert state_of(effects).observers == {1: None}


MANY: Final = [row(1, **{f"w{number}": 1 for number in range(200)})]
REPEATED: Final = [row(number, a=1, b=1, c=1) for number in range(1, 40)]
SMALL: Final = Limits(write_bytes=2_000, observer_bytes=0)


@pytest.mark.parametrize(
    ("rows", "plan", "at_end", "step"),
    [
        (REPEATED, PassPlan(), True, Step.COMBINE),
        (REPEATED, PassPlan(), False, Step.FOLD),  # far fewer updates make room for more of the backlog
        (MANY, PassPlan(SMALL), True, Step.COMBINE),
        (MANY, PassPlan(SMALL, may_sort=True), True, Step.SORT),
        (MANY, PassPlan(may_sort=True), True, Step.COMBINE),  # one pass can write all of them
        (REPEATED, PassPlan(max_take=2), False, Step.COMBINE),  # a pass that looks for a key at fault
        (REPEATED, PassPlan(replace(Limits(), repack_bytes=0)), False, Step.COMBINE),
    ],
)
def test_a_backlog_is_combined_folded_or_sorted(
    rows: list[Row], plan: PassPlan, at_end: bool, step: Step
) -> None:
    assert decide(view(*rows, at_end=at_end, plan=plan), may_sort=plan.may_sort).step is step


def test_a_pass_takes_as_many_keys_as_it_may_write() -> None:
    found = decide(view(*MANY, plan=PassPlan(SMALL)), may_sort=False)

    assert 1 < len(found.wanted) < 200
    assert found == Decision(Step.COMBINE, found.wanted, found.size)
    assert list(found.wanted) == list(by_key(MANY))[: len(found.wanted)]  # a prefix of the backlog


def test_nothing_is_written_again_as_rows_while_updates_are_staged() -> None:
    found = view(*REPEATED, at_end=False, state=BucketState(token=b"before", staged=True))

    assert decide(found, may_sort=False).step is Step.COMBINE
