"""Commits: groups, versions, conflicts between threads and processes, and what survives a kill."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import threading
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from cq.errors import StoreError
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.embedded import Database, FDBError, Transaction, committer
from cq.store.embedded.committer import CommitRequest
from cq.store.embedded.conflict_log import ConflictLog
from cq.store.embedded.error import storage_error
from cq.store.embedded.future import FutureVoid
from cq.store.embedded.lock_file import LockFile
from tests.kit.busy import in_threads
from tests.kit.clocks import jumping
from tests.kit.processes import StartedProcesses, ended, run_code
from tests.store.calls import code_of, commit_code
from tests.store.embedded.transfers import number, transfer

ONE = (1).to_bytes(8, "little")
SECONDS = 120.0
"""After which a test that still waits has failed: far more than any of these takes."""


class Held:
    """Keeps the leader from committing, so that a group gathers behind it."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.entered, self.go = threading.Event(), threading.Event()
        self._commit = db._engine.committer._commit_group

    def __enter__(self) -> Held:
        self.db._engine.committer._commit_group = self._wait  # type: ignore[method-assign]
        self.thread = threading.Thread(target=lambda: self.db.add(b"held", ONE))
        self.thread.start()
        assert self.entered.wait(SECONDS)
        return self

    def _wait(self, group: list[CommitRequest]) -> None:
        self.db._engine.committer._commit_group = self._commit  # type: ignore[method-assign]
        self.entered.set()
        assert self.go.wait(SECONDS)
        self._commit(group)

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.thread.join()


def stamped(db: Database, key: bytes) -> tuple[Transaction, Any]:
    tr = db.create_transaction()
    tr.set_versionstamped_value(key, bytes(14))
    return tr, tr.get_versionstamp()


# Groups


def test_versions_grow_by_the_time_that_passes_while_the_clock_is_set_back(tmp_path: Path) -> None:
    """So ages are right. Else no note of a dead worker would be old, and the key that kills workers never set aside."""
    versions = []

    def commit(db: Database) -> None:
        tr = db.create_transaction()
        tr[b"key"] = b"value"
        tr.commit().wait()
        versions.append(tr.get_committed_version())

    with jumping() as clock, Database(tmp_path / "store.db") as db, Database(tmp_path / "store.db") as other:
        clock.jumped = 86_400
        commit(db)
        clock.jumped = 0
        for each, passed in ((db, 0), (other, 0), (db, 1_000), (other, 3_000)):
            clock.passed = passed
            commit(each)
        clock.passed = 1_000_000
        commit(db)
        behind = clock.time_ns() / 1e9 - versions[-1] / VERSIONS_PER_SECOND

    steps = [after - before for before, after in pairwise(versions)]
    assert all(step > 0 for step in steps)
    assert [round(step / VERSIONS_PER_SECOND, -2) for step in steps[:4]] == [0, 0, 900, 1_800]
    assert behind == pytest.approx(0, abs=SECONDS), "a clock that is right catches up"


def test_a_group_shares_its_version_and_not_its_stamps(db: Database) -> None:
    transactions = [stamped(db, b"%d" % i) for i in range(5)]
    with Held(db):
        commits = [tr.commit() for tr, _ in transactions]
        assert not any(commit.is_ready() for commit in commits)
    for commit in commits:
        commit.wait()

    stamps = [stamp.value for _, stamp in transactions]
    assert len({stamp[:8] for stamp in stamps}) == 1
    assert [stamp[8:] for stamp in stamps] == [bytes([0, i]) for i in range(5)]
    assert {tr.get_committed_version() for tr, _ in transactions} == {number(stamps[0][:8][::-1])}
    assert [db[b"%d" % i] for i in range(5)] == stamps


def test_commits_that_nobody_waits_for_are_made(db: Database) -> None:
    with Held(db):
        tr = db.create_transaction()
        tr[b"a"] = b"1"
        done = threading.Event()
        tr.commit().on_ready(lambda _: done.set())

    assert done.wait(SECONDS)
    assert db[b"a"] == b"1"


