"""Folding into rows: what is not reported yet stays in the place of the rows that it came from."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cq
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.passes.bucket_cache import BucketCache
from cq.passes.combine_pass import Pass
from cq.passes.effects import PassResult
from cq.passes.plan import Limits, PassPlan
from cq.passes.repacking import repack
from cq.queue.bucket_state import BucketState
from cq.queue.packing import ROW_BYTES
from cq.queue.rows import Row, decode_row, encode_row, read_rows
from cq.store.transact import transact
from tests.kit.observing import Seen, app_with, concatenation
from tests.kit.queues import STAGING, add, aside, code_of, combine_all, get, nothing_queued, stored, values
from tests.passes.passhelpers import BEGIN, READ, calls_of, choosy, one_pass

encoded_keys = st.one_of(
    st.text(max_size=40).map(codec.encode),
    st.integers(1, 7_000).map(lambda length: codec.encode("x" * length)),
)
updates = st.one_of(st.integers(), st.text(max_size=400), st.lists(st.integers(), max_size=5))


def waiting(db: Any, name: str) -> list[Row]:
    """The rows of a queue of one bucket."""
    bounds = QueueKeys(name).rows(1, 0)
    return transact(db, lambda tr: read_rows(tr.snapshot, bounds, 1_000_000)).rows


@given(st.dictionaries(encoded_keys, updates, max_size=60))
def test_rows_are_what_an_add_would_have_written(folded: dict[bytes, Any]) -> None:
    places = [Row(b"row%d" % number, b"", None) for number in range(len(folded))]
    found = repack({encoded: codec.encode(update) for encoded, update in folded.items()}, places)

    rows = [decode_row(key, value) for key, value in found.items()]
    pairs = [pair for row in rows for pair in row.updates]
    assert dict(pairs) == folded
    assert [encoded for encoded, _ in pairs] == list(folded)
    assert list(found) == [row.key for row in places[: len(found)]]
    for row in rows:
        assert row.value == encode_row(row, range(len(row.updates)))
        assert len(row.updates) == 1 or row.size < ROW_BYTES + 100


def test_more_rows_than_there_were_are_none() -> None:
    folded = {b"k%d" % number: codec.encode("x" * 5_000) for number in range(3)}
    places = [Row(b"row%d" % number, b"", None) for number in range(3)]

    assert len(repack(folded, places)) == 3
    assert repack(folded, places[:2]) == {}


def passes(db: Any, name: str, **given: Any) -> list[PassResult]:
    """What passes over rows as they are did, until nothing was left."""
    results = [one_pass(db, name, **given)]
    while results[-1].more:
        results.append(one_pass(db, name, **given))
        assert len(results) < 100, "nothing comes to an end"
    return results


def test_a_pass_that_leaves_rows_writes_what_it_reports_and_few_rows(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, *({f"k{number}": 1 for number in range(9)} for _ in range(3)))
    code, cache = code_of(db, name), BucketCache()

    reads, writes, _ = calls_of(db, code, cache, max_report=4)

    # Rows as always, and four values; the rows cleared, four values written, one of the rows again, the state.
    assert reads == [*READ, *["get"] * 4]
    assert writes == [*BEGIN, "clear_range", *["set"] * 6]
    (row,) = waiting(db, name)
    assert [update for _, update in row.updates] == [3] * 5
    assert stored(db, QueueKeys(name).all_staged()) == []


def test_updates_that_are_written_again_count_once(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, *({f"k{number}": 1 for number in range(9)} for _ in range(3)))

    results = passes(db, name, max_report=4)

    assert [result.updates for result in results] == [27 - 5, 5 - 1, 1]
    assert values(db, name) == {f"k{number}": 3 for number in range(9)}


def test_all_keys_have_their_turn_and_reads_with_what_is_pending_see_everything(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    expected: Counter[str] = Counter()
    for number in range(30):
        added = {f"k{(number * place) % 40}": number for place in range(1, 12)}
        expected.update(added)
        add(db, name, added)
    passes = 0
    while one_pass(db, name, max_report=7).more:
        passes += 1
        add(db, name, {"k0": 1})  # keys that go on changing take nobody's turn
        expected["k0"] += 1
        found = {key: get(db, name, key, pending=True) for key in expected}
        assert found == {key: value or None for key, value in expected.items()}

    assert passes < 12
    assert values(db, name) == {key: value for key, value in expected.items() if value}
    assert nothing_queued(db, name)


def test_a_deep_backlog_of_few_keys_is_folded_before_any_is_reported(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, buckets=1)
    add(db, name, *({f"k{number % 5}": 1, "a": 1} for number in range(400)))

    results = combine_all(db, name, app, Limits(read_bytes=3_000))

    assert [result.folded for result in results[:-1]] == [6] * (len(results) - 1)
    assert not any(result.staged for result in results)
    assert all(change.complete for change in seen.changes)
    assert seen.values == {"a": 400} | {f"k{number}": 80 for number in range(5)}
    assert len(seen.changes) == 6


def test_a_deep_backlog_of_many_keys_is_reported_as_it_is_read_where_nobody_is_told(
    db: Any, name: str
) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, *({f"k{number}": 1} for number in range(300)))

    results = passes(db, name, limits=Limits(read_bytes=1_000))

    assert all(result.reported for result in results)
    assert not any(result.staged for result in results)
    assert values(db, name) == {f"k{number}": 1 for number in range(300)}


def test_keys_that_have_no_room_as_rows_do_not_hold_up_the_rest(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    for _ in range(3):
        add(db, name, *({f"k{number}": 1, f"k{number + 1}": 1} for number in range(0, 100, 2)))

    results = passes(db, name, limits=Limits(read_bytes=9_000, repack_bytes=600))

    assert all(result.reported for result in results)
    assert values(db, name) == {f"k{number}": 3 for number in range(100)}


def test_what_is_staged_is_not_left_behind(db: Any, name: str) -> None:
    """Rows come after what is staged: as long as anything is, nothing becomes rows."""
    app = app_with(db, name, combiner=concatenation, value=list, buckets=1)
    add(db, name, {"a": [1], "b": [1]})
    one_pass(db, name, app, limits=STAGING, max_report=0)
    add(db, name, {"a": [2], "b": [2]})
    assert one_pass(db, name, app, max_report=1).staged
    assert waiting(db, name) == []
    add(db, name, {"a": [3], "b": [3]})

    combine_all(db, name, app)
    assert values(db, name) == {"a": [1, 2, 3], "b": [1, 2, 3]}


def test_what_the_queue_would_not_take_as_an_update_is_staged(db: Any, name: str) -> None:
    """A combiner of an application may make of updates what is none, though it should not."""
    odd = cq.Combiner("odd", 1, lambda key, values: sum(values) if len(values) == 1 else 0.5)
    app = app_with(db, name, combiner=odd, value=int, buckets=1)
    add(db, name, {"a": 1, "b": 1}, {"a": 1, "b": 1})

    result = one_pass(db, name, app, max_report=0)

    assert result.folded == 2
    assert set(result.staged.values()) == {codec.encode(0.5)}
    assert waiting(db, name) == []


def test_a_key_that_cannot_be_folded_is_set_aside_alone(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=choosy, value=int, buckets=1)
    add(db, name, {"a": 1, "bad": 1, "b": 1}, {"a": 1, "bad": 1, "b": 1})
    one_pass(db, name, app, max_report=1)

    assert [each.encoded_key for each in aside(db, name)] == [codec.encode("bad")]
    assert {update for row in waiting(db, name) for _, update in row.updates} == {2}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_observed", [False, True])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_or_reordered(db: Any, is_observed: bool, data: st.DataObject) -> None:
    name = f"test-{secrets.token_hex(6)}"
    seen, app = Seen(), cq.App()
    observers = [cq.Observer("seen", 1, seen)] if is_observed else []
    app.queue(name, combiner=concatenation, observers=observers)
    app.configure(db, name, value=list, buckets=1)
    expected: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    code = code_of(db, name, app)
    for number in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            operation = data.draw(st.sampled_from([None, None, "x", "y"]))
            added = {key: [number] for key in data.draw(st.sets(st.sampled_from("abcdef"), min_size=1))}
            add(db, name, added, once=operation)
            if operation is None or first.setdefault(operation, number) == number:
                for key, update in added.items():
                    expected[key] = expected.get(key, []) + update
        else:
            limits = Limits(
                read_bytes=data.draw(st.sampled_from([20, 200, 10_000])),
                repack_bytes=data.draw(st.sampled_from([0, 40, 10_000])),
            )
            report, take = data.draw(st.integers(0, 3)), data.draw(st.sampled_from([None, None, 2]))
            transact(
                db,
                lambda tr, limits=limits, report=report, take=take: Pass(  # type: ignore[misc]
                    tr, code, 0, PassPlan(limits, max_report=report, max_take=take)
                ).run(),
            )
    combine_all(db, name, app)

    assert values(db, name) == expected
    assert not is_observed or seen.values == expected
    assert nothing_queued(db, name)
    state = transact(db, lambda tr: tr.get(QueueKeys(name).state(1, 0)).value)
    assert not BucketState.from_bytes(state).staged
