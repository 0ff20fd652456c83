"""The log of a link: blind adds, rows, sequences, batches in order, and entries that are set aside."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import links
from cq.admin.configure import rebuild_observer
from cq.keys.link import LinkKeys
from cq.links import CannotSend, Changes, LinkFailed
from cq.observers.links import state as linkstate
from cq.observers.links.failure_note import LONGEST_PAUSE, STOPPED_SECONDS
from cq.observers.links.log import BUCKETS, LinkEntry, ReadLimits, encoded_key, pack, read_entries
from cq.observers.links.observer import link_observer
from cq.observers.links.registry import opened_link, pause_link
from cq.observers.links.sender import LinkBatch, PoisonEntryIsolator
from cq.observers.links.spec import links_in
from cq.observers.links.state import (
    LinkFailure,
    LinkStop,
    read_failures,
    read_view,
    stop,
)
from cq.observers.links.target import BATCH_ENTRIES
from cq.observers.scheduling.runner import CAUGHT_UP
from cq.store.transact import transact
from cq.testing import drain
from tests.kit import queues
from tests.kit.faults import Calls
from tests.kit.queues import commits, configured
from tests.links.linkhelpers import (
    OWN,
    Kept,
    add,
    bucket,
    entries_aside,
    notified,
    own_link,
    run_to_end,
    send_all,
    task_of,
    tasks,
    waits,
)

_numbers = itertools.count()
KEYS = st.one_of(
    st.text(max_size=9), st.integers(), st.binary(max_size=9), st.tuples(st.text(max_size=3), st.integers())
)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A store for all examples of a property."""
    db: Any = cq.open(f"embedded:{tmp_path_factory.mktemp('db') / 'test.db'}")
    yield db
    db.close()


@pytest.mark.parametrize(
    "pair", [(1.5, 1), (True, 1), ("k" * 9000, 1), ("a", "v" * 100_000), ("a", object())]
)
def test_what_does_not_fit_is_refused_before_anything_is_written(db: Any, name: str, pair: Any) -> None:
    with pytest.raises(cq.InvalidData):
        add(db, name, ("ok", 1), pair)

    assert waits(db, name) == 0


def test_changes_are_added_blindly_a_row_and_a_notification_for_each_bucket(db: Any, name: str) -> None:
    """However many changes: they share rows of up to 8 kB."""
    config = configured(db, name, put=[links.table("report")])
    observer = links_in(config)["export"]
    observe = link_observer(config, observer.settings, observer.generation)
    tr = Calls(db.create_transaction())

    observe(tr, [cq.Change(f"key {number}", number, number + 1) for number in range(1_000)])

    assert tr.made == ["set_versionstamped_key", "set_versionstamped_value"] * BUCKETS


def test_a_batch_has_all_entries_of_a_key_together_and_ascending(db: Any, name: str) -> None:
    chosen = [key for key in map(str, range(200)) if bucket(key) == 3][:5]
    for number in range(10):
        add(db, name, *[(key, number) for key in chosen])
    kept = Kept()

    run_to_end(tasks(db, name, kept)[3])

    (batch,) = kept.batches
    entries = list(batch)
    assert [entry.key for entry in entries] == [key for key in chosen for _ in range(10)]
    assert [entry.value for entry in entries] == list(range(10)) * 5
    for one, other in pairwise(entries):
        assert one.key != other.key or one.sequence < other.sequence


@given(
    updates=st.lists(st.lists(st.tuples(KEYS, st.none() | st.integers(0, 9)), max_size=8), max_size=20),
    entries=st.integers(1, 10),
)
def test_batches_of_any_size_give_each_key_its_entries_in_commit_order(
    shared_store: Any, updates: list[list[tuple[Any, Any]]], entries: int
) -> None:
    db, name = shared_store, f"test-{next(_numbers)}"
    told: dict[bytes, list[Any]] = {}
    sequences: list[bytes] = []

    def send(batch: Changes) -> None:
        for entry in batch:
            told.setdefault(entry.encoded_key, []).append(entry.value)
            sequences.append(entry.sequence)

    for pairs in updates:
        add(db, name, *pairs)
    send_all(db, name, send, batch_entries=entries)

    expected: dict[bytes, list[Any]] = {}
    for pairs in updates:
        for key, value in pairs:
            expected.setdefault(encoded_key(key), []).append(value)
    assert told == expected
    assert len(set(sequences)) == len(sequences)


def test_large_values_have_rows_of_their_own_and_come_out_in_order(db: Any, name: str) -> None:
    largest = "x" * 99_990
    key = "k" * 7990
    add(db, name, ("small", 1), (key, largest), (key, None), (key, largest + "y"))
    kept = Kept()

    send_all(db, name, kept, batch_bytes=1)

    assert kept.values == {"small": 1, key: largest + "y"}
    assert waits(db, name) == 0


