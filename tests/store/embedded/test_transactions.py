"""Transactions from begin to end: limits, options, retries, expiry, and what each wrong call raises."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cq import runtime
from cq.store.embedded import Database, FDBError, KeySelector, snapshots
from cq.store.embedded.error import RETRYABLE
from tests.kit.clocks import Jumping, Stopped, jumping
from tests.store.calls import code_of, commit_code, read_version

ONE = (1).to_bytes(8, "little")


# Errors


def test_an_error_has_number_text_and_survives_pickling() -> None:
    error = FDBError(1020)
    assert str(error) == "Transaction not committed due to conflict with another transaction (1020)"
    assert repr(error) == "FDBError(1020)"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.code, copy.description) == (1020, error.description)
    assert FDBError(9999).description == "UNKNOWN_ERROR"


# Limits


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [(b"k" * 10_001, b"", 2102), (b"k", bytes(100_001), 2103), (b"\xff/x", b"", 2004)],
)
def test_too_much_is_refused_by_the_commit(db: Database, key: bytes, value: bytes, code: int) -> None:
    tr = db.create_transaction()
    tr.set(key, value)
    assert commit_code(tr) == code


def test_the_largest_key_and_value_are_stored(db: Database) -> None:
    db[b"k" * 10_000] = bytes(100_000)
    assert db[b"k" * 10_000] == bytes(100_000)


def test_an_overlong_key_is_absent_and_its_clear_does_nothing(db: Database) -> None:
    tr = db.create_transaction()
    assert tr.get(b"k" * 10_001).value is None
    tr.clear(b"k" * 10_001)
    tr.commit().wait()


def test_writing_one_key_again_and_again_is_not_too_large(db: Database) -> None:
    tr = db.create_transaction()
    for _ in range(200):
        tr.set(b"a", bytes(100_000))
    assert tr.get_approximate_size().wait() > 20_000_000
    tr.commit().wait()


def test_the_size_limit_may_be_lower(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_size_limit(1000)
    tr.set(b"a", bytes(2000))
    assert commit_code(tr) == 2101

    tr.reset()
    tr.options.set_size_limit(1000)
    tr.on_error(1020).wait()  # sets the default again
    tr.set(b"a", bytes(2000))
    tr.commit().wait()

    tr = db.create_transaction()
    tr.options.set_size_limit(10)
    assert commit_code(tr) == 2006


def test_read_conflicts_count_for_the_size(db: Database) -> None:
    tr = db.create_transaction()
    before = tr.get_approximate_size().wait()
    tr.add_read_conflict_key(b"a" * 100)
    read = tr.get_approximate_size().wait()
    tr.set(b"b" * 100, bytes(50))

    assert before == 0
    assert read == 225
    assert tr.get_approximate_size().wait() == read + 150 + 44 + 201 + 24


# Wrong calls


def test_an_inverted_clear_is_raised_by_every_later_call(db: Database) -> None:
    tr = db.create_transaction()
    tr.clear_range(b"b", b"a")
    tr.set(b"a", b"1")

    assert code_of(lambda: tr.get(b"a").value) == 2005
    assert code_of(lambda: tr.get_read_version().wait()) == 2005
    assert code_of(lambda: list(tr.get_range(b"", b"\xff"))) == 2005
    assert code_of(lambda: tr.get_approximate_size().wait()) == 2005
    assert commit_code(tr) == 2005
    tr.reset()
    tr.commit().wait()


def test_an_inverted_conflict_range_is_raised_at_once(db: Database) -> None:
    tr = db.create_transaction()
    assert code_of(lambda: tr.add_read_conflict_range(b"b", b"a")) == 2005
    assert code_of(lambda: tr.add_write_conflict_range(b"b", b"a")) == 2005
    tr.commit().wait()


def test_a_read_outside_the_key_space_does_not(db: Database) -> None:
    tr = db.create_transaction()
    assert code_of(lambda: tr.get(b"\xff/x").value) == 2004
    assert code_of(lambda: tr.get_key(KeySelector.first_greater_than(b"\xff\x00")).value) == 2004
    assert code_of(lambda: list(tr.get_range(b"a", b"\xff\x00"))) == 2004
    tr.commit().wait()


@pytest.mark.parametrize("param", [b"", bytes(13), bytes(13) + b"\x01", bytes(10) + b"\xff\xff\xff\xff"])
def test_a_bad_place_for_a_stamp_is_refused(db: Database, param: bytes) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_key(param, b"")
    assert commit_code(tr) == 2000
    tr.reset()
    tr.set_versionstamped_value(b"a", param)
    assert commit_code(tr) == 2000


@pytest.mark.parametrize("bad", ["text", 1, None, [b"a"]])
def test_keys_and_values_must_be_bytes(db: Database, bad: Any) -> None:
    tr = db.create_transaction()
    with pytest.raises(TypeError, match="Key must be of type bytes"):
        tr.get(bad)
    with pytest.raises(TypeError, match="Value must be of type bytes"):
        tr.set(b"a", bad)


def test_objects_that_know_their_bytes_are_keys_and_values(db: Database) -> None:
    class Both:
        def as_foundationdb_key(self) -> bytes:
            return b"key"

        def as_foundationdb_value(self) -> bytes:
            return b"value"

    db[Both()] = Both()
    assert db[b"key"] == b"value"
    tr = db.create_transaction()
    tr[b"copy"] = tr[b"key"]
    assert tr[b"copy"] == b"value"


# After the end


def test_calls_after_commit_raise_2017(db: Database) -> None:
    tr = db.create_transaction()
    tr[b"a"] = b"1"
    tr.commit().wait()

    assert tr.get_committed_version() > 0
    assert code_of(lambda: tr.get(b"a").value) == 2017
    assert commit_code(tr) == 2017
    assert code_of(lambda: tr.on_error(1020).wait()) == 2017
    tr.reset()
    assert tr.get(b"a").value == b"1"


def test_a_cancelled_transaction_raises_1025(db: Database) -> None:
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    tr.cancel()

    assert code_of(lambda: tr.get(b"a").value) == 1025
    assert commit_code(tr) == 1025
    assert code_of(lambda: tr.on_error(1020).wait()) == 1025
    assert code_of(lambda: stamp.value) == 1025
    tr.reset()
    tr.commit().wait()


# Retries


@pytest.mark.parametrize("code", sorted(RETRYABLE))
def test_on_error_retries(db: Database, code: int) -> None:
    tr = db.create_transaction()
    tr.on_error(code).wait()


@pytest.mark.parametrize("code", [1025, 1031, 1036, 1039, 1235, 1242, 2017, 2101, 1510])
def test_on_error_raises_what_is_final_and_ends_the_transaction(db: Database, code: int) -> None:
    tr = db.create_transaction()
    assert code_of(lambda: tr.on_error(FDBError(code)).wait()) == code
    assert commit_code(tr) == 1025


def test_on_error_raises_what_is_not_an_error_of_the_store(db: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        db.create_transaction().on_error(ZeroDivisionError())


def test_the_retry_limit_counts_over_tries(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(2)
    tr.on_error(1020).wait()
    tr.on_error(1020).wait()
    assert code_of(lambda: tr.on_error(1020).wait()) == 1020


def test_back_off_grows_up_to_the_longest_delay(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq.store.embedded.state.random.random", lambda: 1.0)
    delays = []
    with runtime.using(machine := Stopped()):
        tr = db.create_transaction()
        tr.options.set_max_retry_delay(40)
        for _ in range(4):
            begin = machine.now
            tr.on_error(1020).wait()
            delays.append(machine.now - begin)

    assert delays == pytest.approx([0.01, 0.02, 0.04, 0.04])


# Options


def test_a_timeout_counts_from_the_beginning(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1)
    time.sleep(0.005)

    assert code_of(lambda: tr.get(b"a").value) == 1031
    assert code_of(lambda: tr.on_error(1020).wait()) == 1031
    tr.reset()
    tr.commit().wait()


def test_a_timeout_ends_a_back_off(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq.store.embedded.state.random.random", lambda: 1.0)
    monkeypatch.setattr("cq.store.embedded.state.FIRST_DELAY", 5.0)
    tr = db.create_transaction()
    tr.options.set_max_retry_delay(5000)
    tr.options.set_timeout(30)
    assert code_of(lambda: tr.on_error(1020).wait()) == 1031


def test_database_options_are_defaults(db: Database) -> None:
    db.options.set_transaction_size_limit(1000)
    db.options.set_transaction_retry_limit(0)
    tr = db.create_transaction()
    tr.set(b"a", bytes(2000))
    assert commit_code(tr) == 2101
    assert code_of(lambda: db.create_transaction().on_error(1020).wait()) == 1020


def test_options_without_meaning_are_accepted_and_unknown_ones_are_not(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_priority_batch()
    tr.options.set_tag("tag")
    db.options.set_machine_id("x")
    with pytest.raises(AttributeError, match="no option 'set_nonsense'"):
        tr.options.set_nonsense()
    with pytest.raises(AttributeError):
        db.options.set_priority_batch()


def test_a_watch_needs_read_your_writes(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    assert code_of(lambda: tr.watch(b"a").wait()) == 1034


def test_system_keys_need_their_option(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_access_system_keys()
    tr[b"\xff/x"] = b"1"
    tr.commit().wait()
    tr.reset()
    tr.options.set_read_system_keys()
    assert tr.get(b"\xff/x").value == b"1"
    assert tr.get_key(KeySelector.first_greater_or_equal(b"a")).value == b"\xff/x"

    assert db.get_key(KeySelector.first_greater_or_equal(b"a")) == b"\xff"
    assert db.get_range(None, None) == []


def test_unreadable_keys_can_be_bypassed(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_bypass_unreadable()
    tr.set_versionstamped_value(b"a", b"x" + bytes(10) + (1).to_bytes(4, "little"))
    assert tr.get(b"a").present()


# Versions and expiry


def test_commit_versions_go_on_with_time(db: Database) -> None:
    versions = []
    for _ in range(2):
        tr = db.create_transaction()
        tr[b"a"] = b"1"
        tr.commit().wait()
        versions.append(tr.get_committed_version())
        time.sleep(0.01)

    assert 9_000 < versions[1] - versions[0] < 5_000_000


def test_a_read_version_can_be_handed_on(db: Database) -> None:
    version = read_version(db)
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert tr.get(b"a").value is None
    assert tr.get_read_version().wait() == version


def test_an_old_read_version_is_too_old(db: Database) -> None:
    db[b"a"] = b"0"
    version = read_version(db)
    db[b"a"] = b"1"
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert code_of(lambda: tr.get(b"a").value) == 1007
    tr.reset()
    tr.set_read_version(0)
    assert commit_code(tr) == 2011


def test_a_read_version_that_was_only_set_still_detects_conflicts(db: Database) -> None:
    version = read_version(db)
    db[b"a"] = b"1"
    tr = db.create_transaction()
    tr.set_read_version(version)
    tr.add_read_conflict_key(b"a")
    tr[b"b"] = b"1"
    assert commit_code(tr) == 1020


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jumping]:
    """Time passes when the test says so, and the ages of snapshots are checked often."""
    monkeypatch.setattr(snapshots, "_CHECK_SECONDS", 0.01)
    with jumping() as clock:
        yield clock


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_old_transaction_fails_and_its_snapshot_is_given_back(db: Database, clock: Jumping) -> None:
    tr = db.create_transaction()
    tr.get(b"a").wait()
    tr[b"b"] = b"1"
    clock.passed += 6
    wait_until(lambda: not db._engine._pool._open)

    assert code_of(lambda: tr.get(b"a").value) == 1007
    assert commit_code(tr) == 1007
    tr.on_error(1007).wait()
    tr.get(b"a").wait()
    tr[b"b"] = b"1"
    tr.commit().wait()


def test_an_old_transaction_without_read_conflicts_commits(db: Database, clock: Jumping) -> None:
    tr = db.create_transaction()
    tr.snapshot.get(b"a").wait()
    tr[b"b"] = b"1"
    clock.passed += 6
    wait_until(lambda: not db._engine._pool._open)
    tr.commit().wait()


def test_a_dropped_transaction_gives_its_snapshot_back(db: Database) -> None:
    tr = db.create_transaction()
    tr.get(b"a").wait()
    assert len(db._engine._pool._open) == 1
    del tr
    gc.collect()
    db[b"a"]
    assert not db._engine._pool._open


def test_a_transaction_that_only_writes_holds_nothing(db: Database) -> None:
    tr = db.create_transaction()
    tr[b"a"] = b"1"
    tr.add(b"b", ONE)
    tr.clear_range(b"c", b"d")
    assert tr.get(b"a").value == b"1"
    assert not db._engine._pool._open


def test_hundreds_of_open_transactions_are_fine(db: Database) -> None:
    open_ones = [db.create_transaction() for _ in range(240)]
    for tr in open_ones:
        tr.get(b"a").wait()
    db[b"a"] = b"1"
    assert all(tr.get(b"a").value is None for tr in open_ones)


def test_a_transaction_whose_creation_is_interrupted_is_dropped_in_silence(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ^C does; an error in `__del__` is printed with its traceback."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    printed: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", printed.append)
    monkeypatch.setattr("cq.store.embedded.state.Writes", interrupt)

    with pytest.raises(KeyboardInterrupt):
        db.create_transaction()

    gc.collect()
    assert printed == []


def test_there_is_no_special_key_space(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_special_key_space_relaxed()
    tr.options.set_access_system_keys()
    assert code_of(lambda: tr.get(b"\xff\xff/status/json").value) == 2004
