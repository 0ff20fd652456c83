"""Runs: a deep backlog of many different keys, brought in order and merged."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cq
from cq import admin
from cq.bucket.pass_runner import PassRunner
from cq.encoding import codec
from cq.keys import QueueKeys, after
from cq.observers.top.index import top
from cq.passes.bucket_cache import FIRST_RUN, BucketCache, Run
from cq.passes.decision import sort_from_cursor
from cq.passes.effects import PassResult
from cq.passes.plan import Limits, PassPlan
from cq.passes.sorting import sort
from cq.passes.view import View, ViewReader
from cq.queue.bucket_state import BucketState
from cq.queue.rows import decode_row, read_rows
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.faults import Calls, FailedCalls, FaultyDatabase, WrappedDatabase
from tests.kit.queues import add, aside, begun, buckets_of, code_of, get, nothing_queued, put, stored, values
from tests.passes.passhelpers import BEGIN, calls_of, one_pass

WORDS: Final = [f"{number:0200}" for number in range(2_000)]
"""So long that a row has few of them, as a row of a large backlog is a small part of it."""
SMALL: Final = Limits(read_bytes=150_000, repack_bytes=200_000, max_report=600)
SORTING: Final = PassPlan(SMALL, may_sort=True)


def deep(db: Any, name: str, rounds: int = 2, update: Any = 1, **shape: Any) -> None:
    """A queue of one bucket in which every word has waited so many times, in an order of its own each time."""
    cq.configure(db, name, buckets=1, **shape)
    source = random.Random(7)
    for _ in range(rounds):
        order = source.sample(WORDS, len(WORDS))
        add(
            db,
            name,
            *(dict.fromkeys(order[start : start + 100], update) for start in range(0, len(order), 100)),
        )


def drained(bucket: PassRunner, most: int = 200) -> list[PassResult]:
    """What passes did until nothing was left."""
    results = [bucket.combine()]
    while results[-1].more:
        results.append(bucket.combine())
        assert len(results) < most, "nothing comes to an end"
    return results


def until_merging(bucket: PassRunner) -> None:
    while bucket.cache.runs.is_open or not bucket.cache.runs.remaining:
        assert bucket.combine().more


def test_each_key_is_reported_once_and_with_all_that_waited(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    results = drained(bucket)

    assert values(db, name) == dict.fromkeys(WORDS, 2)
    assert nothing_queued(db, name)
    made = [result for result in results if result.folded]
    assert made == results[: len(made)]
    assert not any(result.reported for result in made)
    assert len(made) >= 3
    # Updates that are written again as a run count once, when they are combined with the values.
    assert sum(result.updates for result in results) == 2 * len(WORDS)
    # The last few updates are no run of their own.
    assert len(WORDS) <= sum(result.reported for result in results) < 1.1 * len(WORDS)


def test_passes_that_merge_take_one_part_of_the_hash_range_after_the_other(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    begin = state_of(db, name).cursor
    cursors = []
    while bucket.cache.runs.remaining:
        bucket.combine()
        cursors.append(state_of(db, name).cursor)

    behind = [cursor for cursor in cursors if cursor > begin]
    before = [cursor for cursor in cursors if cursor <= begin]
    assert cursors == sorted(behind) + sorted(before)
    assert len(set(cursors)) == len(cursors) > 2


def state_of(db: Any, name: str) -> BucketState:
    return BucketState.from_bytes(transact(db, lambda tr: tr.get(QueueKeys(name).state(1, 0)).value))


def test_a_run_holds_its_keys_in_turn_and_no_add_is_in_it(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    add(db, name, {"new": 1})
    cursor = state_of(db, name).cursor
    runs = bucket.cache.runs.remaining

    assert len(runs) > 3
    found: list[bytes] = []
    for run in runs:
        rows = is_as_told(db, run, cursor)
        assert sum(len(key) + len(value) for key, value in rows) == run.size
        found += [key for key, _ in rows]
    everything = transact(db, lambda tr: read_rows(tr.snapshot, QueueKeys(name).rows(1, 0), 10_000_000))
    assert [row.key for row in everything.rows[: len(found)]] == found
    assert everything.rows[-1].updates == [(codec.encode("new"), 1)]


def is_as_told(db: Any, run: Run, cursor: bytes) -> list[tuple[bytes, bytes]]:
    """The rows of a run, which has what is remembered of it."""
    rows = stored(db, (run.first, after(run.last)))
    assert (len(rows), rows[-1][0]) == (run.rows, run.last)
    keys = [encoded for key, value in rows for encoded, _ in decode_row(key, value).updates]
    assert keys == sort_from_cursor(keys, cursor)
    assert len(keys) == run.updates
    return rows


def test_what_is_left_of_a_run_is_known(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    while runs := bucket.cache.runs.remaining:
        for run in runs:
            is_as_told(db, run, state_of(db, name).cursor)
        bucket.combine()


def test_large_values_are_merged_as_many_as_may_be_read_at_once(db: Any, name: str) -> None:
    deep(db, name, rounds=1, update="x" * 500, combiner="last", value=str)
    drain(db, name)
    for start in range(0, len(WORDS), 100):
        add(db, name, dict.fromkeys(WORDS[start : start + 100], "y"))
    (bucket,) = buckets_of(db, name, limits=replace(SMALL, load_bytes=20_000))
    results = drained(bucket)

    merged = [result.reported for result in results if result.reported and result.runs.is_any]
    assert len(merged) > 10
    assert max(merged) < 300
    assert values(db, name) == dict.fromkeys(WORDS, "y")


def test_reads_with_what_is_pending_see_everything_while_runs_are_merged(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    more = True
    while more:
        more = bucket.combine().more
        assert [get(db, name, word, pending=True) for word in WORDS[::200]] == [2] * 10


def test_what_is_added_while_runs_are_merged_comes_behind_them(db: Any, name: str) -> None:
    deep(db, name, combiner="last")
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    add(db, name, *(dict.fromkeys(WORDS[start : start + 500], 3) for start in range(0, len(WORDS), 500)))
    drained(bucket)

    assert values(db, name) == dict.fromkeys(WORDS, 3)


# What a pass costs


def test_a_pass_that_makes_a_run_reads_rows_once_and_writes_them_once(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    bucket.combine()

    reads, writes, result = calls_of(db, bucket.code, bucket.cache, limits=SMALL, may_sort=True)

    assert reads == ["get", "get_range"]  # the metadata version, rows
    assert writes == [*BEGIN, "clear_range", *["set"] * result.runs.remaining[-1].rows, "set"]


def test_a_pass_that_merges_reads_and_clears_the_beginning_of_each_run(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    runs = len(bucket.cache.runs.remaining)

    reads, writes, result = calls_of(db, bucket.code, bucket.cache, limits=SMALL, may_sort=True)

    # The metadata version; a range of each run; of the values, which lie side by side, ranges or single ones.
    assert reads[: runs + 1] == ["get", *["get_range"] * runs]
    assert 0 < len(reads) - runs - 1 <= result.reported
    # Of each run the rows that are taken, and the rest of one; the values, and the state.
    assert writes[: len(BEGIN)] == BEGIN
    clears = writes.count("clear_range")
    assert clears <= runs
    assert writes[len(BEGIN) : len(BEGIN) + clears] == ["clear_range"] * clears
    rest = writes[len(BEGIN) + clears :]
    assert set(rest) == {"set"}
    assert result.reported < len(rest) <= result.reported + runs + 1


def test_no_more_runs_are_merged_than_a_pass_can_read_the_beginnings_of(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.passes.sorting.MAX_RUNS", 3)
    deep(db, name, rounds=4)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    counts = []
    while bucket.combine().more:
        counts.append(len(bucket.cache.runs.remaining))

    assert max(counts) == 3
    assert counts.count(1) > 2  # more are made when these are gone
    assert values(db, name) == dict.fromkeys(WORDS, 4)


# What is not for runs


def refuse(db: Any, bucket: PassRunner) -> None:
    """The next pass over runs says that it is none, and has written nothing."""
    calls: Any = Calls(begun(db, bucket.code.config.name))
    view = View(bucket.code, 0, SORTING, bucket.cache)
    reader = ViewReader(calls, view)
    reader.read_state()
    assert sort(view, reader, bucket.cache.runs) is None
    assert calls.made == BEGIN


def test_a_worker_that_has_lost_its_runs_combines_their_rows_by_ordinary_passes(db: Any, name: str) -> None:
    deep(db, name, combiner="last")
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    bucket.combine()
    add(db, name, {WORDS[0]: 5})
    (other,) = buckets_of(db, name, limits=SMALL)
    assert other.combine().more  # in between
    refuse(db, bucket)
    results = drained(bucket)

    assert not any(result.runs.is_any for result in results)
    assert values(db, name) == dict.fromkeys(WORDS, 1) | {WORDS[0]: 5}
    assert nothing_queued(db, name)


def test_two_workers_that_take_turns_drain_a_deep_backlog(db: Any, name: str) -> None:
    """Each finds the runs of the other one: if both sorted again, neither would merge any."""
    deep(db, name)
    workers = [buckets_of(db, name, limits=SMALL)[0] for _ in range(2)]
    results = [workers[0].combine()]
    while results[-1].more:
        results.append(workers[len(results) % 2].combine())
        assert len(results) < 100, "the two workers undo each other's work"

    assert sum(result.runs.is_any for result in results) <= 4
    assert values(db, name) == dict.fromkeys(WORDS, 2)
    assert nothing_queued(db, name)


def test_a_worker_that_has_lost_its_runs_sorts_the_next_backlog(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,), (other,) = buckets_of(db, name, limits=SMALL), buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    other.combine()
    drained(bucket)
    for start in range(0, len(WORDS), 100):
        add(db, name, dict.fromkeys(WORDS[start : start + 100], 1))

    assert bucket.combine().runs.is_any
    drained(bucket)
    assert values(db, name) == dict.fromkeys(WORDS, 3)


def test_rows_are_not_sorted_while_older_updates_are_staged(db: Any, name: str) -> None:
    """Another worker stages updates between the pass that finds a deep backlog and the one that makes the first run."""
    deep(db, name, combiner="last")
    (bucket,) = buckets_of(db, name, limits=SMALL)
    bucket.cache.runs = FIRST_RUN
    one_pass(db, name, limits=replace(SMALL, repack_bytes=0), max_report=0)
    assert state_of(db, name).staged
    add(db, name, *(dict.fromkeys(WORDS[start : start + 100], 2) for start in range(0, len(WORDS), 100)))

    refuse(db, bucket)
    results = drained(bucket)
    assert not any(result.runs.is_any for result in results)
    assert values(db, name) == dict.fromkeys(WORDS, 2)
    assert nothing_queued(db, name)


def test_rows_are_not_sorted_while_older_updates_are_in_the_former_shape(db: Any, name: str) -> None:
    deep(db, name, rounds=1, combiner="last")
    admin.rebucket(db, name, 2)
    for update in (2, 3):
        for start in range(0, len(WORDS), 100):
            add(db, name, dict.fromkeys(WORDS[start : start + 100], update))
    bucket, other = buckets_of(db, name, limits=replace(SMALL, read_bytes=50_000, repack_bytes=50_000))
    bucket.cache.runs = FIRST_RUN

    assert bucket.combine().blocked
    assert other.combine().blocked
    assert values(db, name) == {}
    drain(db, name)
    assert values(db, name) == dict.fromkeys(WORDS, 3)
    assert nothing_queued(db, name)


@pytest.mark.parametrize("seed", range(6))
def test_of_runs_that_are_not_in_order_nothing_is_lost(db: Any, name: str, seed: int) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    source = random.Random(seed)
    run = source.choice(bucket.cache.runs.remaining)
    keys, contents = zip(*stored(db, (run.first, after(run.last))), strict=True)
    shuffled = source.sample(contents, len(contents))
    put(db, dict(zip(keys, shuffled, strict=True)))

    drained(bucket)
    assert values(db, name) == dict.fromkeys(WORDS, 2)
    assert nothing_queued(db, name)


def test_a_queue_that_is_observed_from_now_on_is_not_merged(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    cq.configure(db, name, observers=[top()])
    observed = PassRunner(db, code_of(db, name), 0, limits=SMALL, cache=bucket.cache)

    assert sum(result.observer_changes for result in drained(observed)) >= len(WORDS)
    assert values(db, name) == dict.fromkeys(WORDS, 2)


@pytest.mark.parametrize("is_observed", [False, True])
def test_backlogs_that_are_folded_first_are_not_sorted(db: Any, name: str, is_observed: bool) -> None:
    cq.configure(db, name, buckets=1, observers=[top()] if is_observed else [])
    for _ in range(20):
        add(db, name, dict.fromkeys(WORDS[:100], 1))
    bucket = PassRunner(db, code_of(db, name), 0, limits=SMALL)

    assert not any(result.runs.is_any for result in drained(bucket))
    assert values(db, name) == dict.fromkeys(WORDS[:100], 20)


def test_a_queue_that_is_to_be_purged_is_not_merged(db: Any, name: str) -> None:
    deep(db, name)
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    admin.purge(db, name)
    code = code_of(db, name)

    refuse(db, PassRunner(db, code, 0, cache=bucket.cache))
    drained(PassRunner(db, code, 0, limits=SMALL, cache=bucket.cache))
    assert values(db, name) == {}
    assert nothing_queued(db, name)


def test_a_queue_that_is_rebucketed_is_drained_of_its_runs(db: Any, name: str) -> None:
    deep(db, name, combiner="last")
    (bucket,) = buckets_of(db, name, limits=SMALL)
    until_merging(bucket)
    bucket.combine()
    admin.rebucket(db, name, 2)
    add(db, name, dict.fromkeys(WORDS[:50], 3))

    refuse(db, bucket)
    drain(db, name)
    assert values(db, name) == dict.fromkeys(WORDS, 1) | dict.fromkeys(WORDS[:50], 3)
    assert nothing_queued(db, name)


def test_a_key_that_cannot_be_combined_is_set_aside_and_the_rest_goes_on(db: Any, name: str) -> None:
    deep(db, name, update={1}, combiner="union", value=set)
    large = [f"{number:08000}" for number in range(20)]  # more than a value may have, all together
    add(db, name, *({"bad": {each}} for each in large))
    add(db, name, *({word: {2}} for word in WORDS[:1000]))
    (bucket,) = buckets_of(db, name, limits=SMALL)
    drained(bucket)

    found = values(db, name)
    (bad,) = aside(db, name)
    assert codec.decode(bad.encoded_key) == "bad"
    assert found.pop("bad", set()).union(*bad.updates) == set(large)
    assert found == {word: {1, 2} if word in WORDS[:1000] else {1} for word in WORDS}
    assert nothing_queued(db, name)


def test_a_row_that_cq_has_not_written_is_set_aside(db: Any, name: str) -> None:
    deep(db, name)
    bounds = QueueKeys(name).rows(1, 0)
    rows = stored(db, bounds)
    broken = rows[len(rows) * 3 // 4][0]
    lost = decode_row(*rows[len(rows) * 3 // 4]).updates
    transact(db, lambda tr: tr.set(broken, b"\xff"))
    (bucket,) = buckets_of(db, name, limits=SMALL)
    drained(bucket)

    assert len(aside(db, name)) == 1
    once = {codec.decode(encoded) for encoded, _ in lost}
    assert values(db, name) == {word: 1 if word in once else 2 for word in WORDS}
    assert nothing_queued(db, name)


def test_operations_that_were_added_twice_count_once(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    for _ in range(3):
        for start in range(0, len(WORDS), 100):
            add(db, name, dict.fromkeys(WORDS[start : start + 100], 1), once=f"piece {start}")
    rows = len(stored(db, QueueKeys(name).rows(1, 0)))
    (bucket,) = buckets_of(db, name, limits=SMALL)
    results = drained(bucket)

    assert values(db, name) == dict.fromkeys(WORDS, 1)
    assert sum(result.repeated for result in results) == rows * 2 / 3


def test_a_transaction_that_is_too_large_is_done_by_smaller_ones(db: Any, name: str) -> None:
    deep(db, name)
    limited = TooLarge(db)
    (bucket,) = buckets_of(limited, name, limits=SMALL)
    limited.cache = bucket.cache
    results = drained(bucket)

    assert limited.refused == 1
    were_any = [result.runs.is_any for result in results]
    refused = were_any.index(False)
    assert results[refused].retries
    assert results[refused].more
    assert not any(were_any[refused:])  # it would only be tried again and again
    for start in range(0, len(WORDS), 100):
        add(db, name, dict.fromkeys(WORDS[start : start + 100], 0))
    assert bucket.combine().runs.is_any  # but another backlog is sorted
    drained(bucket)
    assert values(db, name) == dict.fromkeys(WORDS, 2)
    assert nothing_queued(db, name)


class TooLarge(WrappedDatabase):
    """A database that finds one transaction of passes over runs too large."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.cache: BucketCache | None = None
        self.refused = 0

    def create_transaction(self) -> Any:
        tr = super().create_transaction()
        if self.cache and self.cache.runs.remaining and not self.cache.runs.is_open and not self.refused:
            self.refused += 1
            tr.options.set_size_limit(1_000)
        return tr


