"""Copies of an embedded store in use: of one moment, read-only, of a stated age, and stores when they are restored."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import cq
from cq.errors import InvalidConfiguration, StoreError
from cq.store import copy_age, make_copy
from cq.store.api import Transaction
from cq.store.embedded import file
from tests.store.calls import code_of


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    opened = cq.open(tmp_path / "store.db")
    yield opened
    cq.store.close(opened)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


def put(db: Any, value: bytes) -> None:
    cq.transact(db, lambda tr: tr.set(b"cq/test", value))


def get(db: Any) -> bytes | None:
    return cq.transact(db, lambda tr: tr.get(b"cq/test").value)


def test_a_reader_of_a_copy_reads_the_one_that_is_there(
    db: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.store.embedded.engine._LOOK_SECONDS", 0.0)
    put(db, b"1")
    begun = time.time()
    make_copy(db, path)
    put(db, b"2")
    copy = cq.open(path, read_only=True)
    assert get(copy) == b"1"
    assert 0 <= (copy_age(copy) or -1) <= time.time() - begun
    os.utime(path, (0, 0))
    assert copy_age(copy) == pytest.approx(time.time(), abs=60)
    assert cq.store.read_earlier(copy, lambda tr: tr.get(b"cq/test").value, max_age=1) == b"1"

    make_copy(db, path)

    assert get(copy) == b"2"
    assert (copy_age(copy) or 60) < 60
    with pytest.raises(StoreError, match="was opened for reading only"):
        put(copy, b"3")
    assert (copy_age(db), copy_age(cast("Any", None))) == (None, None)
    assert path.stat().st_mode == path.with_name("store.db").stat().st_mode
    assert sorted(each.name for each in path.parent.glob("copy*")) == ["copy.db"]


def test_a_copy_that_is_removed_is_missed_until_there_is_another(db: Any, path: Path) -> None:
    put(db, b"1")
    make_copy(db, path)
    copy = cq.open(path, read_only=True)
    tr: Any = copy.create_transaction()
    assert tr.get(b"cq/test").value == b"1"
    path.unlink()
    assert code_of(tr.get(b"cq/test").wait) == 1007
    with pytest.raises(StoreError, match="does not exist any more: put it back, or make a new copy"):
        get(copy)
    make_copy(db, path)
    assert get(copy) == b"1"


def test_a_copy_is_of_one_moment(db: Any, path: Path) -> None:
    put(db, b"0")
    ended = threading.Event()

    def write() -> None:
        for number in range(1, 100_000):
            if ended.is_set():
                break

            def both(tr: Transaction, value: bytes = b"%d" % number) -> None:
                tr.set(b"cq/other", value)
                tr.set(b"cq/test", value)

            cq.transact(db, both)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = []
        for _ in range(20):
            make_copy(db, path)
            copy = cq.open(path, read_only=True)
            pair = cq.transact(copy, lambda tr: (tr.get(b"cq/test").value, tr.get(b"cq/other").value))
            cq.store.close(copy)
            assert pair[0] == pair[1] or pair == (b"0", None)
            found.append(int(pair[0] or b"0"))
    finally:
        ended.set()
        writer.join()
    assert found == sorted(found)
    assert len({*found}) > 1


def test_a_copy_in_the_place_of_a_store_is_a_store(db: Any, path: Path) -> None:
    put(db, b"1")
    make_copy(db, path)
    of_copy = path.with_name("copy of copy.db")
    os.utime(path, (1_000, 1_000))
    make_copy(cq.open(path, read_only=True), of_copy)
    assert of_copy.stat().st_mtime == 1_000

    restored = cq.open(path)

    put(restored, b"2")
    assert (get(restored), copy_age(restored)) == (b"2", None)
    reader = cq.open(path, read_only=True)
    assert (get(reader), copy_age(reader)) == (b"2", None)
    with pytest.raises(StoreError, match="is no copy of a store"):
        make_copy(db, path)
    cq.store.close(restored)


def test_a_copy_replaces_nothing_else(db: Any, path: Path) -> None:
    put(db, b"1")
    path.write_text("a text")
    for other in (path, path.parent):
        with pytest.raises(StoreError, match="is no copy of a store: name a new file, or an earlier copy"):
            make_copy(db, other)
    assert path.read_text() == "a text"
    with pytest.raises(StoreError, match=r"cannot be written \(Not a directory\): check"):
        make_copy(db, path / "in" / "none")
    with pytest.raises(StoreError, match=r"cannot be written \(SQLite opens only paths in UTF-8\)"):
        make_copy(db, path.with_name("\udcff.db"))
    cluster: Any = SimpleNamespace(create_transaction=None)
    with pytest.raises(InvalidConfiguration, match="only an embedded store can be copied"):
        make_copy(cluster, path)
    with pytest.raises(TypeError, match="expected a database"):
        make_copy(cast("Any", None), path)


def test_a_copy_that_fails_leaves_the_earlier_one(db: Any, path: Path) -> None:
    put(db, b"1")
    make_copy(db, path)
    put(db, b"2")
    path.with_name("copy.db-draft").mkdir()

    with pytest.raises(StoreError, match="cannot be written"):
        make_copy(db, path)

    assert get(cq.open(path, read_only=True)) == b"1"


def test_a_store_that_its_owner_may_only_read_can_be_copied(
    db: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite opens the draft by its path, which it could not for another user than root."""
    put(db, b"1")
    path.with_name("store.db").chmod(0o400)
    modes: list[int] = []
    set_times = os.utime

    def note_mode(draft: Path, times: tuple[float, float]) -> None:
        modes.append(draft.stat().st_mode & 0o777)
        set_times(draft, times)

    monkeypatch.setattr(os, "utime", note_mode)
    make_copy(db, path)

    assert (modes, path.stat().st_mode & 0o777) == ([0o600], 0o400)


