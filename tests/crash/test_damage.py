"""Files that are cut, flipped, overwritten or somebody else's: refused or said to be damaged, and left as they are.

SQLite has no checksums of its file, so not all damage can be noticed. But whatever it is, it ends in what was stored or
in one clear line. See also tests/store/embedded/test_file.py.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import cq
from cq.errors import NotAStore
from cq.store.embedded import Database, FDBError
from cq.store.embedded.file import PAGE_BYTES
from tests.cli.conftest import Cli, Here
from tests.crash.conftest import ROUNDS
from tests.crash.load import assert_goes_on, assert_whole, write
from tests.kit.processes import run_code

COMMITS: Final = 60
LEAF: Final = 10
"""What a page of SQLite begins with that has rows of the store and no pages below it."""


@pytest.fixture
def store(tmp_path: Path, seed: int) -> Path:
    """A store that is closed, so that all of it is in its file."""
    path = tmp_path / "store.db"
    with Database(path, power_safe=False) as db:
        for number in range(COMMITS):
            db.transact(lambda tr: write(tr, seed, (0, number)))  # noqa: B023 - runs at once
    return path


def copies(store: Path, number: int) -> Iterator[Path]:
    """Copies of a store, each in a folder of its own."""
    for each in range(number):
        folder = store.parent / f"copy {each}"
        folder.mkdir()
        yield Path(shutil.copy(store, folder / "store.db"))


def outcome(path: Path, seed: int) -> str:
    """What becomes of opening a store, reading all of it and writing: `refused`, `damaged`, `whole` or `changed`.

    Fails if that is anything else, or one that was refused is not as it was.
    """
    before = path.read_bytes()
    try:
        with Database(path, power_safe=False) as db:
            rows = [(row.key, row.value) for row in db.get_range(b"", b"\xff")]
            for key, value in rows:
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
            found = "whole" if is_whole(db, seed) else "changed"
            db[b"later"] = b"1"
            return found
    except (NotAStore, FDBError) as caught:
        error = caught
    assert path.name in str(error)
    assert "\n" not in str(error)
    if isinstance(error, NotAStore):
        assert path.read_bytes() == before
        return "refused"
    assert error.code == 1510
    assert re.search(rf": {path} is damaged \(.*\): restore it from a backup$", str(error))
    return "damaged"


def is_whole(db: Database, seed: int) -> bool:
    try:
        assert_whole(db, seed, {})
    except (AssertionError, ValueError):
        return False
    return True


def test_a_file_cut_anywhere_is_refused(store: Path, seed: int) -> None:
    draw, size = random.Random(seed), store.stat().st_size
    lengths = [1, 99, 100, PAGE_BYTES, size - 1, *(draw.randrange(1, size) for _ in range(10 * ROUNDS))]
    for length, copy in zip(lengths, copies(store, len(lengths)), strict=True):
        with copy.open("r+b") as file:
            file.truncate(length)
        assert outcome(copy, seed) == "refused", length


def test_a_bit_of_the_header_that_is_flipped_changes_nothing_unseen(store: Path, seed: int) -> None:
    draw = random.Random(seed)
    found = {}
    for at, copy in enumerate(copies(store, 100)):
        flip(copy, at, draw.randrange(8))
        found[at] = outcome(copy, seed)

    assert set(found.values()) <= {"refused", "damaged", "whole"}
    # What it is, how it is laid out, how long it is, and of which program.
    for at in (*range(20), *range(21, 24), *range(28, 31), *range(68, 72)):
        assert found[at] == "refused", at


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def test_bits_that_are_flipped_anywhere_end_in_values_or_in_a_clear_error(store: Path, seed: int) -> None:
    draw, size = random.Random(seed), store.stat().st_size
    for copy in copies(store, 20 * ROUNDS):
        for _ in range(draw.choice([1, 1, 10])):
            flip(copy, draw.randrange(100, size), draw.randrange(8))
        outcome(copy, seed)


def test_a_page_of_garbage_is_noticed(store: Path, seed: int) -> None:
    draw, pages = random.Random(seed), store.stat().st_size // PAGE_BYTES
    found = []
    for copy in copies(store, 10 * ROUNDS):
        content = bytearray(copy.read_bytes())
        page = draw.randrange(1, pages)
        content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = draw.choice(
            [draw.randbytes(PAGE_BYTES), bytes(PAGE_BYTES)]
        )
        copy.write_bytes(content)
        found.append(outcome(copy, seed))
    # Of a page that is not in use, or holds nothing but a part of a value, nobody can tell.
    assert {"refused", "damaged"} & set(found)


KILLED: Final = """
import os, sys
from cq.store.embedded import Database
from tests.crash.load import write
db = Database(sys.argv[1])
for number in range(int(sys.argv[3])):
    db.transact(lambda tr: write(tr, int(sys.argv[2]), (0, number)))
os._exit(0)
"""


def test_a_log_cut_anywhere_leaves_its_first_commits(tmp_path: Path, seed: int) -> None:
    """That is a disk that has lost what it said it had synced: nothing is there in part, and what comes later stays."""
    draw = random.Random(seed)
    store = tmp_path / "store.db"
    assert run_code(KILLED, store, seed, COMMITS).status == 0
    log = store.with_name("store.db-wal").read_bytes()
    for copy in copies(store, 10 * ROUNDS):
        tail = draw.choice([b"", bytes(10_000), draw.randbytes(10_000)])
        copy.with_name("store.db-wal").write_bytes(log[: draw.randrange(len(log))] + tail)
        with Database(copy, power_safe=False) as db:
            assert_goes_on(db, seed, assert_whole(db, seed, {}))


def test_commands_say_in_one_line_that_the_file_is_damaged(cli: Cli, here: Here, db: Any) -> None:
    for number in range(10):
        db[b"\x00%d" % number] = bytes(900)  # the beginning is looked at when the store is opened
    cq.configure(db, "words", value=str, combiner="last", buckets=1)
    for number in range(100):
        db.transact(lambda tr: cq.CombineQueue("words").add(tr, {f"{number}": "x" * 500}))  # noqa: B023
    db.close()
    assert here("worker", "--drain").status == 0
    path = cli.folder / "cli.db"
    content = path.read_bytes()
    pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    for number, page in enumerate(pages):
        if page[0] == LEAF and b"x" * 500 in page:
            pages[number] = b"\xa5" * PAGE_BYTES
    path.write_bytes(b"".join(pages))

    read = here("items", "words")

    assert (read.status, read.out) == (1, "")
    assert read.err == (
        "cq: the store failed: Disk i/o operation failed (1510): "
        f"{path} is damaged (database disk image is malformed): restore it from a backup\n"
    )
