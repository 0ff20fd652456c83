"""Observers enabled on a queue that holds values: told of all of them, once each, while updates go on."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.backfill import backfill_progress, current_generation, publish_generations
from cq.admin.configure import rebuild_observer
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import QueueKeys
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.store.transact import transact
from tests.kit.faults import Died
from tests.kit.observing import Seen, app_of, app_with
from tests.kit.queues import add, aside, code_of, combine_all, configured, nothing_queued, stored, values


def current(db: Any, name: str, observer: str) -> int | None:
    return transact(db, lambda tr: current_generation(tr, name, observer))


def test_an_observer_enabled_later_is_told_of_all_values(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=3)
    add(db, name, {f"k{number}": number + 1 for number in range(50)})
    combine_all(db, name)
    seen = Seen()
    app = app_with(db, name, seen.observer)
    assert not nothing_queued(db, name)  # every bucket is notified
    assert current(db, name, "seen") is None
    Worker(db, app, [name]).drain()

    assert seen.values == values(db, name)
    assert all(change.old is None for change in seen.changes)
    assert len(seen.changes) == 50
    assert current(db, name, "seen") == 1


def test_a_value_that_an_observer_cannot_be_told_of_holds_nobody_up(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(30)})
    combine_all(db, name)
    seen = Seen({"k7"})
    combine_all(db, name, app_with(db, name, seen.observer))

    assert seen.values.keys() == {f"k{number}" for number in range(30)} - {"k7"}
    assert [(codec.decode(each.encoded_key), each.updates) for each in aside(db, name)] == [("k7", [])]
    assert len(values(db, name)) == 30


def test_a_new_version_is_a_new_generation_and_the_old_data_goes_when_it_is_complete(
    db: Any, name: str
) -> None:
    def keep(config: Any, settings: Any, generation: int) -> Any:
        prefix = QueueKeys(name).observer_data(generation)

        def function(tr: Any, changes: list[cq.Change]) -> None:
            for change in changes:
                tr.set(prefix + change.key.encode(), codec.encode([settings["scale"], change.new]))

        return function

    def scaled(scale: int) -> cq.App:
        return app_of(name, admin.ObserverSpec("kept", 1, {"scale": scale}, keep))

    scaled(1).configure(db, name, buckets=2)
    add(db, name, {"a": 1, "b": 2, "c": 3})
    combine_all(db, name, scaled(1))
    scaled(10).configure(db, name, buckets=2)
    changed = configured(db, name)

    assert [each.generation for each in changed.observers] == [2]
    assert current(db, name, "kept") == 1
    assert transact(db, lambda tr: backfill_progress(tr, read_config(tr, name))) == {"kept": 0}
    assert not publish_generations(db, name)
    Worker(db, scaled(10), [name]).drain()
    assert current(db, name, "kept") == 2
    assert transact(db, lambda tr: backfill_progress(tr, read_config(tr, name))) == {}
    data = stored(db, QueueKeys(name).all_observer_data())
    assert [codec.decode(value) for _, value in data] == [[10, 1], [10, 2], [10, 3]]
    assert all(key.startswith(QueueKeys(name).observer_data(2)) for key, _ in data)


def test_an_observer_can_be_rebuilt_and_removed(db: Any, name: str) -> None:
    seen = Seen()
    app = app_with(db, name, seen.observer, buckets=2)
    add(db, name, {"a": 1})
    combine_all(db, name, app)
    seen.values.clear()
    rebuild_observer(db, name, "seen")
    Worker(db, app, [name]).drain()

    assert seen.values == {"a": 1}
    assert current(db, name, "seen") == 2
    with pytest.raises(cq.errors.InvalidConfiguration, match="no observer 'other'"):
        rebuild_observer(db, name, "other")
    cq.configure(db, name, buckets=2, observers=[])
    assert current(db, name, "seen") is None
    assert transact(db, lambda tr: read_config(tr, name)).observers == ()
    combine_all(db, name)


def test_buckets_remember_nothing_of_old_observers(db: Any, name: str) -> None:
    seen = Seen()
    seen.app(name).configure(db, name, buckets=1)
    cq.configure(db, name, buckets=1, observers=[])
    add(db, name, {"a": 1})
    combine_all(db, name)
    again = Seen()
    again.app(name).configure(db, name, buckets=1, report_again=True)
    combine_all(db, name, again.app(name))

    assert again.values == {"a": 1}


def test_a_value_that_kills_workers_is_found_and_passed_over(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(20)})
    combine_all(db, name)
    told: set[str] = set()

    def observer(tr: Any, changes: list[cq.Change]) -> None:
        if any(change.key == "k7" for change in changes):
            raise Died
        told.update(change.key for change in changes)

    app = app_with(db, name, observer)
    deaths = 0
    while not nothing_queued(db, name):
        if deaths < 8:
            add(db, name, {f"a{deaths}": 1})
        try:
            combine_all(db, name, app, Limits(stale_seconds=0))
        except Died:
            deaths += 1
            assert deaths < 40

    assert [codec.decode(each.encoded_key) for each in aside(db, name)] == ["k7"]
    assert told >= {f"k{number}" for number in range(20)} - {"k7"}


def test_a_value_that_is_refused_does_not_slow_a_busy_bucket(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {f"k{number}": 1 for number in range(50)})
    combine_all(db, name)
    app = app_with(db, name, Seen({"k7"}).observer)
    bucket = PassRunner(db, code_of(db, name, app), 0)
    reported = 0
    for turn in range(60):
        add(db, name, {f"n{turn}-{number}": 1 for number in range(5)})
        reported += bucket.combine().reported

    assert reported >= 250
    assert [codec.decode(each.encoded_key) for each in aside(db, name)] == ["k7"]


def test_an_update_that_one_observer_refuses_leaves_no_gap_for_another(db: Any, name: str) -> None:
    failing, second = True, Seen()

    def first(tr: Any, changes: list[cq.Change]) -> None:
        if failing and any(change.key == "a" and change.new == 6 for change in changes):
            raise RuntimeError("not 6")

    app = app_with(db, name, first, buckets=1)
    add(db, name, {"a": 5})
    combine_all(db, name, app)
    app = app_with(db, name, first, second.observer)
    add(db, name, {"a": 1})
    combine_all(db, name, app)
    failing = False
    add(db, name, {"a": 2})
    combine_all(db, name, app)

    assert second.values == values(db, name) == {"a": 7}


def test_data_of_generations_that_nobody_reads_goes(db: Any, name: str) -> None:
    def keep(config: Any, settings: Any, generation: int) -> Any:
        prefix = QueueKeys(name).observer_data(generation)
        return lambda tr, changes: [tr.set(prefix + change.key.encode(), b"") for change in changes]

    app = app_with(db, name, admin.ObserverSpec("kept", 1, {}, keep), buckets=2)
    add(db, name, {f"k{number}": 1 for number in range(20)})
    combine_all(db, name, app)
    rebuild_observer(db, name, "kept")
    for _ in range(2):
        PassRunner(db, code_of(db, name, app), 0).combine()
    rebuild_observer(db, name, "kept")
    assert {key[-1:] for key, _ in stored(db, QueueKeys(name).all_observer_data())} != set()

    cq.configure(db, name, observers=[])

    assert stored(db, QueueKeys(name).all_observer_data()) == []


def test_a_function_can_be_rebuilt_as_it_is_configured(db: Any, name: str) -> None:
    def told(tr: Any, changes: list[cq.Change]) -> None: ...

    cq.configure(db, name, observers=[told])
    (rebuilt,) = rebuild_observer(db, name, told).observers
    assert (str(rebuilt), rebuilt.generation) == ("told@1", 2)
    with pytest.raises(InvalidConfiguration, match="expected an observer to be a named function"):
        rebuild_observer(db, name, None)  # type: ignore[arg-type]
