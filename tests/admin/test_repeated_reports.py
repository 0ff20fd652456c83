"""New versions and rebuilds of observers: what a former version has derived never counts a second time unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq import admin
from cq.admin.configure import repeated_reports, requested
from cq.admin.repeated_reports import refuse_repeats
from cq.config.queue import read_config
from cq.errors import ConfigurationConflict, InvalidConfiguration
from cq.passes.combine_pass import Pass
from cq.store.transact import transact
from tests.kit.clocks import jumping
from tests.kit.faults import TOO_OLD, error_class
from tests.kit.queues import add, code_of, combine_all, commits


class Derived:
    """An application whose observer keeps the sum of all values of a queue, under one key."""

    def __init__(self, db: Any, name: str, *, clears: bool = True) -> None:
        self.db, self.name = db, name
        self.key = f"test/{name}".encode()
        self.clear: Callable[[Any], object] | None = (lambda tr: tr.clear(self.key)) if clears else None

    def observer(self, version: int) -> cq.Observer:
        return cq.Observer("summed", version, self._observe, clear=self.clear)

    def app(self, version: int) -> cq.App:
        made = cq.App()
        made.queue(self.name, observers=[self.observer(version)] if version else [])
        return made

    def configure(self, version: int, db: Any = None, **settings: Any) -> None:
        self.app(version).configure(db or self.db, self.name, buckets=2, **settings)

    def combine(self, version: int) -> None:
        combine_all(self.db, self.name, self.app(version))

    def total(self) -> int:
        stored = transact(self.db, lambda tr: tr.get(self.key).value)
        return int.from_bytes(stored or b"", "little", signed=True)

    def _observe(self, tr: Any, changes: list[cq.Change]) -> None:
        difference = sum((change.new or 0) - (change.old or 0) for change in changes)
        tr.add(self.key, difference.to_bytes(8, "little", signed=True))


@pytest.fixture
def derived(db: Any, name: str) -> Derived:
    """With a sum of 30, of 12 keys."""
    made = Derived(db, name)
    made.configure(1)
    add(db, name, {f"k{number}": number % 6 for number in range(13)})
    made.combine(1)
    assert made.total() == 30
    return made


def version_of(derived: Derived) -> list[int]:
    config = transact(derived.db, lambda tr: read_config(tr, derived.name))
    return [each.version for each in config.observers]


def test_a_new_version_starts_from_nothing(derived: Derived) -> None:
    derived.configure(2)
    assert derived.total() == 0
    derived.combine(2)

    assert derived.total() == 30


def test_so_does_a_rebuild_with_the_observer(derived: Derived) -> None:
    admin.rebuild_observer(derived.db, derived.name, derived.observer(1))
    derived.combine(1)

    assert derived.total() == 30


def test_an_observer_that_comes_back_starts_from_nothing(derived: Derived) -> None:
    derived.configure(0)
    add(derived.db, derived.name, {"later": 5})
    derived.combine(0)
    derived.configure(1)
    derived.combine(1)

    assert derived.total() == 35


def test_without_a_clear_an_observer_that_comes_back_is_refused(derived: Derived) -> None:
    """As in a deployment that removes it, and the rollback of that."""
    derived.clear = None
    derived.configure(0)

    with pytest.raises(InvalidConfiguration, match=r"summed@1 \(which the queue had before\): .* stays"):
        derived.configure(1)

    assert version_of(derived) == []
    derived.configure(1, report_again=True)
    derived.combine(1)
    assert derived.total() == 60
    derived.configure(1)


def test_without_a_clear_a_new_version_is_refused_and_nothing_changes(derived: Derived) -> None:
    derived.clear = None

    with pytest.raises(
        InvalidConfiguration, match=r"10 keys .* each as new, to summed@1 → summed@2: .* stays"
    ):
        derived.configure(2)

    assert version_of(derived) == [1]
    derived.configure(2, report_again=True)
    derived.combine(2)
    assert derived.total() == 60


def test_a_queue_without_values_needs_no_consent(db: Any, name: str) -> None:
    derived = Derived(db, name, clears=False)
    derived.configure(1)
    derived.configure(2)

    assert version_of(derived) == [2]


def test_a_first_value_that_is_written_meanwhile_is_noticed(db: Any, name: str) -> None:
    """The change finds no value, and must not commit after the pass that writes the first one."""
    derived = Derived(db, name, clears=False)
    derived.configure(1)
    add(db, name, {"k": 7})

    def slow(*arguments: Any) -> None:
        refuse_repeats(*arguments)
        if not derived.total():
            derived.combine(1)

    with (
        patch("cq.admin.configure.refuse_repeats", slow),
        pytest.raises(InvalidConfiguration, match="1 key of"),
    ):
        derived.configure(2)
    assert derived.total() == 7


def test_a_clear_that_fails_changes_nothing(derived: Derived) -> None:
    def fail(tr: Any) -> None:
        tr.clear(derived.key)
        raise RuntimeError("not now")

    derived.clear = fail
    with pytest.raises(RuntimeError):
        derived.configure(2)

    assert (version_of(derived), derived.total()) == ([1], 30)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_clear_that_takes_longer_than_a_transaction_lives_is_an_error(
    derived: Derived, is_refused: bool
) -> None:
    def be_slow(tr: Any) -> None:
        tr.clear(derived.key)
        clock.passed += 6.0
        if is_refused:
            raise error_class(derived.db)(TOO_OLD)

    derived.clear = be_slow
    with (
        jumping() as clock,
        pytest.raises(InvalidConfiguration, match=r"clear of observer 'summed' took 6\.0 s"),
    ):
        derived.configure(2)

    assert (version_of(derived), derived.total()) == ([1], 30)


def test_a_pass_of_the_former_version_under_way_does_not_commit(derived: Derived) -> None:
    add(derived.db, derived.name, {f"k{number}": 100 for number in range(13)})
    code = code_of(derived.db, derived.name, derived.app(1))
    under_way = [derived.db.create_transaction() for _ in range(2)]
    for bucket, tr in enumerate(under_way):
        Pass(tr, code, bucket).run()

    derived.configure(2)

    assert [commits(tr) for tr in under_way] == [False, False]
    derived.combine(2)
    assert derived.total() == 1330


def test_a_clear_may_purge_the_queues_that_the_observer_feeds(db: Any, name: str) -> None:
    fed = [cq.configure(db, f"{name}-{which}", key=str, value=int) for which in "ab"]

    def feed(tr: Any, changes: list[cq.Change]) -> None:
        for queue in fed:
            queue.add(tr, {change.key: (change.new or 0) - (change.old or 0) for change in changes})

    def purge(tr: Any) -> None:
        for queue in fed:
            admin.purge(tr, queue.name)

    def app(version: int) -> cq.App:
        made = cq.App()
        made.queue(name, observers=[cq.Observer("feed", version, feed, clear=purge)])
        return made

    app(1).configure(db, name)
    add(db, name, {"a": 1, "b": 2})
    combine_all(db, name, app(1))
    combine_all(db, fed[0].name)  # of the other queue the updates are still queued
    app(2).configure(db, name)
    combine_all(db, name, app(2))

    for queue in fed:
        combine_all(db, queue.name)
        assert dict(queue.scan(db)) == {"a": 1, "b": 2}


def test_repeats_are_foretold(derived: Derived) -> None:
    db, name = derived.db, derived.name
    wanted = requested(observers=[derived.observer(2)])
    found = repeated_reports(db, name, wanted)

    assert found is not None
    assert (found.keys, found.is_exact, found.observers[0].is_cleared) == (10, True, True)
    assert "10 keys" in str(found)
    assert "what it has written is cleared first" in str(found)
    assert repeated_reports(db, name, requested(observers=[derived.observer(1)])) is None
    assert repeated_reports(db, name, requested(put=[cq.Observer("other", 1, print)])) is None
    assert repeated_reports(db, f"{name}-none", wanted) is None


def test_data_of_generations_need_no_consent(derived: Derived) -> None:
    """A specification with a factory knows its generation, and keeps the data of each apart."""

    def make(config: Any, settings: Any, generation: int) -> Any:
        return lambda tr, changes: None

    admin.put_observer(derived.db, derived.name, admin.ObserverSpec("kept", 1, {}, make))
    admin.put_observer(derived.db, derived.name, admin.ObserverSpec("kept", 2, {}, make))

    assert version_of(derived) == [1, 2]


@pytest.mark.parametrize("part", ["observer", "decider", "combiner"])
def test_a_process_with_former_code_sets_nothing_back(db: Any, name: str, part: str) -> None:
    def app(version: int) -> cq.App:
        made = cq.App()
        if part == "observer":
            made.queue(name, observers=[cq.Observer("own", version, lambda tr, changes: None)])
        elif part == "decider":
            made.queue(name, decider=cq.Decider("own", version, lambda key, state, request: (state, None)))
        else:
            made.queue(name, combiner=cq.Combiner("own", version, lambda key, values: values[-1]))
        return made

    app(1).configure_all(db)
    app(2).configure_all(db)
    with pytest.raises(ConfigurationConflict, match=f"{part} own@2 -> own@1; .* give it a later version"):
        app(1).configure_all(db)
    app(2).configure_all(db)  # as it is
