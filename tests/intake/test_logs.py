"""Following logs: each line is added once, while files are rotated, and whatever has happened meanwhile."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cq
from cq.errors import InvalidData, QueueNotConfigured
from cq.intake import lines as lines_of_files
from cq.intake.lines import AddedLines
from cq.intake.logs import LogFollower
from cq.testing import drain
from tests.kit.queues import values


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_of_files, "_BATCH_LINES", 3)


class Log:
    """A log that servers write, with all lines ever written, and the followers that read it."""

    def __init__(self, db: Any, queue: str, path: Path) -> None:
        self.db, self.queue, self.path = db, cq.configure(db, queue), path
        self.written: Counter[str] = Counter()
        self._days = 0
        self._followers: list[LogFollower] = []
        path.touch()

    def write(self, *lines: str, path: Path | None = None) -> None:
        self.written.update(lines)
        with (path or self.path).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def follower(self, **given: Any) -> LogFollower:
        settings = {"path": self.path} | given
        self._followers.append(LogFollower(self.db, self.queue.name, **settings))
        return self._followers[-1]

    def followed(self, *lines: str) -> LogFollower:
        """Write the first lines; returns a follower that has added them."""
        self.write(*lines)
        follower = self.follower()
        self.read(follower)
        return follower

    def close(self) -> None:
        for follower in self._followers:
            follower.close()

    def add(self, tr: Any, lines: Sequence[bytes], once: Any) -> AddedLines:
        self.queue.add(tr, Counter(line.decode().strip() for line in lines))
        return AddedLines(len(lines), len(lines))

    def read(self, follower: LogFollower | None = None) -> int:
        """Add all lines that there are now; by default as a new process does. Returns their number."""
        reading = follower or self.follower()
        added = 0
        while (done := reading.add_next(self.add)) is not None:
            added += done.added
        return added

    def check(self) -> None:
        drain(self.db, self.queue.name)
        assert values(self.db, self.queue.name) == self.written

    # Rotations

    def shift(self) -> None:
        """Rename the former files: .1 to .2 and so on."""
        for number in range(8, 0, -1):
            for end in ("", ".gz"):
                if (former := self.former(number, end)).exists():
                    former.rename(self.former(number + 1, end))

    def former(self, number: int = 1, end: str = "") -> Path:
        return self.path.with_name(f"{self.path.name}.{number}{end}")

    def rename(self) -> None:
        self.shift()
        self.path.rename(self.former())
        self.path.touch()

    def copy_and_truncate(self) -> None:
        self.shift()
        shutil.copyfile(self.path, self.former())
        os.truncate(self.path, 0)

    def compress(self) -> None:
        for number in range(1, 9):
            if (former := self.former(number)).exists():
                self.former(number, ".gz").write_bytes(gzip.compress(former.read_bytes()))
                former.unlink()

    def date(self) -> None:
        self._days += 1
        self.path.rename(self.path.with_name(f"{self.path.name}-202611{self._days:02}"))
        self.path.touch()


@pytest.fixture
def log(db: Any, name: str, tmp_path: Path) -> Iterator[Log]:
    (tmp_path / "logs").mkdir()
    found = Log(db, name, tmp_path / "logs" / "access.log")
    yield found
    found.close()


Rotate = Callable[[Log], None]


def renamed_and_compressed(log: Log) -> None:
    log.rename()
    log.compress()


def copied_and_compressed(log: Log) -> None:
    log.copy_and_truncate()
    log.compress()


every_rotation = pytest.mark.parametrize(
    "rotate", [Log.rename, Log.copy_and_truncate, Log.date, renamed_and_compressed, copied_and_compressed]
)


def test_lines_are_added_once_by_one_and_by_later_followers(log: Log) -> None:
    log.write("a", "b", "a", "c")
    assert log.read() == 4
    assert log.read() == 0
    log.write("a")
    assert log.read() == 1
    follower = log.follower()
    for number in range(7):
        log.write("d", str(number))
        assert log.read(follower) == 2

    log.check()


def test_a_line_without_an_end_waits_for_it(log: Log) -> None:
    log.write("a")
    with log.path.open("a") as file:
        file.write("b")
    follower = log.follower()
    assert log.read(follower) == log.read(log.follower()) + 1 == 1
    with log.path.open("a") as file:
        file.write("c\n")
    log.written["bc"] += 1
    assert log.read(follower) == 1

    log.check()


@every_rotation
@pytest.mark.parametrize("rotations", [1, 3])
def test_rotations_while_it_follows(log: Log, rotate: Rotate, rotations: int) -> None:
    follower = log.followed("a", "b")
    for number in range(4):
        for each in range(rotations):
            log.write(f"before {number} {each}", "x", "y", "z")
            rotate(log)
        log.read(follower)
        log.write(f"after {number}")
        log.read(follower)

    log.check()


@every_rotation
@pytest.mark.parametrize("rotations", [1, 3])
def test_rotations_while_no_follower_runs(log: Log, rotate: Rotate, rotations: int) -> None:
    log.write("a", "b")
    log.read()
    for number in range(2):
        for each in range(rotations):
            log.write(f"before {number} {each}", "x", "y", "z")
            rotate(log)
        log.write(f"after {number}")
        log.read()

    log.check()


@every_rotation
def test_a_rotation_after_the_last_line_of_a_file(log: Log, rotate: Rotate) -> None:
    follower = log.followed("a")
    rotate(log)
    assert log.read(follower) == log.read() == 0
    rotate(log)  # an empty file
    log.write("b")
    assert log.read() == 1
    rotate(log)
    log.write("c")

    assert log.read() == 1
    log.check()


@pytest.mark.parametrize("rotate", [Log.rename, Log.date])
def test_a_rotation_before_the_first_commit_loses_no_line(log: Log, rotate: Rotate) -> None:
    log.follower().close()  # killed before it has added anything
    log.write("a", "b")
    rotate(log)
    log.write("c")
    log.follower().close()
    rotate(log)
    log.write("d")

    assert log.read() == 4
    log.check()


def test_a_first_file_that_is_gone_before_a_line_was_added_is_reported(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.follower().close()
    log.rename()
    log.write("a")
    log.former().rename(log.path.with_name("moved"))
    with caplog.at_level(logging.WARNING, "cq.logs"):
        assert log.read() == 1

    assert "access.log: the file that was there at the first start is gone" in caplog.text
    log.check()


def test_servers_write_to_the_renamed_file_for_a_while(log: Log) -> None:
    follower = log.followed("a")
    log.rename()
    log.write("late", path=log.former())
    log.write("b")
    log.read(follower)
    log.write("later", path=log.former())
    log.read(follower)
    follower.close()
    log.write("latest", path=log.former())

    assert log.read() == 1
    log.compress()
    assert log.read() == 0
    log.check()


def test_servers_write_to_a_renamed_file_that_was_empty_at_the_first_start(log: Log) -> None:
    follower = log.follower()
    log.rename()
    log.write("a")
    log.read(follower)
    follower.close()
    log.write("late", path=log.former())

    assert log.read() == 1
    log.write("later", path=log.former())
    assert log.read() == 1
    log.check()


def test_a_newer_file_may_have_the_inode_of_the_first_one(log: Log) -> None:
    follower = log.follower()
    log.rename()
    log.write("a")
    log.read(follower)
    follower.close()
    first = log.former().rename(log.path.with_name("deleted"))
    log.rename()
    first.rename(log.path)
    log.write("b")

    assert log.read() == 1
    assert log.read() == 0
    log.check()


def test_a_truncation_in_the_middle_of_a_copy_loses_nothing_that_was_copied(log: Log) -> None:
    """The copy is there, and the file is not truncated yet."""
    follower = log.followed("a", "b")
    log.write("c")
    shutil.copyfile(log.path, log.former())
    log.read(follower)
    assert log.read() == 0
    os.truncate(log.path, 0)
    log.write("d", "e", "f", "g")  # longer than before

    assert log.read(follower) == 4
    log.check()


def test_a_batch_that_was_read_before_a_truncation_is_not_added_from_two_files(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = log.followed("a", "b")
    log.write("c", "d")
    real = lines_of_files.LineReader.next_lines

    def truncated_meanwhile(reader: Any) -> list[bytes]:
        found = real(reader)
        monkeypatch.undo()
        log.copy_and_truncate()
        log.write("e", "f", "g", "h", "i")
        return found

    monkeypatch.setattr(lines_of_files.LineReader, "next_lines", truncated_meanwhile)
    log.read(follower)

    log.check()


def test_a_file_that_is_truncated_without_a_copy_is_reported(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    follower = log.followed("a", "b")
    os.truncate(log.path, 0)
    log.write("c")
    with caplog.at_level(logging.WARNING, "cq.logs"):
        assert log.read(follower) == 1

    (record,) = caplog.records
    assert (
        "access.log was truncated after byte 4, and no file beside it has these bytes" in record.getMessage()
    )
    log.write("d")
    assert log.read() == 1
    log.check()


@pytest.mark.parametrize("lose", [lambda log: log.path.write_text("other\n"), lambda log: log.path.unlink()])
def test_a_file_that_is_not_there_any_more_is_refused(log: Log, lose: Rotate) -> None:
    log.write("a", "b")
    log.read()
    moved = log.path.with_name("moved")
    shutil.copyfile(log.path, moved)
    lose(log)

    with pytest.raises(
        InvalidData, match=r"4 bytes of a file are added .* put the former file beside it, as access"
    ):
        log.follower()

    moved.rename(log.former())  # as the message says
    log.path.write_text("")
    log.write("c")
    assert log.read() == 1
    log.path.write_text("d\n")
    log.former().unlink()
    log.written["d"] += 1
    assert log.read(log.follower(name="another")) == 1
    log.check()


def test_a_file_that_was_deleted_is_read_to_its_end(log: Log) -> None:
    follower = log.followed("a")
    log.write("b")
    log.path.unlink()
    assert log.read(follower) == 1
    log.path.touch()
    assert log.read(follower) == 0
    log.write("c")
    assert log.read(follower) == 1

    log.check()


def test_a_former_file_that_is_being_compressed_is_not_read_again(log: Log) -> None:
    follower = log.followed("a", "b")
    log.rename()
    compressed = gzip.compress(log.former().read_bytes())
    for size in (0, len(compressed) // 2, len(compressed)):
        log.former(1, ".gz").write_bytes(compressed[:size])
        assert log.read(follower) == log.read() == 0
    log.former().unlink()
    log.write("c")

    assert log.read(follower) == 1
    log.check()


def test_a_rotation_while_the_files_are_listed_skips_none(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = log.followed("a")
    log.rename()
    log.write("b")
    listed = Path.iterdir

    def rotated_meanwhile(path: Path) -> list[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        found = list(listed(path))
        log.rename()
        log.write("c")
        return found

    monkeypatch.setattr(Path, "iterdir", rotated_meanwhile)

    assert log.read(follower) == 2
    log.check()


def test_files_of_other_names_are_no_former_ones(log: Log) -> None:
    log.write("a")
    log.read()
    log.path.rename(log.path.with_name("access.log.old"))
    log.path.with_name("access.log-backup").write_text("x\n")
    log.path.write_text("b\n")

    with pytest.raises(InvalidData, match="are added under the name"):
        log.follower()


def test_only_regular_files_are_read(log: Log) -> None:
    """The open of a named pipe would block for ever."""
    pipe = log.path.with_name("pipe.log")
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="expected a regular file"):
        log.follower(path=pipe)
    log.former(1).mkdir()
    os.mkfifo(log.former(2))
    log.followed("a").close()
    log.write("b")
    assert log.read() == 1
    log.check()


def test_two_followers_of_one_name_do_not_add_a_line_twice(log: Log) -> None:
    log.write("a", "b")
    one, other = log.follower(), log.follower()
    assert log.read(one) == 2

    with pytest.raises(InvalidData, match="another process is adding this file"):
        log.read(other)

    log.check()


def test_what_is_no_log_is_refused(db: Any, log: Log) -> None:
    with pytest.raises(QueueNotConfigured):
        LogFollower(db, f"{log.queue.name}.none", log.path)
    with pytest.raises(FileNotFoundError):
        LogFollower(db, log.queue.name, log.path.with_name("none"))
    damaged = log.path.with_name("damaged.gz")
    damaged.write_bytes(gzip.compress(b"a\n" * 100)[:-9])
    with pytest.raises(OSError, match="damaged"):
        log.read(log.follower(path=damaged))


@pytest.mark.parametrize("seed", range(6))
def test_any_rotations_at_any_time(log: Log, seed: int) -> None:
    rng, follower, number = Random(seed), log.follower(), 0
    log.write("first")  # a file that was copied before a line of it was added is not found
    log.read(follower)
    dated = rng.random() < 0.3
    for _ in range(60):
        kind = rng.random()
        if kind < 0.5:
            number += 1
            log.write(*(f"line {number} {each}" for each in range(rng.randrange(6))))
        elif kind < 0.6:
            Log.date(log) if dated else rng.choice([Log.rename, Log.copy_and_truncate])(log)
        elif kind < 0.65:
            log.compress()
        elif kind < 0.75:
            follower.close()
            follower = log.follower()
        else:
            follower.add_next(log.add)
        while len(list(log.path.parent.iterdir())) > 7:
            number += 1
            log.write(f"the position is in the present file {number}")
            log.read(follower)
            names = sorted(path.name for path in log.path.parent.iterdir() if path != log.path)
            log.path.with_name(names[0 if dated else -1]).unlink()
    log.read(follower)

    log.check()