@pytest.mark.parametrize("code", [1020, 1007])
def test_a_transaction_that_is_refused_does_not_cost_the_runs(db: Any, name: str, code: int) -> None:
    deep(db, name)
    refusing = FailedCalls(db, code)
    (bucket,) = buckets_of(refusing, name, limits=SMALL)
    until_merging(bucket)
    runs = len(bucket.cache.runs.remaining)
    refusing.left = 1

    result = bucket.combine()
    assert result.retries == 1
    assert result.reported
    assert len(result.runs.remaining) == runs


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_whatever_the_store_refuses(db: Any, name: str, seed: int) -> None:
    deep(db, name)
    faulty = FaultyDatabase(db, seed, too_old=0.001)
    (bucket,) = buckets_of(faulty, name, limits=SMALL)
    drained(bucket)

    assert values(db, name) == dict.fromkeys(WORDS, 2)
    assert nothing_queued(db, name)


@pytest.mark.sampled(2)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_lost_or_reordered(db: Any, data: st.DataObject) -> None:
    """Two workers, of which one knows the runs, on a store that fails now and then; of combiners, `last`."""
    name = f"test-{secrets.token_hex(6)}"
    cq.configure(db, name, combiner="last", buckets=1)
    limits = Limits(
        read_bytes=data.draw(st.sampled_from([20_000, 40_000, 100_000])),
        repack_bytes=data.draw(st.sampled_from([10_000, 40_000, 100_000])),
        max_report=data.draw(st.integers(5, 50)),
    )
    code = code_of(db, name)
    faulty = FaultyDatabase(db, data.draw(st.integers()), conflict=0.05, unknown=0.05, too_old=0.001)
    ours, others = PassRunner(faulty, code, 0, limits=limits), PassRunner(db, code, 0, limits=limits)
    words = [f"{number:0900}" for number in range(60)]  # a row has eight
    expected: dict[str, int | None] = {}
    number = 0
    for act in data.draw(
        st.lists(st.sampled_from(["fill", "add", "combine", "other", "read"]), min_size=4, max_size=8)
    ):
        if act == "fill":
            source = random.Random(data.draw(st.integers()))
            order = [word for _ in range(source.randint(1, 2)) for word in source.sample(words, len(words))]
            for start in range(0, len(order), 10):
                number += 1
                add(db, name, dict.fromkeys(order[start : start + 10], number))
                expected.update(dict.fromkeys(order[start : start + 10], number))
        elif act == "add":
            key, number = words[data.draw(st.integers(0, 59))], number + 1
            value = data.draw(st.sampled_from([None, number]))
            add(db, name, {key: cq.DELETE if value is None else value})
            expected[key] = value
        elif act == "read":
            assert {key: get(db, name, key, pending=True) for key in expected} == expected
        else:
            worker = ours if act == "combine" else others
            for _ in range(data.draw(st.integers(1, 8))):
                worker.combine()
    drained(ours, 1_000)

    assert values(db, name) == {key: value for key, value in expected.items() if value is not None}
    assert nothing_queued(db, name)
