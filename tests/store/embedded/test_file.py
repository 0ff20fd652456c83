"""Opening: what is not a store is refused with one line and left as it was."""

from __future__ import annotations

import copy
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cq.errors import NotAStore, StoreError
from cq.store import api
from cq.store.embedded import Database, FDBError, ReadOnlyDatabase, Transaction, file
from tests.kit.busy import in_threads
from tests.kit.processes import StartedProcesses, another_process, ended, run_code

OPEN = "import sys; from cq.store.embedded import Database\nwith Database(sys.argv[1]) as db: {}"


def assert_refused(path: Path, words: str) -> None:
    """Opening fails with one line that has these words, and the file stays as it is, alone in its directory."""
    before = contents(path)

    with pytest.raises(NotAStore, match=words) as caught:
        Database(path)

    assert "\n" not in str(caught.value)
    assert contents(path) == before


def contents(path: Path) -> dict[Path, bytes]:
    # SQLite leaves its (empty) helpers behind when it finds the damage itself.
    helpers = {path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")}
    return {
        entry: entry.read_bytes()
        for entry in path.parent.iterdir()
        if entry.is_file() and entry not in helpers
    }


def make_store(path: Path) -> None:
    def fill(tr: Transaction) -> None:
        for number in range(5000):
            tr.set(b"key%05d" % number, bytes(100))

    with Database(path) as db:
        db.transact(fill)


def patch(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def change(path: Path, statement: str, *parameters: Any) -> None:
    """Change a file as another program does."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, parameters)


def test_a_new_store_is_made_and_found_again(path: Path) -> None:
    with Database(path) as db:
        db[b"a"] = b"1"
    with Database(str(path)) as db:
        assert db[b"a"] == b"1"


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with Database(path) as db:
        db[b"a"] = b"1"
        assert db[b"a"] == b"1"


def test_odd_characters_in_the_name_are_fine(tmp_path: Path) -> None:
    with Database(tmp_path / "a?b#c%20 d.db") as db:
        db[b"a"] = b"1"
    assert (tmp_path / "a?b#c%20 d.db").exists()


def test_a_relative_path_stays_what_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with Database(path.name) as db:
        monkeypatch.chdir("/")
        db[b"a"] = b"1"
        assert db[b"a"] == b"1"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("hello, this is not a database at all\n" * 10), "not a cq store"),
        (lambda path: path.write_bytes(b"SQLite format 3\x00"), "not a cq store"),
        (lambda path: change(path, "CREATE TABLE t (x)"), "another program"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
    ids=["text", "short", "other", "directory", "loop"],
)
def test_what_is_no_store_is_refused(path: Path, make: Callable[[Path], object], words: str) -> None:
    make(path)
    assert_refused(path, words)


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (60, (file.FORMAT + 1).to_bytes(4, "big"), "newer version of cq: upgrade"),
        (100, b"\xa5" * 20_000, "damaged"),
        (16, b"\x20\x00", "damaged"),  # the size of pages
        (18, b"\x03", "damaged"),  # what it takes to write
        (19, b"\x03", "damaged"),  # and to read it
        (47, b"\x05", "damaged"),  # the format of the schema
    ],
)
def test_a_store_with_other_bytes_is_refused(path: Path, offset: int, data: bytes, words: str) -> None:
    make_store(path)
    patch(path, offset, data)
    assert_refused(path, words)


def test_a_file_cut_short_is_refused(path: Path) -> None:
    make_store(path)
    os.truncate(path, 8 * 4096)
    assert_refused(path, "damaged")


def test_a_damaged_schema_is_refused(path: Path) -> None:
    make_store(path)
    content = path.read_bytes()
    patch(path, content.index(b"kvkv"), b"\xa8")  # its name, which the error quotes
    patch(path, content.index(b"CREATE TABLE kv"), b"X")
    assert_refused(path, r"damaged \(malformed database schema")


@pytest.mark.parametrize(
    "name", [b"k BLOB", b"v BLOB", b"writes BLOB", b"version INTEGER", b"kv (", b"commits ("]
)
def test_a_schema_with_another_name_in_it_is_refused(path: Path, name: bytes) -> None:
    make_store(path)
    patch(path, path.read_bytes().index(name), b"q")
    assert_refused(path, r"damaged \(.*\): restore")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
HUGE = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT group_concat(zeroblob(1000)) FROM n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            f"DROP TABLE kv; CREATE VIEW kv AS {ENDLESS} CAST(i AS BLOB) AS k, x'' AS v FROM n WHERE i < 0",
            "damaged",
        ),
        (
            f"DROP TABLE commits; CREATE VIEW commits AS {ENDLESS} i AS version, x'' AS writes FROM n WHERE i < 0",
            "damaged",
        ),
        ("DROP TABLE kv; CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB NOT NULL)", "damaged"),
        (
            "DROP TABLE kv; CREATE TABLE kv (k BLOB PRIMARY KEY, v AS (zeroblob(1000000000))) WITHOUT ROWID",
            "damaged",
        ),
        ("DROP TABLE kv", "damaged"),
        (f"CREATE TRIGGER t AFTER INSERT ON kv BEGIN {HUGE}; END", "triggers that cq did not create"),
        (f"CREATE TRIGGER t BEFORE INSERT ON commits BEGIN {HUGE}; END", "triggers that cq did not create"),
        ("CREATE INDEX i ON kv (length(hex(v)))", "indexes or triggers that cq did not create"),
        ("CREATE TABLE other (x)", "tables, views, .* that cq did not create"),
    ],
)
def test_a_schema_that_cq_has_not_made_is_refused_before_it_is_used(
    path: Path, script: str, words: str
) -> None:
    """Reading from such a view does not end; writing with such a trigger fills the memory."""
    make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)

    assert_refused(path, words)
    with pytest.raises(NotAStore, match=words):
        ReadOnlyDatabase(path)


def test_statistics_of_sqlite_are_no_foreign_tables(path: Path) -> None:
    make_store(path)
    change(path, "ANALYZE")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_stat1").fetchone() == (2,)

    with Database(path) as db:
        assert db[b"key00000"] == bytes(100)


def test_the_schema_of_a_store_is_not_trusted(db: Database) -> None:
    db[b"a"] = b"1"
    reader = db.create_transaction()
    assert reader.get(b"a").value == b"1"
    snapshot: Any = reader._state.snapshot
    for connection in (db._engine.committer._connection, snapshot._connection):
        assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE kv SET v = 5 WHERE k = ?",
        "UPDATE kv SET v = 'text' WHERE k = ?",
        "UPDATE kv SET v = CAST(x'ff' AS TEXT) WHERE k = ?",
    ],
)
def test_rows_of_a_wrong_type_are_damage(path: Path, statement: str) -> None:
    make_store(path)
    change(path, statement, b"key00007")
    words = r"damaged \(a row of it is not made of bytes\): restore"
    with Database(path) as db:
        assert db[b"key00006"] == bytes(100)
        with pytest.raises(FDBError, match=words):
            db.get(b"key00007")
        with pytest.raises(FDBError, match=words):
            db.get_range(b"", b"\xff")
        for operation in (db.add, db.byte_max):
            with pytest.raises(FDBError, match=words):
                operation(b"key00007", b"\x01")
            db[b"a"] = b"1"  # the failed commit fails no other one
        db[b"key00007"] = b"repaired"
        assert db[b"key00007"] == b"repaired"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE commits SET writes = 'abc'", "its log of commits is malformed"),
        ("UPDATE commits SET writes = CAST(x'ff' AS TEXT)", "a row of it is not made of bytes"),
    ],
)
def test_a_log_of_commits_that_is_damaged_fails_commits_clearly(
    path: Path, statement: str, words: str
) -> None:
    make_store(path)
    change(path, statement)
    with Database(path) as db:
        assert db[b"key00006"] == bytes(100)
        with pytest.raises(FDBError, match=rf"damaged \({words}\): restore"):
            db[b"a"] = b"1"


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute(sys.argv[2])
os._exit(0)
"""


def leave_log(path: Path, statement: str) -> None:
    """Change the database at a path as somebody does who is killed then: it is in the log only."""
    assert run_code(KILLED, path, statement).status == 0
    assert log_of(path).stat().st_size


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def test_a_newer_format_that_only_the_log_tells_of_is_refused(path: Path) -> None:
    make_store(path)
    leave_log(path, f"PRAGMA user_version = {file.FORMAT + 1}")
    log = log_of(path).read_bytes()
    assert_refused(path, "newer version of cq: upgrade")
    assert log_of(path).read_bytes() == log


def test_a_log_of_another_program_is_refused(path: Path) -> None:
    make_store(path)
    other = path.with_name("other.db")
    leave_log(other, "CREATE TABLE t (x)")
    log_of(other).replace(log_of(path))
    log = log_of(path).read_bytes()
    assert_refused(path, "another program")
    assert log_of(path).read_bytes() == log


def test_a_damaged_file_with_a_log_is_left_as_it_is(path: Path) -> None:
    """Else closing it would bring the log into the file."""
    make_store(path)
    leave_log(path, "PRAGMA user_version = 0")
    patch(path, 4096, b"\xa5" * 20_000)
    log = log_of(path).read_bytes()
    assert_refused(path, "is damaged .*: restore it from a backup")
    assert log_of(path).read_bytes() == log


@pytest.mark.parametrize("left", [None, b""])
def test_no_store_is_made_beside_the_log_of_one_that_is_gone(path: Path, left: bytes | None) -> None:
    """SQLite would bring it into the new store."""
    make_store(path)
    leave_log(path, "DELETE FROM kv")
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    log = log_of(path).read_bytes()

    with pytest.raises(NotAStore, match=r"store\.db-wal is there and its store is not: put store\.db back"):
        Database(path)

    assert log_of(path).read_bytes() == log
    assert path.exists() == (left is not None)


def test_a_copy_that_has_lost_its_mode_is_a_store(path: Path) -> None:
    make_store(path)
    vacuumed = path.with_name("copy.db")
    change(path, "VACUUM INTO ?", str(vacuumed))

    with Database(vacuumed) as db:
        reader = db.create_transaction()
        assert reader.get(b"key00000").value == bytes(100)
        db[b"a"] = b"1"  # which a reader holds up unless there is a log
        assert log_of(vacuumed).stat().st_size


BUSY = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("DELETE FROM kv")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_file_that_somebody_keeps_is_not_called_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(path)
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    with (
        another_process(BUSY, path),
        pytest.raises(StoreError, match="is locked by a process that does not release it") as caught,
    ):
        Database(path)

    assert not isinstance(caught.value, NotAStore)
    with Database(path) as db:
        assert db[b"key00000"] is None


def test_a_missing_directory_is_named(path: Path) -> None:
    with pytest.raises(NotAStore, match=r"directory of .* does not exist"):
        Database(path / "deeper" / "store.db")


def test_a_path_that_sqlite_cannot_open_is_named(path: Path) -> None:
    with pytest.raises(NotAStore, match=r"cannot be created .* only paths in UTF-8"):
        Database(path.with_name("\udcff.db"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_refused(path: Path) -> None:
    make_store(path)
    path.chmod(0o400)
    assert_refused(path, "cannot be written")


def test_many_threads_may_create_one_store(path: Path) -> None:
    databases: list[Database] = []
    in_threads(*[lambda: databases.append(Database(path))] * 8)
    databases[0][b"a"] = b"1"

    assert [db[b"a"] for db in databases] == [b"1"] * 8
    for db in databases:
        db.close()


def test_many_processes_may_create_one_store(path: Path, processes: StartedProcesses) -> None:
    code = OPEN.format("db.add(b'n', (1).to_bytes(8, 'little'))")
    creating = [processes.python("-c", code, path) for _ in range(4)]
    assert [ended(process).status for process in creating] == [0] * 4
    with Database(path) as db:
        assert db[b"n"] == (4).to_bytes(8, "little")


def test_opening_a_store_twice_keeps_the_locks_of_the_first(path: Path) -> None:
    """A second handle in the process must not open and close the file by itself: see `handles`."""
    with Database(path) as db:
        db[b"a"] = b"1"
        with Database(path) as other:
            assert other[b"a"] == b"1"
        # The process is the last to leave only if it cannot see this one's locks; then it would remove the log.
        assert run_code(OPEN.format("db[b'b'] = b'2'"), path).status == 0
        assert path.with_name("store.db-wal").exists()
        assert db[b"b"] == b"2"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs the list of locks that Linux has")
def test_a_check_while_the_store_is_opened_keeps_its_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check closes a file of its own, which would drop all locks that the process has on the store."""
    Database(path).close()
    note_open, checks = file.note_open, []

    def check_first(opened: file.FileId) -> None:
        checks.append(threading.Thread(target=file.check, args=[path]))
        checks[0].start()
        checks[0].join(0.3)  # it ends only after the store is open
        note_open(opened)

    monkeypatch.setattr(file, "note_open", check_first)
    with Database(path) as db:
        checks[0].join()
        db[b"a"] = b"1"
        assert f":{path.stat().st_ino} " in Path("/proc/locks").read_text()


def test_a_closed_store_says_so(path: Path) -> None:
    db = Database(path)
    transaction = db.create_transaction()
    transaction[b"a"] = b"1"
    db.close()
    db.close()

    with pytest.raises(StoreError, match="closed"):
        db.create_transaction()
    with pytest.raises(StoreError, match="closed"):
        transaction.commit()
    assert not path.with_name("store.db-wal").exists()


def test_a_dropped_store_closes_itself(path: Path) -> None:
    db = Database(path)
    db[b"a"] = b"1"
    del db
    assert not path.with_name("store.db-wal").exists()


def test_a_range_that_is_not_read_to_its_end_keeps_the_store_open(path: Path) -> None:
    db = Database(path)
    db[b"a"] = b"1"
    transaction = db.create_transaction()
    rows = transaction.get_range(b"", b"\xff")
    assert transaction.db is transaction.snapshot.db is db
    del db, transaction

    assert [row.value for row in rows] == [b"1"]
    del rows
    assert not path.with_name("store.db-wal").exists()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_open_the_store_itself(path: Path) -> None:
    with Database(path) as db:
        transaction = db.create_transaction()
        assert transaction.get(b"a").value is None
        child = os.fork()
        if child == 0:
            os._exit(_try_in_child(db))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        transaction[b"a"] = b"1"
        transaction.commit().wait()
        assert db[b"a"] == b"1"


def _try_in_child(db: Database) -> int:
    try:
        db.create_transaction()
    except StoreError as error:
        db.close()
        if "forked" not in str(error):
            return 1
    try:
        Database(db.path)
    except StoreError:
        db.close()
        return 0
    return 2


HELD = """
import os, signal, sys, threading
import cq
from cq.store import version_clock
from cq.store.embedded import future

held, ended = threading.Event(), threading.Event()

def hold():
    with version_clock._lock, future.callbacks_lock:
        held.set()
        ended.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
if os.fork() == 0:
    signal.alarm(60)
    db = cq.open(sys.argv[1])
    version_clock.clock_of(db)
    db[b"a"] = b"1"
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
ended.set()
"""


def test_a_forked_child_can_use_a_store_whatever_locks_threads_of_its_parent_hold(path: Path) -> None:
    assert run_code(HELD, f"embedded:{path}").out == "0\n"


def test_links_lead_to_one_store(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with Database(path) as db, Database(link) as other:
        db[b"a"] = b"1"
        assert other[b"a"] == b"1"
        assert other.path == db.path


def test_a_store_with_a_second_name_is_refused_and_a_copy_with_one_can_be_read(path: Path) -> None:
    """Each name has a log of its own, and the commits in one of them were lost."""
    with Database(path) as db:
        db[b"a"] = b"1"
        copy_path = path.with_name("copy.db")
        db.copy_to(copy_path)
    path.with_name("other.db").hardlink_to(path)
    path.with_name("older.db").hardlink_to(copy_path)

    assert_refused(path, r"several names \(hard links\)")
    assert_refused(copy_path, r"several names \(hard links\)")
    with ReadOnlyDatabase(copy_path) as read:
        assert read[b"a"] == b"1"


UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def test_a_mount_of_the_file_alone_is_refused(path: Path) -> None:
    """Its log would be beside the mount, as in a container that is removed."""
    if shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], check=False).returncode != 0:
        pytest.skip("unshare of util-linux cannot mount here")
    make_store(path)
    point = path.parent / "in a folder" / "store.db"
    point.parent.mkdir()
    point.touch()

    mount = ("sh", "-c", 'mount --bind "$1" "$2"; shift 2; exec "$@"', "sh", str(path), str(point))
    program = (sys.executable, "-c", OPEN.format("pass"), str(point))
    found = subprocess.run([*UNSHARE, *mount, *program], capture_output=True, text=True, check=False)

    assert "is a mount of the file alone: mount its directory" in found.stderr


EXIT = """
import sys, threading
from cq.store.embedded import Database
db = Database(sys.argv[1])
value, watch = db.get_and_watch(b"a")
watch.on_ready(print)
tr = db.create_transaction()
tr.get(b"a").wait()
rows = iter(tr.get_range(b"", b"z"))
threading.Thread(target=lambda: [db.set(b"b", b"1") for _ in iter(int, 1)], daemon=True).start()
"""


def test_a_process_with_everything_open_exits_quietly(path: Path) -> None:
    found = run_code(EXIT, path)
    assert (found.status, found.err) == (0, "")


def test_a_file_damaged_later_raises_the_stores_error(path: Path) -> None:
    make_store(path)
    patch(path, 60 * 4096, b"\xa5" * 40 * 4096)
    with Database(path) as db:
        tr = db.create_transaction()
        damaged = rf"\(1510\): {path} is damaged \(.*\): restore it from a backup"
        with pytest.raises(FDBError, match=damaged) as read:
            tr.get_range(b"", b"\xff").to_list()
        with pytest.raises(FDBError, match=damaged):
            tr.on_error(read.value).wait()
        writer = db.create_transaction()
        writer.clear_range(b"", b"\xff")
        with pytest.raises(FDBError, match=damaged) as written:
            writer.commit().wait()
        with pytest.raises(FDBError, match=damaged):
            writer.on_error(written.value.code).wait()
        assert str(copy.copy(written.value)) == str(written.value)


def check_protocol(db: Database, transaction: Transaction) -> tuple[api.Database, api.Transaction]:
    """What the rest of cq relies on; for the type checker."""
    return db, transaction