def test_a_group_sees_its_own_conflicts(db: Database) -> None:
    first, second, third = (db.create_transaction() for _ in range(3))
    assert first.get(b"a").value is second.get(b"a").value is None
    assert list(third.get_range(b"a", b"c")) == []
    for number_, tr in enumerate([first, second, third]):
        tr[b"a"] = b"%d" % number_
    with Held(db):
        commits = [tr.commit() for tr in (first, second, third)]
    commits[0].wait()
    for commit in commits[1:]:
        assert code_of(commit.wait) == 1020
    assert db[b"a"] == b"0"


def test_later_writes_of_a_group_come_after_earlier_ones(db: Database) -> None:
    transactions = [db.create_transaction() for _ in range(4)]
    transactions[0][b"a"] = b"old"
    transactions[1].clear_range(b"", b"z")
    transactions[2].add(b"a", ONE)
    transactions[3].append_if_fits(b"a", b"!")
    with Held(db):
        commits = [tr.commit() for tr in transactions]
    for commit in commits:
        commit.wait()
    assert db[b"a"] == ONE + b"!"


def test_one_leader_does_not_work_for_all_others(db: Database) -> None:
    """It passes on as soon as its own commit is made and others wait."""
    leaders: list[str] = []
    inner = db._engine.committer._commit_group

    def note(group: list[CommitRequest]) -> None:
        leaders.append(threading.current_thread().name)
        inner(group)

    db._engine.committer._commit_group = note  # type: ignore[method-assign]

    def work(thread: int) -> None:
        for _ in range(50):
            db.add(b"%d" % thread, ONE)

    in_threads(*(partial(work, thread) for thread in range(6)))

    assert len(set(leaders)) > 1
    assert all(number(db[b"%d" % thread]) == 50 for thread in range(6))