def test_an_entry_that_comes_while_a_batch_is_exported_is_not_lost(db: Any, name: str) -> None:
    add(db, name, ("a", 1))
    later = iter([("a", 2), ("a", 3)])

    def send(batch: Changes) -> None:
        for pair in later:
            add(db, name, pair)
            break

    task = task_of(db, name, "a", send)
    assert task.run() == CAUGHT_UP
    assert notified(db, name) == [bucket("a")]
    assert task.run() == CAUGHT_UP
    assert notified(db, name) == [bucket("a")]
    assert task.run() == CAUGHT_UP
    assert notified(db, name) == []
    assert waits(db, name) == 0


class TestFailures:
    """A target that fails holds up its bucket, for a while, and says so."""

    @pytest.mark.parametrize("action", ["resume", "rebase"])
    def test_a_pause_that_the_target_asks_for_ends_when_an_operator_says_so(
        self, db: Any, name: str, action: str
    ) -> None:
        calls = []

        def send(batch: Changes) -> None:
            calls.append(batch)
            raise LinkFailed("it has a lunch break", pause=600)

        app = own_link(db, name, send)
        add(db, name, ("a", 1))
        task = task_of(db, name, "a", send)
        assert [task.run() for _ in range(3)] == [STOPPED_SECONDS] * 3
        assert len(calls) == 1
        assert (task.problem, task.is_waiting) == ("LinkFailed: it has a lunch break", True)
        if action == "resume":
            pause_link(db, name, paused=False)
        else:
            with opened_link(db, name, app=app) as opened:
                opened.rebase()
        task.run()
        assert len(calls) == 2

    def test_it_is_tried_again_after_growing_pauses_and_noted(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1), ("b", 2))
        assert bucket("a") != bucket("b")
        kept, broken = Kept(), True

        def send(batch: Changes) -> None:
            if broken and batch.bucket == bucket("a"):
                raise ConnectionError("no route to host")
            kept(batch)

        task = task_of(db, name, "a", send)
        pauses = [task.run() for _ in range(12)]
        run_to_end(task_of(db, name, "b", send))

        assert all(pause > 0 for pause in pauses)
        assert pauses[4] > 2 * pauses[0]
        assert pauses[-1] <= LONGEST_PAUSE
        assert kept.values == {"b": 2}
        (failure,) = failures(db, name)
        assert [*transact(db, lambda tr: read_failures(tr, LinkKeys(name, OWN)))] == [bucket("a")]
        assert failure.tries == 12
        assert failure.error == task.problem == "ConnectionError: no route to host"
        another = task_of(db, name, "a", send)
        another.run()
        (again,) = failures(db, name)
        assert (again.tries, again.since) == (13, failure.since)
        broken = False
        run_to_end(task)  # which knows nothing of the other's note
        assert failures(db, name) == []
        run_to_end(another)
        assert another.problem == task.problem == ""
        assert kept.values == {"a": 1, "b": 2}

    def test_a_target_that_ends_the_process_is_tried_again(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1))
        task = task_of(db, name, "a", lambda batch: sys.exit(3))
        assert task.run() > 0
        assert task.problem == "SystemExit: 3"

    def test_a_failure_noted_when_another_worker_was_done_goes(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1))
        kept = Kept()
        task = task_of(db, name, "a", kept)

        def late(batch: Changes) -> None:
            run_to_end(task)
            raise ConnectionError("too late")

        task_of(db, name, "a", late).run()
        assert [each.error for each in failures(db, name)] == ["ConnectionError: too late"]
        assert notified(db, name) == [bucket("a")]
        run_to_end(task)
        assert failures(db, name) == []
        assert kept.values == {"a": 1}

    def test_entries_that_can_never_be_exported_are_found_by_halving(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(linkstate, "_PAGE", 1)
        bad = {f"k{number}" for number in (3, 250, 251, 499)}

        def send(batch: Changes) -> None:
            if any(entry.key in bad and entry.value is not None for entry in batch):
                raise CannotSend("one of them")
            kept(batch)

        kept = Kept()
        add(db, name, *[(f"k{number}", number) for number in range(500)])
        send_all(db, name, send)

        assert kept.values.keys() == {f"k{number}" for number in range(500)} - bad
        assert {encoded_key(key) for key in bad} == {each.encoded_key for each in entries_aside(db, name)}
        assert {each.error for each in entries_aside(db, name)} == {"one of them"}
        assert {each.value for each in entries_aside(db, name)} == {3, 250, 251, 499}
        assert waits(db, name) == 0

    def test_entries_that_the_target_names_are_set_aside_at_once(self, db: Any, name: str) -> None:
        calls = []

        def send(batch: Changes) -> None:
            calls.append(len(batch))
            named = {entry.sequence: "it is odd" for entry in batch if entry.value % 50 == 1}
            if named:
                raise CannotSend("some are odd", named)

        add(db, name, *[(number, number) for number in range(400)])
        send_all(db, name, send)

        assert len(calls) <= 2 * BUCKETS
        assert sorted(each.value for each in entries_aside(db, name)) == list(range(1, 400, 50))

    def test_an_entry_is_set_aside_before_the_target_passes_it(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1))
        add(db, name, ("a", 2))

        def send(batch: Changes) -> None:
            if any(entry.value == 1 for entry in batch):
                raise CannotSend("bad", {batch.entries[0].sequence: "bad"})
            raise KeyboardInterrupt  # the process dies as it exports what comes behind

        with pytest.raises(KeyboardInterrupt):
            task_of(db, name, "a", send).run()
        assert [each.value for each in entries_aside(db, name)] == [1]
        send_all(db, name, Kept())
        assert [each.value for each in entries_aside(db, name)] == [1]

    def test_a_deployment_that_is_broken_sets_little_aside(self, db: Any, name: str) -> None:
        add(db, name, *[(number, number) for number in range(1000)])

        def send(batch: Changes) -> None:
            if len(batch):
                raise CannotSend("no such column")

        task = tasks(db, name, send)[0]
        pause = task.run()

        assert pause > 0
        assert "entries cannot be sent, the latest with: no such column" in task.problem
        assert len(entries_aside(db, name)) < 10

    def test_settings_that_are_wrong_are_never_the_datas_fault(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1))

        def send(batch: Changes) -> None:
            raise cq.errors.InvalidConfiguration("no URL")

        assert task_of(db, name, "a", send).run() > 0
        assert entries_aside(db, name) == []

    def test_a_row_that_cq_has_not_written_is_set_aside(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1))
        (row,) = rows(db, name)
        transact(db, lambda tr: tr.set(row, b"\x00junk"))
        add(db, name, ("a", 2))
        kept = Kept()

        send_all(db, name, kept)

        assert kept.values == {"a": 2}
        (aside,) = entries_aside(db, name)
        assert (aside.encoded_key, aside.value) == (None, b"\x00junk")

    def test_a_row_from_the_future_is_left_and_said(self, db: Any, name: str) -> None:
        add(db, name, ("a", 1))
        send_all(db, name, Kept())
        future = LinkKeys(name, OWN).row(bucket("a"), b"\0\0\0\1" + b"\x70" * 18)
        transact(db, lambda tr: tr.set(future, b"\x00\x82\x41\x41\x01"))

        task = task_of(db, name, "a", Kept())

        assert task.run() > 0
        assert "stamped later" in task.problem
        assert waits(db, name) == 1


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.sets(st.integers(0, 20)))
def test_halving_exports_all_but_the_bad_in_order(values: list[int], bad: set[int]) -> None:
    """With few entries, so that no share of failures is too large."""
    bad = set(list(bad)[:9])
    exported: list[int] = []
    passed: list[bytes] = []
    aside: dict[bytes, str] = {}

    def send(batch: LinkBatch) -> None:
        if any(entry.value in bad for entry in batch.ordered):
            raise CannotSend("bad")
        assert all(sequence in aside or sequence in passed for sequence in earlier(batch))
        exported.extend(entry.value for entry in batch.ordered)
        passed.extend(entry.sequence for entry in batch.ordered)

    def earlier(batch: LinkBatch) -> list[bytes]:
        here = {entry.sequence for entry in batch.ordered}
        return [
            entry.sequence for entry in entries if entry.sequence <= batch.last and entry.sequence not in here
        ]

    def set_aside(batch: LinkBatch, errors: Mapping[bytes, str]) -> None:
        aside.update(errors)

    entries = [LinkEntry(number, value, b"%04d" % number, b"") for number, value in enumerate(values)]
    last = entries[-1].sequence
    batch = LinkBatch(0, entries, b"", last, 0, b"", ())
    halving = PoisonEntryIsolator(send, set_aside)
    try:
        halving.send(batch)
    except LinkFailed:
        assert sum(value in bad for value in values) >= 10
        return

    assert exported == [value for value in values if value not in bad]
    assert aside.keys() == {entry.sequence for entry in entries if entry.value in bad}


