"""Who may use a store: new files are private, and no file beside a store is a way to another file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cq.errors import NotAStore
from cq.store.embedded import Database
from tests.kit.processes import run_code

OTHER = 65534  # a user and a group without rights
SUFFIXES = ("", "-lock", "-wal", "-shm")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def modes(path: Path) -> dict[str, int]:
    """The permissions of a store in use and of the files beside it."""
    return {suffix: stat.S_IMODE(beside(path, suffix).stat().st_mode) for suffix in SUFFIXES}


def make_store(path: Path) -> None:
    with Database(path) as db:
        db[b"a"] = b"1"


def assert_refused(path: Path, words: str) -> None:
    with pytest.raises(NotAStore, match=words) as caught:
        Database(path)
    assert "\n" not in str(caught.value)


# The lock file


@pytest.mark.parametrize("has_store", [True, False])
def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(path: Path, has_store: bool) -> None:
    if has_store:
        make_store(path)
    letter = path.with_name("letter.txt")
    letter.write_bytes(b"Dear reader")
    beside(path, "-lock").unlink(missing_ok=True)
    beside(path, "-lock").symlink_to(letter)

    assert_refused(path, r"store\.db-lock is not the lock of a store \(it is a link")

    assert letter.read_bytes() == b"Dear reader"
    assert path.exists() == has_store


def test_a_lock_that_is_a_link_to_nothing_makes_no_file(path: Path) -> None:
    target = path.with_name("target")
    beside(path, "-lock").symlink_to(target)

    assert_refused(path, "it is a link")

    assert not target.exists()


def test_a_lock_with_a_second_name_is_refused(path: Path) -> None:
    """Else a lock in one folder could be an empty file in another one."""
    letter = path.with_name("letter.txt")
    letter.touch()
    beside(path, "-lock").hardlink_to(letter)

    assert_refused(path, r"several names \(hard links\)")

    assert letter.read_bytes() == b""


@pytest.mark.parametrize("content", [b"x", b"Dear reader, " * 10, bytes(23), bytes(25), b"\1" + bytes(23)])
def test_a_file_that_is_no_lock_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    beside(path, "-lock").write_bytes(content)

    assert_refused(path, "it has other content")

    assert beside(path, "-lock").read_bytes() == content
    assert not path.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_directory_is_no_lock(path: Path, make: Callable[[Path], None]) -> None:
    make(beside(path, "-lock"))
    assert_refused(path, "it is not a regular file|it is a link or a directory")


@pytest.mark.parametrize("content", [b"", bytes(24), bytes(8) + (1 << 50).to_bytes(8, "little") + bytes(8)])
def test_locks_of_a_crash_and_of_earlier_versions_are_taken(path: Path, content: bytes) -> None:
    """A crash leaves an empty file, or one of zeros; earlier versions wrote zeros in front of the versions."""
    make_store(path)
    beside(path, "-lock").write_bytes(content)

    with Database(path) as db:
        db[b"a"] = b"2"
        assert db[b"a"] == b"2"
    make_store(path)


def test_a_new_lock_says_what_it_is(path: Path) -> None:
    make_store(path)
    assert beside(path, "-lock").read_bytes()[:8] == b"\0cq-lock"
    make_store(path)


@as_root
@pytest.mark.parametrize("suffix", ["-lock", "-wal", "-shm"])
def test_a_file_that_another_user_put_beside_a_store_is_refused(path: Path, suffix: str) -> None:
    """As that user could in /tmp; what he writes into it would count as a part of the store."""
    make_store(path)
    os.chown(path, OTHER, OTHER)
    trap = beside(path, suffix)
    trap.write_bytes(b"")
    os.chown(trap, OTHER - 1, OTHER - 1)

    assert_refused(path, rf"{trap.name} (is not|was not) .*user {OTHER - 1}")


@as_root
def test_a_member_of_the_group_may_have_made_the_files_of_a_shared_store(path: Path) -> None:
    make_store(path)
    os.chown(path, OTHER, OTHER)
    os.chown(beside(path, "-lock"), OTHER - 1, OTHER)
    path.chmod(0o660)
    make_store(path)

    os.chown(beside(path, "-lock"), OTHER - 1, OTHER - 1)
    assert_refused(path, "belongs to user")


# Permissions


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> object:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o644])
def test_a_new_store_has_the_permissions_that_it_was_given(path: Path, mode: int) -> None:
    with Database(path, mode=mode) as db:
        db[b"a"] = b"1"
        assert modes(path) == dict.fromkeys(SUFFIXES, mode)


@pytest.mark.usefixtures("umask")
def test_a_new_store_is_for_its_owner_alone(path: Path) -> None:
    with Database(path) as db:
        db[b"a"] = b"1"
        assert modes(path) == dict.fromkeys(SUFFIXES, 0o600)


OPENED = """
import os, sys
from cq.store.embedded import Database

made = []
def note(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT:
        made.append(arguments[0])
    if event.startswith(("os.chmod", "os.chown")):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(note)
with Database(sys.argv[1]) as db:
    db[b"a"] = b"1"
print(len(made))
"""


def test_no_file_is_open_to_others_for_a_moment(path: Path) -> None:
    """Permissions are there from the beginning: a file that is closed to others later may have been opened by then."""
    assert run_code(OPENED, path) == (0, "2\n", "")


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_lock_follows_the_permissions_of_the_store(path: Path, mode: int) -> None:
    """`chmod` of the store is all that it takes to share it, or to close it."""
    make_store(path)
    path.chmod(mode)
    beside(path, "-lock").chmod(0o644)

    with Database(path) as db:
        db[b"a"] = b"1"
        assert modes(path) == dict.fromkeys(SUFFIXES, mode)


@as_root
def test_root_does_not_lock_the_owner_of_a_store_out(path: Path) -> None:
    make_store(path)
    os.chown(path, OTHER, OTHER)
    beside(path, "-lock").unlink()
    with Database(path) as db:
        db[b"a"] = b"2"
        owners = {suffix: beside(path, suffix).stat().st_uid for suffix in SUFFIXES}
        assert owners == dict.fromkeys(SUFFIXES, OTHER)
