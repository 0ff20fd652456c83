"""Sizes of the transactions of passes, whatever the sizes of keys and values; and how much memory a purge needs."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

import cq
from cq import admin
from cq.admin.purging import delete
from cq.admin.rebucketing import finish_rebucket, rebucket
from cq.bucket.pass_runner import PassRunner
from cq.observers.top.index import top
from cq.passes.plan import LOCAL_LIMITS, Limits
from cq.queue.operation_ids import Trim
from cq.store import sizes
from cq.store.transact import transact
from cq.windows import Window
from tests.kit.queues import add, code_of, configured, values
from tests.kit.sized import MOST, Sized, drained, fill, words

pytestmark = pytest.mark.sampled(3)

KEYS: Final = [(10, 12_000), (200, 4_000), (7_900, 300)]
"""(bytes of a key, how many keys)."""


@pytest.mark.parametrize(("size", "number"), KEYS)
@pytest.mark.parametrize(
    ("is_observed", "repack_bytes"), [(True, 0), (False, Limits().repack_bytes)], ids=["staged", "rows"]
)
def test_a_pass_writes_at_most_a_megabyte(
    db: Any, name: str, size: int, number: int, is_observed: bool, repack_bytes: int
) -> None:
    cq.configure(db, name, buckets=1, observers=[top()] if is_observed else [])
    for _ in range(2):
        fill(db, name, size, number)
    found = drained(db, name, replace(Limits(), repack_bytes=repack_bytes))

    assert max(found) <= MOST
    assert values(db, name) == dict.fromkeys(words(size, number), 2)


@pytest.mark.parametrize(("size", "number"), [(10, 1_500), (7_900, 100)])
def test_large_values_count(db: Any, name: str, size: int, number: int) -> None:
    cq.configure(db, name, combiner="last", value=str, buckets=1)
    for update in ("x" * 2_000, "y" * 2_000):
        fill(db, name, size, number, update)
        assert max(drained(db, name)) <= MOST


@pytest.mark.parametrize(("size", "number", "periods"), [(5, 3_000, 7), (300, 1_000, 1), (7_000, 100, 7)])
def test_passes_over_a_queue_and_its_levels_write_at_most_a_megabyte(
    db: Any, name: str, size: int, number: int, periods: int
) -> None:
    settings = {"rollup": "1s:1h,1m:2h,5m:3h,15m:4h,1h:60d,1d:forever", "window": "600/0.1"}
    config = configured(db, name, buckets=1, **settings)
    window, keys, now = Window[str](name), words(size, number), time.time()
    updates = [(key, 1 << 60, now - 0.5 * (place % periods)) for place, key in enumerate(keys * periods)]
    step = 200_000 // (size + 30)
    for first in range(0, len(updates), step):
        transact(db, partial(window.add_each, updates=updates[first : first + step]))

    for each in (name, *config.level_names):
        assert max(drained(db, each)) <= MOST
    assert values(db, f"{name}.window") == dict.fromkeys(keys, periods << 60)


@pytest.mark.parametrize(
    ("size", "number", "is_observed"), [(10, 12_000, True), (200, 4_000, False), (7_900, 300, True)]
)
def test_a_purge_writes_at_most_a_megabyte(
    db: Any, name: str, size: int, number: int, is_observed: bool
) -> None:
    cq.configure(db, name, buckets=1, observers=[top()] if is_observed else [])
    fill(db, name, size, number)
    drained(db, name, None if is_observed else LOCAL_LIMITS)
    admin.purge(db, name)

    assert max(drained(db, name)) <= MOST
    assert list(cq.CombineQueue(name).scan(db)) == []


@pytest.mark.parametrize(("size", "number"), KEYS)
def test_reports_of_all_values_to_a_new_observer_write_at_most_a_megabyte(
    db: Any, name: str, size: int, number: int
) -> None:
    cq.configure(db, name, buckets=1)
    fill(db, name, size, number)
    drained(db, name, LOCAL_LIMITS)
    cq.configure(db, name, observers=[top()])

    assert max(drained(db, name)) <= MOST


@pytest.mark.parametrize("db", ["embedded"], indirect=True)
@pytest.mark.parametrize(("size", "number", "is_observed"), [(10, 60_000, False), (7_900, 1_200, True)])
def test_no_transaction_of_an_embedded_store_is_refused_as_too_large(
    db: Any, name: str, size: int, number: int, is_observed: bool
) -> None:
    cq.configure(db, name, buckets=1, observers=[top()] if is_observed else [])
    fill(db, name, size, number)
    assert max(drained(db, name, LOCAL_LIMITS)) < 10_000_000
    admin.purge(db, name)
    assert max(drained(db, name, LOCAL_LIMITS)) < 10_000_000


@pytest.mark.parametrize("db", ["embedded"], indirect=True)
def test_no_folding_of_a_queue_with_levels_is_refused_as_too_large(db: Any, name: str) -> None:
    """Its updates are written twice for two levels, and once as rows."""
    configured(db, name, buckets=1, rollup="1m:1h,1h:forever")
    for _ in range(3):
        fill(db, name, 10, 90_000)

    assert max(drained(db, name, LOCAL_LIMITS)) < 10_000_000


def test_a_backlog_of_which_too_little_can_be_folded_is_combined(db: Any, name: str) -> None:
    """The keys that a pass can add to the levels have one update each: folded, they would be as large, and staged."""
    configured(db, name, buckets=1, rollup="1m:1h,1h:forever")
    for _ in range(3):
        fill(db, name, 10, 4_000)
    found = drained(db, name, replace(Limits(), write_bytes=150_000, observer_bytes=50_000))

    assert len(found) < 20
    assert dict(cq.CombineQueue(name).scan(db)) == dict.fromkeys(words(10, 4_000), 3)


def test_a_purge_needs_little_memory_for_large_keys(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    fill(db, name, 7_900, 1_000)
    drained(db, name)
    admin.purge(db, name)
    tracemalloc.start()
    try:
        drained(db, name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 10_000_000


def test_sizes_are_those_of_the_store(db: Any) -> None:
    """A clear, and a set, as predicted: not less than they are."""
    key, value = b"k" * 1_000, b"v" * 500
    clearing, setting = db.create_transaction(), db.create_transaction()
    clearing.clear(key)
    setting.set(key, value)
    for tr, predicted in (
        (clearing, sizes.clear_bytes(key)),
        (setting, sizes.SET_COPIES * len(key) + sizes.WRITE_BYTES + len(value)),
    ):
        found = tr.get_approximate_size().wait()
        assert 0.9 * predicted < found <= predicted + 1


def test_forgetting_operation_ids_writes_at_most_a_megabyte(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    for number in range(400):
        add(db, name, {"k": 1}, once=f"{number:0900}")
    drained(db, name)
    sized = Sized(db)
    trimming = Trim(sized, name, 0.0)
    while trimming.step():
        pass

    assert trimming.removed == 400
    assert 0 < max(sized.sizes) <= MOST


def test_changes_of_shape_write_little_whatever_is_queued(db: Any, name: str) -> None:
    """A change of shape notifies each bucket, and finishing it clears ranges."""
    sized = Sized(db)
    cq.configure(sized, name, buckets=4_096)
    rebucket(sized, name, 8)
    assert max(sized.sizes) <= MOST

    delete(db, name)
    cq.configure(db, name, buckets=8)
    fill(db, name, 7_900, 200)
    rebucket(db, name, 1)
    drained_of(db, name)
    sized.sizes.clear()
    assert finish_rebucket(sized, name)
    assert max(sized.sizes) <= 10_000


def drained_of(db: Any, name: str) -> None:
    """Combine all that is queued under the shape before."""
    code = code_of(db, name)
    former = code.config.under_former_shape()
    assert former is not None
    for number in range(former.buckets):
        bucket = PassRunner(db, replace(code, config=former), number)
        while bucket.combine().more:
            pass


def test_deleting_a_queue_writes_little_whatever_it_holds(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=2, observers=[top()])
    fill(db, name, 7_900, 200)
    drained(db, name)
    fill(db, name, 7_900, 200)
    sized = Sized(db)
    delete(sized, name)

    assert max(sized.sizes) <= 10_000
