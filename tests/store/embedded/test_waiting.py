"""Waiting for the lock of all processes: it ends with an error."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cq.errors import StoreError
from cq.store.embedded import Database, FDBError, Transaction, committer, engine
from cq.store.embedded.file import PRIVATE, new_access
from cq.store.embedded.lock_file import LockFile
from tests.kit.processes import another_process
from tests.store.calls import code_of

HOLD = """
import fcntl, sys
with open(sys.argv[1]) as file:
    fcntl.flock(file, fcntl.LOCK_SH if sys.argv[2] == "shared" else fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def held(path: Path, kind: str = "exclusive") -> AbstractContextManager[int]:
    """Another process holds the lock of the store at a path; its number. It may only read the lock file."""
    return another_process(HOLD, f"{path}-lock", kind)


def prepare(db: Database, timeout: int) -> Transaction:
    """A transaction that writes, with a timeout in milliseconds."""
    tr = db.create_transaction()
    tr.options.set_timeout(timeout)
    tr[b"a"] = b"1"
    return tr


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits do not wait long for the lock; they try it at least once, however slow the machine is."""
    monkeypatch.setattr(committer, "WAIT_SECONDS", 0.05)


def assert_refused(db: Database, match: str = "1031") -> None:
    """Assert that a transaction cannot be committed, because the lock is held."""
    with pytest.raises(FDBError, match=match) as caught:
        db[b"a"] = b"1"
    assert caught.value.code == 1031


@pytest.mark.parametrize("limit", ["of the transaction", "of the database", "without a timeout"])
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_commit_waits_for_the_lock_for_a_limited_time(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, kind: str
) -> None:
    if limit == "without a timeout":
        monkeypatch.setattr(committer, "WAIT_SECONDS", 0.1)
    elif limit == "of the database":
        db.options.set_transaction_timeout(600)
    with held(path, kind):
        tr = prepare(db, 600) if limit == "of the transaction" else db.create_transaction()
        tr[b"a"] = b"1"
        with pytest.raises(FDBError) as caught:
            tr.commit().wait()
        assert db[b"a"] is None  # reading needs no lock
    assert caught.value.code == 1031
    assert "store.db-lock is held by another process: nothing was committed" in str(caught.value)
    with pytest.raises(FDBError, match="1031"):
        tr.on_error(caught.value).wait()

    db[b"b"] = b"2"
    assert db.get_range(b"", b"\xff") == [(b"b", b"2")]


def test_commits_wait_each_for_its_own_time(db: Database, path: Path) -> None:
    """The commit with the shortest time fails alone; the others are made as soon as the lock is free."""
    patient, short = threading.Event(), threading.Event()
    tr, other = prepare(db, 60_000), prepare(db, 600)
    with held(path):
        leader = threading.Thread(target=lambda: tr.commit().on_ready(lambda _: patient.set()))
        leader.start()
        future = other.commit()
        future.on_ready(lambda _: short.set())
        assert short.wait(60)
        assert not patient.is_set()
        assert code_of(future.wait) == 1031
    assert patient.wait(60)
    leader.join()
    assert db[b"a"] == b"1"


def test_the_leader_does_not_wait_for_the_others(db: Database, path: Path) -> None:
    """A commit that has timed out returns, although it was the one that waited for the lock for all of them."""
    tr = prepare(db, 60_000)
    with held(path):
        leader = threading.Thread(target=prepare(db, 600).commit)
        leader.start()
        while not db._engine.committer._leader.locked():
            assert leader.is_alive()
        follower = tr.commit()
        leader.join(60)
        assert not leader.is_alive()
        assert not follower.is_ready()
    follower.wait()
    assert db[b"a"] == b"1"


@pytest.mark.usefixtures("hasty")
def test_a_lock_that_comes_too_late_is_released(db: Database, path: Path) -> None:
    with held(path):
        assert_refused(db)
    with held(path):  # would wait for ever
        pass
    db[b"a"] = b"1"


def test_a_store_is_not_made_while_the_lock_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WAIT_SECONDS", 0.1)
    path.with_name("store.db-lock").touch()
    with held(path), pytest.raises(StoreError, match=r"store\.db-lock is held by "):
        Database(path)
    assert not path.exists()
    Database(path).close()


def test_a_checkpoint_does_not_wait_for_ever(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that it follows is made; one of the next commits makes the checkpoint."""
    monkeypatch.setattr("cq.store.embedded.wal._LOCK_SECONDS", 0.05)
    monkeypatch.setattr("cq.store.embedded.wal.CHECKPOINT_PAGES", 1)
    keeper = db._engine.committer._checkpointer
    keeper.record_commit(5, 5)
    with held(path):
        keeper.checkpoint_if_due()
        assert keeper._pages > 0
    keeper.checkpoint_if_due()
    assert keeper._pages == 0


@pytest.mark.usefixtures("hasty")
def test_a_store_closes_while_another_process_holds_the_lock(path: Path) -> None:
    db = Database(path)
    with held(path):
        assert_refused(db)
        db.close()
    with Database(path) as again:
        again[b"a"] = b"1"


def test_an_interrupted_wait_leaves_no_lock_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = (LockFile(tmp_path / "file", new_access(PRIVATE)) for _ in range(2))
    assert lock.acquire(1)

    def interrupt(predicate: Callable[[], bool], seconds: float) -> bool:
        if threading.current_thread().name == "cq-lock":
            return inner(predicate, seconds)
        lock.release()
        inner(predicate, 60)  # the lock is there, and then comes ^C
        raise KeyboardInterrupt

    inner = other._changed.wait_for
    monkeypatch.setattr(other._changed, "wait_for", interrupt)
    with pytest.raises(KeyboardInterrupt):
        other.acquire(60)

    assert lock.acquire(60)
    lock.close()
    other.close()


@pytest.mark.usefixtures("hasty")
def test_the_lock_of_one_process_keeps_others_from_committing(db: Database, path: Path) -> None:
    with path.with_name("store.db-lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_refused(db, "held by another process")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether threads can be started: at the limit of the system they cannot."""
    can_start, start = [True], threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if not can_start[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    yield can_start
    can_start[0] = True


def test_a_commit_that_cannot_start_a_thread_to_wait_fails_and_later_ones_do_not(
    db: Database, path: Path, threads: list[bool]
) -> None:
    db[b"a"] = b"0"
    with held(path):
        threads[0] = False
        with pytest.raises(FDBError, match="can't start new thread") as caught:
            db.add(b"number", b"\x01")
        assert caught.value.code == 1510
        threads[0] = True
    db.add(b"number", b"\x01")
    assert db[b"number"] == b"\x01"


def test_a_leader_that_cannot_start_another_makes_the_commits_itself(
    db: Database, threads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "GROUP_TRANSACTIONS", 1)
    leader = db._engine.committer
    with leader._leader:  # so that the commits only queue
        first, second = (prepare(db, 60_000).commit() for _ in range(2))
        own = leader._queue[0]
    monkeypatch.setattr(committer, "_MAX_ROUNDS", 1)
    threads[0] = False
    leader.lead(own)
    assert first.is_ready()
    assert second.is_ready()


def test_snapshots_expire_although_their_thread_could_not_be_started_at_first(
    path: Path, threads: list[bool]
) -> None:
    with Database(path) as db:
        threads[0] = False
        with pytest.raises(RuntimeError, match="can't start new thread"):
            db.create_transaction().get(b"a").wait()
        threads[0] = True
        assert db[b"a"] is None
        assert "cq-snapshots" in {thread.name for thread in threading.enumerate()}
