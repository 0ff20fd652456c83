"""A transaction that begins with the metadata version takes no snapshot for it, and nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cq.store.api import METADATA_VERSION
from cq.store.embedded import Database, FDBError
from tests.store.calls import code_of, commit_code, read_version


def change(db: Database) -> None:
    """What a change of a configuration does."""
    db.transact(lambda tr: tr.set_versionstamped_value(METADATA_VERSION, bytes(14)))


def metadata(db: Database) -> bytes | None:
    """The metadata version, read in a transaction of its own, which lives until the answer is there."""
    tr = db.create_transaction()
    return tr.get(METADATA_VERSION).value


def test_nothing_is_held_open_for_it(db: Database) -> None:
    tr = db.create_transaction()
    assert tr.get(METADATA_VERSION).value is None
    tr[b"a"] = b"1"
    assert not db._engine._pool._open
    tr.commit().wait()
    assert db[b"a"] == b"1"


def test_other_reads_see_what_was_committed_since_unless_it_has_changed(db: Database) -> None:
    tr = db.create_transaction()
    tr.get(METADATA_VERSION).wait()
    db[b"a"] = b"1"
    assert tr.get(b"a").value == b"1"
    db[b"a"] = b"2"
    assert tr.get(b"a").value == b"1"

    tr = db.create_transaction()
    tr.get(METADATA_VERSION).wait()
    change(db)
    assert code_of(tr.get(b"a").wait) == 1007
    tr.on_error(FDBError(1007)).wait()
    assert tr.get(METADATA_VERSION).value is not None
    assert tr.get(b"a").value == b"2"


def test_a_second_try_goes_on_whatever_changes_it(db: Database) -> None:
    tr = db.create_transaction()
    tr.snapshot.get(METADATA_VERSION).wait()
    change(db)
    assert code_of(tr.get(b"a").wait) == 1007
    tr.on_error(FDBError(1007)).wait()

    tr.snapshot.get(METADATA_VERSION).wait()
    change(db)
    assert tr.get(b"a").value is None
    tr[b"b"] = b"1"
    tr.commit().wait()
    assert db[b"b"] == b"1"


def test_conflicts_are_looked_for_from_the_version_that_the_other_reads_have_seen(db: Database) -> None:
    tr = db.create_transaction()
    tr.get(METADATA_VERSION).wait()
    db[b"a"] = b"1"
    tr.get(b"a").wait()
    tr[b"b"] = b"1"
    tr.commit().wait()

    tr.reset()
    tr.get(METADATA_VERSION).wait()
    tr.get(b"a").wait()
    db[b"a"] = b"2"
    tr[b"b"] = b"2"
    assert commit_code(tr) == 1020


def test_it_fixes_the_read_version_as_any_read_does(db: Database) -> None:
    tr = db.create_transaction()
    tr.get(METADATA_VERSION).wait()
    tr.set_read_version(1)
    assert code_of(tr.get_read_version().wait) == 2010


def test_one_that_the_transaction_changes_itself_is_unreadable(db: Database) -> None:
    tr = db.create_transaction()
    tr.get(METADATA_VERSION).wait()
    tr.set_versionstamped_value(METADATA_VERSION, bytes(14))
    assert code_of(tr.get(METADATA_VERSION).wait) == 1036


def test_a_transaction_too_old_does_not_commit_by_it(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tr = db.create_transaction()
    tr.get(METADATA_VERSION).wait()
    monkeypatch.setattr("cq.store.embedded.snapshots.LIFETIME_SECONDS", -1.0)
    tr[b"a"] = b"1"
    assert commit_code(tr) == 1007


def test_what_is_known_is_overtaken_by_commits_of_others(path: Path) -> None:
    """Two handles of one file are as two processes: neither tells the other anything but through the file."""
    with Database(path, power_safe=False) as one, Database(path, power_safe=False) as other:
        for db, writer in ((one, other), (other, one), (one, one), (other, one)):
            change(writer)
            seen = metadata(db)
            assert seen == metadata(writer)
            writer[b"a"] = b"1"
            tr = db.create_transaction()
            tr.get(METADATA_VERSION).wait()
            tr.add_read_conflict_key(b"a")
            tr[b"b"] = b"1"
            tr.commit().wait()  # the version is not before that of the write of a


def test_a_glance_asks_sqlite_only_when_the_metadata_version_has_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database(path, power_safe=False) as one, Database(path, power_safe=False) as other:
        asked = 0
        take = one._engine._pool._acquire

        def counted() -> Any:
            nonlocal asked
            asked += 1
            return take()

        monkeypatch.setattr(one._engine._pool, "_acquire", counted)

        def glance() -> int:
            before = asked
            metadata(one)
            return asked - before

        other[b"a"] = b"1"
        assert [glance(), glance()] == [1, 0]
        for db in (one, other):
            db.transact(lambda tr: tr.set(b"a", b"2"))
            assert glance() == 0
            change(db)
            assert [glance(), glance()] == [1, 0]


def test_a_change_without_conflicts_of_its_own_and_a_clear_are_noticed_too(path: Path) -> None:
    def quietly(tr: Any) -> None:
        tr.options.set_next_write_no_write_conflict_range()
        tr.set_versionstamped_value(METADATA_VERSION, bytes(14))

    def clear(tr: Any) -> None:
        tr.options.set_access_system_keys()
        tr.clear_range(b"\xff", b"\xff\xff")

    with Database(path, power_safe=False) as one, Database(path, power_safe=False) as other:
        for change_it in (change, lambda db: db.transact(quietly), lambda db: db.transact(clear)):
            metadata(one)
            change_it(other)
            seen = metadata(one)
            assert (
                seen
                == other.transact(lambda tr: (tr.get_read_version().wait(), tr.get(METADATA_VERSION).value))[
                    1
                ]
            )


def announced_by_the_dead(db: Database, *, changes_metadata: bool = False) -> int:
    """Announce a version as a process does that dies before it commits."""
    version = db._engine.committer._lock.announced() + 1_000_000
    db._engine.committer._lock.announce(version, changes_metadata=changes_metadata)
    return version


def test_a_version_that_was_announced_and_not_committed_is_nobody_elses(path: Path) -> None:
    with Database(path, power_safe=False) as one, Database(path, power_safe=False) as other:
        one[b"a"] = b"1"
        metadata(one)
        version = announced_by_the_dead(other)
        tr = one.create_transaction()
        tr.get(METADATA_VERSION).wait()
        change(other)
        tr[b"b"] = b"1"
        assert commit_code(tr) == 1020, "the change is later than what was announced"
        assert read_version(one) > version

        tr = one.create_transaction()
        tr.get(METADATA_VERSION).wait()
        version = announced_by_the_dead(other)
        assert tr.get_read_version().wait() < version
        assert tr.get(b"a").value == b"1"
        other[b"a"] = b"2"
        assert one[b"a"] == b"2"


def test_a_change_that_was_announced_and_not_committed_is_not_believed(path: Path) -> None:
    with Database(path, power_safe=False) as one, Database(path, power_safe=False) as other:
        change(one)
        before = metadata(one)
        announced_by_the_dead(other, changes_metadata=True)
        for db in (one, other):
            tr = db.create_transaction()
            assert tr.get(METADATA_VERSION).value == before
            tr[b"a"] = b"1"
            tr.commit().wait()
        change(other)
        assert metadata(one) != before


def test_it_knows_the_metadata_version_of_an_earlier_version(db: Database) -> None:
    change(db)
    before = db.get(METADATA_VERSION)
    first = committed(db, b"a")
    committed(db, b"b")  # the version set below is no longer the latest
    tr = db.create_transaction()
    tr.set_read_version(first)
    assert tr.get(METADATA_VERSION).value == before
    assert tr.get_read_version().wait() == first
    tr[b"c"] = b"1"
    tr.commit().wait()


def test_conflicts_are_looked_for_from_an_earlier_version_that_was_set(db: Database) -> None:
    first = committed(db, b"a")
    committed(db, b"b")
    tr = db.create_transaction()
    tr.set_read_version(first)
    tr.get(METADATA_VERSION).wait()
    tr.add_read_conflict_key(b"b")
    tr[b"c"] = b"1"
    assert commit_code(tr) == 1020


def test_it_does_not_know_one_that_has_changed_since(db: Database) -> None:
    first = committed(db, b"a")
    change(db)
    tr = db.create_transaction()
    tr.set_read_version(first)
    assert code_of(tr.get(METADATA_VERSION).wait) == 1007


def committed(db: Database, key: bytes) -> int:
    """The version of a commit that writes a key."""
    tr = db.create_transaction()
    tr[key] = b"1"
    tr.commit().wait()
    return tr.get_committed_version()