def test_a_signal_handler_within_a_commit_is_refused_and_does_not_wait_for_ever(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, refused = db._engine.committer, list[str]()
    commit_group = leader._commit_group

    def handle(*_: object) -> None:
        for call in (partial(db.set, b"b", b"2"), db.close):
            with pytest.raises(StoreError) as refusal:
                call()
            refused.append(str(refusal.value))

    def interrupted(group: list[CommitRequest]) -> None:
        signal.raise_signal(signal.SIGUSR1)
        commit_group(group)

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(leader, "_commit_group", interrupted)
            db[b"a"] = b"1"
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert ["signal handler" in message for message in refused] == [True, True]
    db[b"c"] = b"3"
    assert (db[b"a"], db[b"b"], db[b"c"]) == (b"1", None, b"3")


def test_an_interrupted_waiter_does_not_take_the_leadership_with_it(db: Database) -> None:
    tr, other = db.create_transaction(), db.create_transaction()
    tr[b"a"] = other[b"a"] = b"1"
    with Held(db):
        request: Any = tr.commit()
        request.is_awaited = True  # by a thread that is being interrupted just now
        future = other.commit()
    assert not request.is_ready()
    future.wait()
    request.wait()


INTERRUPTED = """
import ctypes, os, sys, threading, time, traceback
from cq.store.embedded import Database
db = Database(sys.argv[1], power_safe=False)
made, interrupted, is_over = [0] * 3, [0] * 3, threading.Event()

def work(number):
    while not is_over.is_set():
        try:
            while not is_over.is_set():
                tr = db.create_transaction()
                tr.add(b"%d" % number, (1).to_bytes(8, "little"))
                tr.commit().wait()
                made[number] += 1
        except KeyboardInterrupt:
            interrupted[number] += 1

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()

def wait_until(is_so):
    # After a minute, show where each thread stands, and fail.
    deadline = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > deadline:
            for thread, frame in sys._current_frames().items():
                print(f"thread {thread}", *traceback.format_stack(frame), file=sys.stderr)
            print(f"made: {made}, interrupted: {interrupted}", file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(0.01)

deadline = time.monotonic() + 2
while time.monotonic() < deadline:
    for thread in threads:
        time.sleep(0.0005)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
        )
before = list(made)
# The last interrupt of a thread may come after its next commit. One outside of `try` ends the thread.
wait_until(lambda: all(
    made[number] > before[number] + 2 or not thread.is_alive() for number, thread in enumerate(threads)
))
is_over.set()
wait_until(lambda: not any(thread.is_alive() for thread in threads))
for number in range(3):
    counted = int.from_bytes(db[b"%d" % number], "little")
    assert made[number] <= counted <= made[number] + interrupted[number]
db.close()
"""


def test_commits_go_on_after_many_interrupts(path: Path) -> None:
    """^C in a thread at any point of a commit, in a program that survives it: no commit is lost, double or stuck."""
    found = run_code(INTERRUPTED, path)

    assert found.status == 0, found.err


def test_a_commit_that_was_cancelled_does_not_become_the_leader(db: Database) -> None:
    """The leader passes on to a thread that waits. The thread of a cancelled transaction does not wait any more."""
    tr = db.create_transaction()
    tr[b"a"] = b"1"
    with Held(db):  # raises what its commit raises
        request = tr.commit()
        tr.cancel()
        assert code_of(request.wait) == 1025
    db[b"b"] = b"1"
    assert db[b"a"] == b"1"


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_interrupted_leader_leaves_no_commit_in_doubt(
    db: Database, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The next leader must not commit again what ^C has found committed. ^C comes when a long COMMIT returns."""
    db[b"b"] = b""
    transactions = [db.create_transaction() for _ in range(2)]
    commits: list[FutureVoid] = []
    with db._engine.committer._leader:  # so that the commits only queue
        for tr in transactions:
            tr.add(b"a", ONE)
            commits.append(tr.commit())

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    if place == "before":
        monkeypatch.setattr(db._engine.committer, "_trim", interrupt)
    else:
        monkeypatch.setattr(ConflictLog, "append", interrupt)
    with pytest.raises(KeyboardInterrupt):
        db._engine.committer.lead(None)

    for future in commits:
        future.wait()
    assert number(db[b"a"]) == 2


def test_a_group_never_gets_the_results_of_the_group_before(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """^C before the group is committed must not make a lost commit look successful."""
    db[b"b"] = b""
    tr = db.create_transaction()
    with db._engine.committer._leader:  # so that the commit only queues
        tr[b"a"] = b"1"
        future = tr.commit()

    def interrupt() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(db._engine.committer, "_resolve_doubt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        db._engine.committer.lead(None)

    assert db[b"a"] is None
    assert not future.is_ready()
    future.wait()
    assert db[b"a"] == b"1"


def test_a_lock_that_fails_fails_the_commit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(lock: LockFile) -> bool:
        monkeypatch.undo()
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(LockFile, "_acquire_at_once", fail)
    with pytest.raises(FDBError, match=r"1510.*cannot be locked \(No locks available\)"):
        db[b"a"] = b"1"
    assert db[b"a"] is None
    db[b"a"] = b"2"


def test_the_last_future_of_a_store_closes_it(path: Path) -> None:
    """The leading thread drops the last transaction, which closes the store while it commits."""
    db = Database(path, power_safe=False)
    tr = db.create_transaction()
    tr[b"a"] = b"1"
    with db._engine.committer._leader:  # so that the commit only queues
        future = tr.commit()
    finished = threading.Event()
    future.on_ready(lambda _: finished.set())
    lead = db._engine.committer.lead
    del db, tr
    leader = threading.Thread(target=lead, args=(None,))
    leader.start()
    assert finished.wait(SECONDS)
    leader.join(SECONDS)
    assert not leader.is_alive()
    with Database(path) as again:
        assert again[b"a"] in (None, b"1")


def test_a_failing_disk_fails_the_commit_and_nothing_else(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr("cq.store.embedded.committer.Applier.flush", fail)
    tr = db.create_transaction()
    tr[b"a"] = b"1"
    stamp = tr.get_versionstamp()
    assert commit_code(tr) == 1510
    assert code_of(stamp.wait) == 2020
    monkeypatch.undo()
    assert db[b"a"] is None
    db[b"a"] = b"2"
    assert db[b"a"] == b"2"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (apsw.SQLITE_BUSY, 1038),
        (apsw.SQLITE_BUSY_RECOVERY, 1038),
        (apsw.SQLITE_PROTOCOL, 1038),
        (apsw.SQLITE_FULL, 1510),
        (apsw.SQLITE_IOERR_READ, 1510),
        (apsw.SQLITE_CORRUPT_VTAB, 1510),
    ],
)
def test_a_busy_file_is_worth_a_retry_in_all_its_kinds(code: int, expected: int) -> None:
    error = apsw.exception_for(code)
    assert isinstance(error, apsw.Error)

    found = storage_error(error, Path("store.db"))

    assert found.code == expected
    assert "store.db" in str(found)


def test_a_log_that_python_s_own_sqlite_has_removed_is_noticed(path: Path) -> None:
    """It knows nothing of the connections of another SQLite in its process, so it takes its own for the last one."""
    with Database(path) as db:
        db[b"a"] = b"1"
        with closing(sqlite3.connect(path)) as other:
            other.execute("SELECT count(*) FROM kv").fetchone()
        for _ in range(2):
            with pytest.raises(FDBError, match="was removed or replaced while the store was in use"):
                db[b"a"] = b"2"
    with Database(path) as again:
        assert again[b"a"] == b"1"
        again[b"a"] = b"3"
        assert again[b"a"] == b"3"


def test_a_store_whose_folder_is_replaced_takes_no_commits(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with Database(folder / "store.db") as db:
        while not db._engine.committer.places._seen:
            db[b"a"] = b"1"
        folder.rename(tmp_path / "former")
        for is_replaced in (False, True):
            if is_replaced:
                shutil.copytree(tmp_path / "former", folder)
            with pytest.raises(FDBError, match="was removed or replaced while the store was in use"):
                db[b"a"] = b"2"


def take_away(file: Path, *, is_replaced: bool) -> Path:
    """Rename a file, and put a copy in its place if it is replaced; returns its new path."""
    content = file.read_bytes()
    former = file.rename(file.with_name("former"))
    if is_replaced:
        file.write_bytes(content)
    return former


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-lock"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_store_whose_files_are_removed_or_replaced_takes_no_commits(
    db: Database, path: Path, ending: str, is_replaced: bool, is_settled: bool
) -> None:
    db[b"a"] = b"1"
    while is_settled and not db._engine.committer.places._seen:  # until commits look at the folder only
        db[b"a"] = b"1"
    take_away(path.with_name(path.name + ending), is_replaced=is_replaced)
    for _ in range(2):
        with pytest.raises(FDBError, match="was removed or replaced while the store was in use"):
            db[b"b"] = b"2"


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-lock"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_store_whose_files_are_removed_or_replaced_is_not_read_any_more(
    db: Database, path: Path, ending: str, is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.store.embedded.engine._LOOK_SECONDS", 0.0)
    db[b"a"] = b"1"
    file = path.with_name(path.name + ending)
    former = take_away(file, is_replaced=is_replaced)
    for _ in range(2):
        with pytest.raises(StoreError, match="was removed or replaced while the store was in use"):
            db[b"a"]
    former.replace(file)
    assert db[b"a"] == b"1"


def refuse_writes_of(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lock file take no writes of so many bytes."""
    write = os.pwrite

    def fail(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) == length:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, offset)

    monkeypatch.setattr("os.pwrite", fail)


def test_a_commit_stands_when_others_cannot_be_woken(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_writes_of(1, monkeypatch)
    db[b"a"] = b"1"
    assert db[b"a"] == b"1"


def test_a_commit_of_which_others_cannot_be_told_is_not_made(
    db: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would believe that the version before it is the latest."""
    with monkeypatch.context() as context:
        refuse_writes_of(8, context)
        with pytest.raises(FDBError, match="no room") as caught:
            db[b"a"] = b"1"
        assert caught.value.code == 1510
        assert db[b"a"] is None
    db[b"a"] = b"2"
    assert db[b"a"] == b"2"


def test_commits_under_way_finish_before_the_store_closes(path: Path) -> None:
    db = Database(path)
    with Held(db) as held:
        closing = threading.Thread(target=db.close)
        closing.start()
        held.go.set()
        closing.join(SECONDS)
        assert not closing.is_alive()
    with Database(path) as again:
        assert number(again[b"held"]) == 1
    with pytest.raises(StoreError):
        db[b"a"] = b"1"


# Serializability


TRANSFERS = """
import sys
from cq.store.embedded import Database
from tests.store.embedded.transfers import transfer
with Database(sys.argv[1], power_safe=False) as db:
    transfer(db, 6, int(sys.argv[2]), 150)
"""


def test_transfers_of_several_processes_keep_the_total(
    db: Database, path: Path, processes: StartedProcesses
) -> None:
    for account in range(6):
        db[b"account%d" % account] = (100).to_bytes(8, "little")
    others = [processes.python("-c", TRANSFERS, path, seed) for seed in range(3)]
    in_threads(*(partial(transfer, db, 6, seed, 100) for seed in (100, 101)))
    for process in others:
        found = ended(process)
        assert found.status == 0, found.err

    assert sum(number(row.value) for row in db.get_range(b"account", b"account\xff")) == 600


# Durability


WRITER = """
import sys
from cq.store.embedded import Database
db = Database(sys.argv[1])
number = 0
while True:
    number += 1
    def run(tr):
        tr.set(b"last", b"%d" % number)
        tr.add(b"count", (1).to_bytes(8, "little"))
        tr.set_versionstamped_key(b"log/" + bytes(14)[:10] + (4).to_bytes(4, "little"), b"%d" % number)
    db.transact(run)
    sys.stdout.write("%d\\n" % number)
    sys.stdout.flush()
"""


def test_what_was_committed_is_there_after_a_kill(path: Path, processes: StartedProcesses) -> None:
    rng = random.Random(5)
    acknowledged = committed = 0
    for _ in range(4):
        process = processes.python("-c", WRITER, path)
        assert process.stdout is not None
        for _ in range(rng.randint(5, 200)):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # Not by `communicate`, which does not see what `readline` has read ahead.
        told = [line for line in process.stdout.readlines() if line.endswith(b"\n")]
        acknowledged = int(told[-1]) if told else acknowledged
        ended(process)
        with Database(path) as db:
            last = int(db[b"last"] or b"0")
            # The one under way may have been committed without having been told.
            assert acknowledged <= last <= acknowledged + 1
            committed += last
            assert number(db[b"count"]) == committed
            assert len(db.get_range(b"log/", b"log0")) == committed


def test_a_killed_leader_leaves_no_lock(db: Database, path: Path, processes: StartedProcesses) -> None:
    code = (
        "import sys, time; from cq.store.embedded import Database\n"
        "db = Database(sys.argv[1]); committer = db._engine.committer\n"
        "committer._lock.acquire(9); committer._connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True); time.sleep(600)"
    )
    process = processes.python("-c", code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    killer = threading.Timer(0.1, process.kill)
    killer.start()
    db[b"a"] = b"1"
    ended(process)
    assert db[b"a"] == b"1"


def test_a_stopped_group_limit_still_commits_all(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "GROUP_TRANSACTIONS", 2)
    with Held(db):
        transactions = [db.create_transaction() for _ in range(9)]
        for i, tr in enumerate(transactions):
            tr[b"%d" % i] = b"1"
        commits = [tr.commit() for tr in transactions]
    for commit in commits:
        commit.wait()
    assert len({tr.get_committed_version() for tr in transactions}) == 5
