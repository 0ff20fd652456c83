"""Round trips to a cluster that an add and a pass wait for.

The tests count them by the order of requests and waits, so the counts are the same on both stores and at any load. All
requests between two waits are in flight together. A read is sent when the transaction has its read version, which
brings the metadata version with it. A range of these tests fits into one reply.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest.mock import patch

import cq
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.queue.pending import read_pending_updates
from cq.store import version_chain
from cq.store.api import is_local
from cq.store.transact import transact
from tests.kit.queues import add, code_of
from tests.kit.trips import COMMIT, VERSION, TripsDatabase


def repeated_on_a_cluster(test: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Repeat a test that fails on a cluster, up to 20 times.

    If a test beside it changes a configuration there, each add and pass reads its own configuration once more.
    """

    @wraps(test)
    def repeated(db: Any, name: str) -> None:
        for number in range(0 if is_local(db) else 19):
            try:
                test(db, f"{name}-{number}")
            except AssertionError:
                continue
            return
        test(db, name)

    return repeated


def configured(db: Any, name: str) -> Any:
    """A queue of one bucket whose configuration is cached."""
    cq.configure(db, name, key=str, value=int, combiner="sum", buckets=1)
    add(db, name, {"cached": 1})
    return cq.CombineQueue(name)


@repeated_on_a_cluster
def test_an_add_waits_for_its_read_version_and_its_commit(db: Any, name: str) -> None:
    queue, counted = configured(db, name), TripsDatabase(db)

    transact(counted, lambda tr: queue.add(tr, {"a": 1, "b": 2}))

    assert counted.trips == [VERSION, COMMIT]


@repeated_on_a_cluster
def test_an_add_in_a_transaction_with_a_read_version_waits_for_its_commit_only(db: Any, name: str) -> None:
    queue, counted = configured(db, name), TripsDatabase(db)
    tr = counted.create_transaction()
    tr.get(b"of the application").wait()
    before = counted.trips

    queue.add(tr, {"a": 1, "b": 2})
    tr.commit().wait()

    assert before == [VERSION, ["get"]]
    assert counted.trips == [*before, COMMIT]


@repeated_on_a_cluster
def test_an_add_of_a_write_only_transaction_waits_for_its_commit_only_while_a_chain_lasts(
    db: Any, name: str
) -> None:
    queue, counted = configured(db, name), TripsDatabase(db)

    with patch.object(version_chain, "CHAIN_SECONDS", 3600.0):
        for _ in range(3):
            transact(counted, lambda tr: queue.add(tr, {"a": 1, "b": 2}), write_only=True)

    assert counted.trips == [VERSION, COMMIT, COMMIT, COMMIT]


def test_the_first_add_reads_its_configuration_once_more(db: Any, name: str) -> None:
    queue, counted = configured(db, name), TripsDatabase(db)
    cq.configure(db, f"{name}-other", key=str, value=int, combiner="sum", buckets=1)  # invalidates the cache

    transact(counted, lambda tr: queue.add(tr, {"a": 1}))

    assert counted.trips == [VERSION, ["get"], COMMIT]


@repeated_on_a_cluster
def test_a_pass_waits_for_its_version_its_rows_its_values_and_its_commit(db: Any, name: str) -> None:
    configured(db, name)
    runner, counted = PassRunner(db, code_of(db, name), 0), TripsDatabase(db)
    runner.db = counted
    add(db, name, {"a": 1, "b": 2})

    assert not runner.combine().more

    state_notification_and_rows, values = ["get", "get", "get_range"], ["get"] * 3
    assert counted.trips == [VERSION, state_notification_and_rows, values, COMMIT]


@repeated_on_a_cluster
def test_a_pass_over_cached_values_reads_none(db: Any, name: str) -> None:
    configured(db, name)
    runner, counted = PassRunner(db, code_of(db, name), 0), TripsDatabase(db)
    runner.combine()
    add(db, name, {"cached": 1})
    runner.db = counted

    assert not runner.combine().more

    assert counted.trips == [VERSION, ["get", "get", "get_range"], COMMIT]


@repeated_on_a_cluster
def test_a_pending_read_of_all_buckets_looks_up_operation_ids_once(db: Any, name: str) -> None:
    cq.configure(db, name, key=str, value=int, combiner="sum", buckets=4)
    many = {str(number): 1 for number in range(40)}
    for once in ("first", "second", "second"):
        add(db, name, many, once=once)
    config = transact(db, lambda tr: read_config(tr, name))
    counted = TripsDatabase(db)
    snapshot = counted.create_transaction().snapshot

    assert read_pending_updates(snapshot, config) == {config.key.encoder()(key): [1, 1] for key in many}
    assert counted.trips.count(["get_range"] * 2) == 1  # the markers of both ids
