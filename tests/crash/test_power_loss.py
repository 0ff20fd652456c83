"""The power fails at any moment: what a disk may hold then is a store that holds all commits that had returned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cbor2

from cq.store.embedded import Database
from tests.crash.conftest import ROUNDS, Scripts
from tests.crash.disk import Disk
from tests.crash.load import Name, assert_whole

MOMENTS: Final = 50 * ROUNDS


def record(scripts: Scripts, folder: Path, seed: int, power_safe: bool) -> list[list[Any]]:
    """The events of a process that has committed to a store."""
    folder.mkdir()
    notes = folder.with_suffix(".cbor")
    status, _ = scripts.run("recorder", folder, seed, power_safe, notes)
    assert status == 0
    events: list[list[Any]] = cbor2.loads(notes.read_bytes())
    return events


class Moment:
    """A moment at which the power failed."""

    def __init__(self, disk: Disk, returned: dict[Name, bytes], opened: bool) -> None:
        self.disk, self.returned, self.opened = disk, dict(returned), opened

    def store(self, folder: Path, draw: random.Random) -> Path:
        """The store, with what may be left of it, in a folder that is made."""
        folder.mkdir()
        for path, content in self.disk.after_loss(draw).items():
            (folder / Path(path).name).write_bytes(content)
        store = folder / "store.db"
        assert store.exists() or not self.opened
        if draw.random() < 0.5:  # of the index of the log nothing counts
            store.with_name("store.db-shm").write_bytes(draw.randbytes(32_768))
        return store


def moments(folder: Path, events: list[list[Any]], draw: random.Random) -> Iterator[Moment]:
    """Some moments, early ones among them."""
    disk, returned, opened = Disk(str(folder)), dict[Name, bytes](), False
    early = next(at for at, event in enumerate(events) if event[0] == "opened")
    chosen = {*draw.sample(range(early), 20), *draw.sample(range(early, len(events)), MOMENTS)}
    for at, (what, *details) in enumerate(events):
        if what == "returned":
            returned[details[0], details[1]] = details[2]
        elif what == "opened":
            opened = True
        else:
            disk.follow(what, *details)
        if at in chosen:
            yield Moment(disk, returned, opened)


def test_every_commit_that_returned_is_there_after_a_power_failure_and_none_in_part(
    tmp_path: Path, scripts: Scripts, seed: int
) -> None:
    draw = random.Random(seed)
    events = record(scripts, tmp_path / "recorded", seed, power_safe=True)
    unreturned = 0
    for number, moment in enumerate(moments(tmp_path / "recorded", events, draw)):
        path = moment.store(tmp_path / str(number), draw)
        with Database(path, power_safe=False) as db:
            found = assert_whole(db, seed, moment.returned)
            db[b"later"] = b"1"
            assert db[b"later"] == b"1"
        unreturned += len(found) > len(moment.returned)
    # Else what is told of the disk is wrong: a commit is on it before it returns.
    assert unreturned


def test_without_power_safety_the_latest_commits_may_be_lost_and_nothing_else(
    tmp_path: Path, scripts: Scripts, seed: int
) -> None:
    """That some are shows, too, that the test above could fail."""
    draw = random.Random(seed)
    events = record(scripts, tmp_path / "recorded", seed, power_safe=False)
    lost = 0
    for number, moment in enumerate(moments(tmp_path / "recorded", events, draw)):
        with Database(moment.store(tmp_path / str(number), draw), power_safe=False) as db:
            lost += len(moment.returned.keys() - assert_whole(db, seed, {}).keys())
    assert lost
