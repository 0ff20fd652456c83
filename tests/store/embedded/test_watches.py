"""Watches fire on other values, from this process and others, and never on the same value."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue

import apsw
import pytest

from cq.store.embedded import Database, FDBError, lock_file, watches
from cq.store.embedded.future import FutureVoid
from cq.store.embedded.watches import Watches
from tests.kit.processes import run_code
from tests.store.calls import code_of, commit_code


def fires(watch: FutureVoid, seconds: float = 60.0) -> bool:
    """Whether the watch gets ready within a time."""
    ready = threading.Event()
    watch.on_ready(lambda _: ready.set())
    return ready.wait(seconds)


def settled(db: Database) -> None:
    """Wait until all commits so far have been looked at: a watch of a new key has fired."""
    _, watch = db.get_and_watch(b"settled")
    db[b"settled"] = time.time_ns().to_bytes(8, "big")
    assert fires(watch)


@pytest.mark.parametrize("write", ["clear", "clear_range", "add"])
def test_a_watch_fires_on_every_kind_of_write(db: Database, write: str) -> None:
    watch = db.set_and_watch(b"a", b"\x01")
    if write == "clear":
        db.clear(b"a")
    elif write == "clear_range":
        db.clear_range(b"", b"b")
    else:
        db.add(b"a", b"\x01")

    assert fires(watch)


def test_the_same_value_again_does_not_fire(db: Database) -> None:
    watch = db.set_and_watch(b"a", b"1")
    db[b"a"] = b"1"
    settled(db)
    assert not watch.is_ready()

    db[b"a"] = b"2"
    assert fires(watch)


def test_a_change_between_the_read_and_the_commit_fires(db: Database) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"a")
    db[b"a"] = b"1"
    tr.commit().wait()

    assert fires(watch)


def test_many_watches_of_one_key_all_fire(db: Database) -> None:
    watches = [db.get_and_watch(b"a")[1] for _ in range(50)]
    db[b"a"] = b"1"

    assert all(fires(watch) for watch in watches)


def test_a_watch_fires_for_another_process(db: Database, path: Path) -> None:
    _, watch = db.get_and_watch(b"a")
    code = "import sys; from cq.store.embedded import Database\nwith Database(sys.argv[1]) as db: db[b'a'] = b'1'"

    assert run_code(code, path).status == 0
    assert fires(watch)


def test_a_watch_fires_for_another_handle_without_inotify(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_file, "_watch_file", lambda _: None)
    _, watch = db.get_and_watch(b"a")
    with Database(path) as other:
        other[b"a"] = b"1"

    assert fires(watch)


def test_a_commit_wakes_watches_at_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the next regular check, which is an hour away here."""
    monkeypatch.setattr("cq.store.embedded.watches._CHECK_SECONDS", 3600.0)
    delays = []
    for number in range(20):
        _, watch = db.get_and_watch(b"a")
        settled(db)
        fired: SimpleQueue[float] = SimpleQueue()
        watch.on_ready(lambda _, fired=fired: fired.put(time.perf_counter()))  # type: ignore[misc]
        db[b"a"] = b"%d" % number
        committed = time.perf_counter()
        delays.append(fired.get(timeout=60) - committed)

    assert min(delays) < 0.02  # the others may have waited for a core


def test_a_commit_that_is_only_announced_delays_no_watch(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the thread before it can be read: its end must find the thread awake."""
    rounds: SimpleQueue[bool] = SimpleQueue()
    check = Watches._check

    def noted(self: Watches, connection: apsw.Connection) -> bool:
        rounds.put(found := check(self, connection))
        return found

    monkeypatch.setattr(Watches, "_check", noted)
    _, watch = db.get_and_watch(b"a")
    settled(db)
    monkeypatch.setattr(watches, "_PAUSE_SECONDS", 10.0)
    monkeypatch.setattr(watches, "_MAX_PAUSE_SECONDS", 10.0)
    db._engine.watches._pause = 10.0
    while not rounds.empty():
        rounds.get()
    lock = db._engine.committer._lock
    lock.announce(lock.announced() + 1, changes_metadata=False)
    while rounds.get(timeout=60):
        pass
    db[b"a"] = b"1"

    assert fires(watch, 5.0)


def test_closing_ends_watches(path: Path) -> None:
    with Database(path) as db:
        _, watch = db.get_and_watch(b"a")
    assert code_of(watch.wait) == 1101


def test_resetting_ends_watches_that_were_not_committed(db: Database) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"a")
    tr.reset()
    assert code_of(watch.wait) == 1025


def test_a_conflict_ends_watches(db: Database) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"a")
    tr[b"b"] = b"1"
    db[b"a"] = b"1"
    assert commit_code(tr) == 1020
    assert code_of(watch.wait) == 1020


def test_too_many_watches_raise_1032(db: Database) -> None:
    db.options.set_max_watches(2)
    _first, _second = db.get_and_watch(b"a")[1], db.get_and_watch(b"b")[1]
    with pytest.raises(FDBError, match="1032"):
        db.create_transaction().watch(b"c").wait()


def test_dropped_watches_are_forgotten(db: Database) -> None:
    for number in range(100):
        db.get_and_watch(b"%d" % number)
    deadline = time.monotonic() + 60
    while db._engine.watches._number > 1 and time.monotonic() < deadline:
        db._engine.watches._next_sweep = 0
        settled(db)

    assert db._engine.watches._number <= 1


def test_the_thread_exists_only_with_watches(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq.store.embedded.watches._CHECK_SECONDS", 0.01)
    db[b"a"] = b"0"
    assert db._engine.watches._thread is None
    settled(db)
    thread = db._engine.watches._thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()

    settled(db)


def test_an_interrupted_start_of_the_thread_leaves_one_thread(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()
    db.get(b"a")  # starts the thread of snapshots
    monkeypatch.setattr(watches, "_MAX_IDLE_CHECKS", 1000)

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.get_and_watch(b"a")

    (thread,) = started
    thread.join(20)
    assert not thread.is_alive()
    settled(db)


def test_watches_fire_under_load(db: Database) -> None:
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            db[b"load"] = b"%d" % number

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(30):
            _, watch = db.get_and_watch(b"a")
            db[b"a"] = b"%d" % number
            assert fires(watch)
    finally:
        stop.set()
        thread.join()