def test_a_deployment_that_fails_for_all_sets_no_more_aside_with_each_try() -> None:
    passed = 0
    aside: dict[bytes, str] = {}

    def send(batch: LinkBatch) -> None:
        for entry in batch.ordered:  # what was passed once is skipped, as the fence does
            if entry.value >= passed:
                raise CannotSend("broken", {entry.sequence: "broken"})

    def set_aside(batch: LinkBatch, errors: Mapping[bytes, str]) -> None:
        nonlocal passed
        aside.update(errors)
        passed += len(errors)

    entries = [LinkEntry(number, number, b"%04d" % number, b"") for number in range(600)]
    last = entries[-1].sequence
    batch = LinkBatch(0, entries, b"", last, 0, b"", ())
    halving = PoisonEntryIsolator(send, set_aside)
    for _ in range(20):
        with pytest.raises(LinkFailed, match="entries cannot be sent"):
            halving.send(batch)

    assert len(aside) < 150


def test_rows_are_packed_up_to_a_size(db: Any) -> None:
    rows = pack([(encoded_key(number), "x" * 100) for number in range(200)])

    assert 2 <= len(rows) <= 4
    assert all(len(row.value) < 9_000 for row in rows)
    counters = [row.counter for row in rows]
    assert counters == sorted(counters)


