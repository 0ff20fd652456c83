"""The disk is full, or fails: a commit that says it failed has not happened, and what was there stays and goes on."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.store.api import COMMIT_UNKNOWN_RESULT
from cq.store.embedded import Database
from cq.store.embedded.error import IO_ERROR
from tests.cli.conftest import Cli
from tests.cli.workers import running, wait_for
from tests.crash.conftest import Scripts
from tests.crash.failing import COMMITS
from tests.crash.load import Name, assert_whole
from tests.kit.processes import SECONDS, run_program, wait_for_line
from tests.kit.queues import add


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room Python leaves a part of a compiled module, which no later process can import."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


class Told:
    """What a process has said of its commits."""

    def __init__(self, out: bytes, path: Path, seed: int) -> None:
        self.path, self._seed = path, seed
        lines: list[list[Any]] = [json.loads(line) for line in out.splitlines()]
        self.returned: dict[Name, bytes] = {
            (line[1], line[2]): bytes.fromhex(line[3]) for line in lines if line[0] == "returned"
        }
        self.failed = [(line[3], line[4]) for line in lines if line[0] == "failed"]
        self.could_read = ["read", True] in lines
        self.counted: list[int] = next((line[1:] for line in lines if line[0] == "counted"), [])

    def count(self, writer: int) -> int:
        """How many commits of a writer have returned."""
        return Counter(each for each, _ in self.returned)[writer]

    def whole(self) -> dict[Name, bytes]:
        """The transactions that the store holds, after a check that it holds all that have returned."""
        with Database(self.path) as db:
            return assert_whole(db, self._seed, self.returned)


Failing = Callable[..., Told]


@pytest.fixture
def failing(tmp_path: Path, scripts: Scripts, seed: int) -> Failing:
    """Runs a process whose disk fails in one of the ways of `failing`, to its end with this status."""

    def run(what: str, status: int = 0) -> Told:
        path = tmp_path / "store.db"
        ended, out = scripts.run("failing", path, seed, what)
        assert ended == status
        return Told(out, path, seed)

    return run


class TestFromBelow:
    """Errors that the layer between SQLite and the disk makes."""

    def test_a_full_disk_fails_commits_clearly_and_they_go_on_when_there_is_room(
        self, failing: Failing
    ) -> None:
        told = failing("full")

        assert told.failed
        for code, message in told.failed:
            assert code == IO_ERROR
            assert f"there is no room for {told.path} (database or disk is full): free space" in message
        assert told.could_read
        assert told.count(0) == told.count(2) == COMMITS
        assert told.whole() == told.returned

    def test_a_log_that_does_not_fit_into_the_file_is_kept(self, failing: Failing) -> None:
        """Commits need the log only; also when the store is closed, what it holds is not thrown away."""
        told = failing("full-file")

        assert told.failed == []
        assert told.path.with_name("store.db-wal").stat().st_size
        assert told.whole() == told.returned

    def test_a_commit_whose_sync_fails_is_unknown_until_another_has_taken_its_place(
        self, failing: Failing
    ) -> None:
        told = failing("sync-once")

        ((code, message),) = told.failed
        assert code == COMMIT_UNKNOWN_RESULT
        assert (
            f"{told.path} cannot be read or written (disk I/O error): check whether its disk is full"
            in message
        )
        assert told.count(1) == 1
        assert told.whole() == told.returned

    def test_a_commit_that_is_said_to_have_failed_does_not_come_back(self, failing: Failing) -> None:
        """SQLite finds what it could not sync in the log again, when the process is killed then."""
        told = failing("sync", -signal.SIGKILL)

        assert [code for code, _ in told.failed] == [COMMIT_UNKNOWN_RESULT, IO_ERROR, IO_ERROR]
        assert told.whole().keys() - told.returned.keys() <= {(3, 0)}  # of which it was said to be unknown

    def test_a_retry_after_1021_counts_once(self, failing: Failing) -> None:
        """Without an operation id: the retry begins by overwriting what the first try may have left in the log."""
        told = failing("retry-once", -signal.SIGKILL)

        assert told.counted == [2, 0, 1]  # two tries, no error, and the number
        with Database(told.path) as db:
            assert db[b"count"] == (1).to_bytes(8, "little")

    def test_a_commit_stays_in_doubt_when_its_retry_fails_too(self, failing: Failing) -> None:
        """It is not there while the process lives; after a crash it may be."""
        told = failing("retry", -signal.SIGKILL)

        assert told.counted == [2, IO_ERROR, 0]
        with Database(told.path) as db:
            assert db[b"count"] in (None, (1).to_bytes(8, "little"))


def limited(size: int) -> Callable[[], None]:
    """For a process about to start: no file of it may be longer."""
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def assert_one_line(process: subprocess.Popen[bytes], *words: str) -> None:
    """The command has failed, and said why in one line that has these words."""
    out, err = process.communicate(timeout=SECONDS)
    (line,) = err.decode().splitlines()
    assert (process.returncode, out) == (1, b"")
    assert line.startswith("cq: ")
    for word in words:
        assert word in line


def test_a_command_says_in_one_line_that_there_is_no_room(cli: Cli, db: Any) -> None:
    cq.configure(db, "words", value=str, combiner="last")
    big = cli.start("add", "words", f"a={'x' * 80_000}", preexec_fn=limited(40_000))
    assert_one_line(
        big, "the store failed: Disk i/o operation failed (1510): ", "cli.db cannot be", "is full"
    )
    assert cli.run("add", "words", "a=y").status == 0
    assert cli.run("worker", "words", "--drain").status == 0
    assert cli.run("get", "words", "a").out == "a\ty\n"


READING = ("status", "health", "link list", "get words a", "items words", "aside list words", "limit words")


@pytest.mark.sampled(2, among="full disks")
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_commands_that_only_read_need_no_room(cli: Cli, is_open: bool) -> None:
    """Neither for files that SQLite makes beside a store that no process has open, nor for a commit."""
    assert cli.run("configure", "words", "--export", "counts").status == 0
    assert cli.run("add", "words", "a=1").status == 0
    assert cli.run("configure", "others", "--combiner", "sum").status == 0
    if is_open:
        running(cli, "others")

    for command in READING:
        process = cli.start(*command.split(), preexec_fn=limited(1_000))
        out, err = process.communicate(timeout=SECONDS)
        # 1: no worker combines the queue; 3: the key has no value yet
        expected = {"health": 1, "get words a": 3}.get(command, 0)
        assert (process.returncode, err) == (expected, b""), command
        assert b"does not answer" not in out


@pytest.mark.sampled(2, among="full disks")
def test_commands_that_only_read_work_on_a_full_file_system(tmp_path: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this user may not mount a file system: unshare --user --mount")
    (tmp_path / "disk").mkdir()
    script = f"""
        mount -t tmpfs -o size=1m tmpfs disk && cd disk || exit 77
        cq() {{ "{sys.executable}" -m cq "$@"; }}
        cq configure words --export counts >&2
        cq add words a=1 >&2
        cat /dev/zero >full 2>/dev/null
        for command in {" ".join(f"'{each}'" for each in READING)} 'add words a=1'; do
            cq $command >&2; echo "$command: $?"
        done
        rm cq.db-lock; cat /dev/zero >fuller 2>/dev/null; cq status >&2; echo "without a lock file: $?"
        rm full fuller; cq add words a=1 >&2; echo "with room: $?"
    """
    ended = run_program(*alone, "sh", "-c", script, cwd=tmp_path)
    if ended.status == 77:
        pytest.skip("this user may not mount a file system of its own")

    statuses = dict(line.split(": ") for line in ended.out.splitlines())
    assert statuses == {
        **dict.fromkeys(READING, "0"),
        "health": "1",  # no worker is alive
        "get words a": "3",
        "add words a=1": "1",
        "without a lock file": "0",
        "with room": "0",
    }
    assert "Traceback" not in ended.err


@pytest.mark.sampled(2, among="full disks")
def test_a_store_that_is_opened_without_room_is_not_called_damaged(cli: Cli) -> None:
    assert cli.run("configure", "words", "--combiner", "sum").status == 0
    assert cli.run("add", "words", "a=1").status == 0

    assert_one_line(
        cli.start("add", "words", "a=1", preexec_fn=limited(1_000)), "cli.db cannot be", "is full"
    )
    assert_one_line(
        cli.start(
            "configure", "words", "--combiner", "sum", "--store", "embedded:new.db", preexec_fn=limited(1_000)
        ),
        "cannot be created",
        "check the directory and the disk",
    )
    assert not (cli.folder / "new.db").exists()
    assert cli.run("worker", "words", "--drain").status == 0
    assert cli.run("get", "words", "a").out == "a\t1\n"


def test_a_worker_goes_on_by_itself_when_there_is_room_again(cli: Cli, db: Any) -> None:
    cq.configure(db, "words", buckets=1)
    worker = running(cli, "words")
    add(db, "words", {"a": 1})
    wait_for(db, "words", "a", 1)
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (1_000, unlimited))
    add(db, "words", {"a": 1})
    wait_for_line(worker, b"cannot be read or written (disk I/O error): check whether its disk is full")

    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))

    wait_for(db, "words", "a", 2)
    assert cli.run("status", "words", "--json").rows()[0]["aside"] == 0