def test_one_process_copies_to_a_path_and_the_next_removes_what_it_left(db: Any, path: Path) -> None:
    put(db, b"1")
    draft, journal = (path.with_name(f"copy.db-{each}") for each in ("draft", "draft-journal"))
    journal.write_text("of the same process")
    with draft.open("w") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="wait until it has finished"):
            make_copy(db, path)
        assert draft.exists()

    make_copy(db, path)  # the system has released the lock, as that of a killed process

    assert get(cq.open(path, read_only=True)) == b"1"
    assert not draft.exists()
    assert not journal.exists()


def test_an_interrupt_ends_a_copy(db: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(db, b"1")

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(file, "_STEPS_BETWEEN_SIGNALS", 1)
        patched.setattr(file, "_raise_interrupt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_copy(db, path)
    assert not list(path.parent.glob("copy*"))
    make_copy(db, path)


def test_a_copy_that_is_opened_for_writing_meanwhile_is_not_replaced(
    db: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(db, b"1")
    make_copy(db, path)
    opened: list[Any] = []

    def open_then_set_times(draft: Path, times: tuple[float, float]) -> None:
        opened.append(cq.open(path))

    monkeypatch.setattr(os, "utime", open_then_set_times)
    with pytest.raises(StoreError, match="is no copy of a store"):
        make_copy(db, path)
    put(opened[0], b"2")
    assert get(opened[0]) == b"2"
    cq.store.close(opened[0])


def test_a_copy_goes_where_a_link_leads_and_not_onto_itself_or_beside_a_log(db: Any, path: Path) -> None:
    put(db, b"1")
    link = path.with_name("link.db")
    link.symlink_to(path)
    make_copy(db, link)
    assert link.is_symlink()
    copy = cq.open(link, read_only=True)
    with pytest.raises(StoreError, match="is the store itself: name another file"):
        make_copy(copy, link)
    path.with_name("other.db-wal").write_text("a log")
    with pytest.raises(StoreError, match=r"other\.db-wal is there and its store is not"):
        make_copy(db, path.with_name("other.db"))