def test_of_stops_for_one_cause_the_first_is_in_effect(db: Any, name: str) -> None:
    """All workers find the cause, each in its bucket, but one of them reports it."""
    keys = LinkKeys(name, OWN)
    own_link(db, name, Kept())
    rebuild_observer(db, name, f"link:{OWN}")

    def stopped(wanted: LinkStop, *, is_reviewed: bool) -> bool:
        return transact(db, lambda tr: stop(tr, keys, wanted, is_reviewed=is_reviewed))

    def message() -> str | None:
        return transact(db, lambda tr: read_view(tr.snapshot, keys, ())().stopped)

    first = LinkStop(0, "refused, request 1", 2, since=1.0)
    assert stopped(first, is_reviewed=False)
    assert stopped(first, is_reviewed=False), "a retry after a commit with unknown result"
    assert not stopped(LinkStop(0, "refused, request 2", 2, since=2.0), is_reviewed=False)
    assert not stopped(LinkStop(0, "refused, request 1", 2, since=3.0), is_reviewed=True)
    assert not stopped(LinkStop(0, "by an outdated worker", 1, since=4.0), is_reviewed=True)
    assert not stopped(LinkStop(1, "of another epoch", 2, since=5.0), is_reviewed=True)
    assert message() == "refused, request 1"
    assert stopped(LinkStop(0, "another cause", 2, since=6.0), is_reviewed=True)
    assert message() == "another cause"
    rebuild_observer(db, name, f"link:{OWN}")
    assert stopped(LinkStop(0, "of another target", 3, since=7.0), is_reviewed=False)
    assert message() == "of another target"


def test_the_application_adds_entries_to_a_link_beside_the_changes_of_the_queue(db: Any, name: str) -> None:
    kept = Kept()
    app = own_link(db, name, kept)
    with pytest.raises(cq.errors.NotInStore, match="no link 'other'"):
        transact(db, lambda tr: links.add(tr, name, {"b": 1}, "other"))
    begun = db.create_transaction()
    links.add(begun, name, {"late": 1})
    for number in range(2):
        transact(db, lambda tr: links.add(tr, name, [("b", number), ("b", number + 10)]))  # noqa: B023
        queues.add(db, name, {"a": 1})
        drain(db, name, app=app)
        if not number:  # in a later generation
            with opened_link(db, name, app=app) as link:
                link.rebuild()

    assert [entry.value for batch in kept.batches for entry in batch if entry.key == "b"] == [0, 10, 1, 11]
    assert kept.values == {"a": 2, "b": 11}
    assert not commits(begun), "it was begun under the former configuration"


def test_a_read_ends_at_its_limits(db: Any, name: str) -> None:
    for number in range(10):
        add(db, name, ("a", number))

    def read(tr: Any, size: int, entries: int) -> Any:
        limits = ReadLimits(tr.get_read_version().wait(), size, entries)
        return read_entries(tr.snapshot, LinkKeys(name, OWN), bucket("a"), limits)

    assert len(transact(db, lambda tr: read(tr, 10**6, 3)).entries) == 3
    assert len(transact(db, lambda tr: read(tr, 1, 100)).entries) == 1
    assert transact(db, lambda tr: read(tr, 10**6, 10)).at_end


def failures(db: Any, name: str) -> list[LinkFailure]:
    return [*transact(db, lambda tr: read_failures(tr, LinkKeys(name, OWN))).values()]


def rows(db: Any, name: str) -> list[bytes]:
    return transact(db, lambda tr: [row.key for row in tr.get_range(*LinkKeys(name, OWN).all_rows())])


def test_the_modules_constants_are_what_the_documentation_says() -> None:
    assert (BUCKETS, BATCH_ENTRIES) == (8, 5_000)
