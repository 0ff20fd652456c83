"""Cells: each user in one of several stores, moved between them without a lost write, whatever dies and wherever."""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cells import gather_users, move
from cq.cells.cells import Cells
from cq.cells.directory import Directory
from cq.cells.records import GONE, HERE, LEAVING, Fence, Identity
from cq.config.store_id import ensure_store_id
from cq.errors import (
    CellMismatch,
    CellNotKnown,
    CorruptData,
    InvalidConfiguration,
    MoveFailed,
    NoRoom,
    NotAStore,
    UserMoving,
    UserNotPlaced,
)
from cq.keys import ROOT, prefix_end
from cq.keys import cell as cellkeys
from cq.store.api import error_code
from cq.store.embedded import Database
from cq.store.transact import transact
from cq.verify.queue import verify
from tests.kit.faults import WrappedDatabase, WrappedTransaction, error_class
from tests.kit.queues import stored
from tests.kit.sites import USER, Site, content_of, die_when, load, put, read

# Placing


def test_users_go_where_there_is_most_room(site: Site) -> None:
    site.own.add_cell("cell0", site.own.cells()[0].url, weight=3)
    for number in range(10):
        site.own.place(number)
    site.own.drain_cell("cell2")
    site.own.place("late")

    assert [(each.users, each.state) for each in site.own.cells()] == [
        (7, "open"),
        (2, "open"),
        (2, "draining"),
    ]
    assert site.own.place(3) == site.process().locate(3).cell
    site.check()


def test_without_a_cell_that_takes_users_there_is_no_room(tmp_path: Path, site: Site) -> None:
    for name in site.names():
        site.own.drain_cell(name)

    with pytest.raises(NoRoom, match="cq cells add"):
        site.own.place(USER)
    with pytest.raises(UserNotPlaced, match="cq cells place"):
        site.own.transact(USER, read(b"name"))


@pytest.mark.parametrize("user", [None, 1.5, True, ("a",), "x" * 300, "", b""])
def test_what_cannot_be_a_user_is_refused(site: Site, user: Any) -> None:
    site.own.place(1)
    with pytest.raises(cq.InvalidData):
        site.own.place(user)
    with pytest.raises(cq.InvalidData):
        site.own.locate(user)


# Using a user's data


def test_a_write_goes_to_the_users_cell_only(site: Site) -> None:
    site.own.place(USER)
    site.own.transact(USER, put(b"name", b"Ada"))

    assert site.own.transact(USER, read(b"name")) == b"Ada"
    assert [len(site.rows(name)) for name in site.names()] == [1, 0, 0]


def test_a_process_that_has_not_heard_of_a_move_finds_the_user(site: Site) -> None:
    late = site.process()
    site.own.place(USER)
    late.transact(USER, put(b"name", b"Ada"))
    site.own.move(USER, "cell1")

    assert late.locate(USER).cell == "cell0"
    assert late.transact(USER, read(b"name")) == b"Ada"
    assert late.locate(USER).cell == "cell1"


def test_ids_are_dense_and_old_ones_are_known_in_whichever_cell(site: Site) -> None:
    site.own.place(USER)
    ids = []
    for number in range(6):
        site.own.move(USER, f"cell{number % 3}")

        def take(data: Any, number: int = number) -> int:
            new: int = data.next_id()
            data.map_id(("old", number), new)
            return new

        ids.append(site.own.transact(USER, take))

    assert ids == [1, 2, 3, 4, 5, 6]
    found = site.own.transact(USER, lambda data: [data.new_id(("old", number)) for number in range(7)])
    assert found == [*ids, None]
    with pytest.raises(cq.InvalidData, match="has the new id 1, and cannot also have 9"):
        site.own.transact(USER, lambda data: data.map_id(("old", 0), 9))
    site.own.transact(USER, lambda data: data.map_id(("old", 0), 1))


# Moving


def test_a_move_takes_all_along_in_pieces(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "PIECE_ROWS", 7)
    monkeypatch.setattr(move, "PIECE_BYTES", 100)
    site.own.place(USER)
    content = load(site.own, 50)
    other = load(site.own, 3, user=site.own.place("adamant") and "adamant")
    site.own.move(USER, "cell2")
    site.own.move(USER, "cell2")

    assert content_of(site.own) == content
    assert content_of(site.own, "adamant") == other
    assert site.fences() == {"cell0": Fence(GONE, 2), "cell2": Fence(HERE, 2)}
    site.check()


def test_a_large_user_fits_through(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 9, size=90_000)
    content = load(site.own, 3_000)
    site.own.move(USER, "cell1")

    found = content_of(site.own)
    assert {key: found[key] for key in content} == content
    site.check()


def test_a_write_under_way_when_a_move_begins_is_not_lost(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 1)
    mover = site.process()
    tries = []

    def write(data: Any) -> None:
        tries.append(data.cell)
        data.tr.set(data.prefix + b"late", b"1")
        if len(tries) == 1:
            mover.move(USER, "cell1")  # between the write and its commit

    site.own.transact(USER, write)

    assert tries == ["cell0", "cell1"]
    assert content_of(mover)[b"late"] == b"1"


def test_while_a_user_is_moved_writes_are_told_to_try_again(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 5)
    die_when(lambda: site.state("cell0") == LEAVING, site, lambda dying: dying.move(USER, "cell1"))

    with pytest.raises(UserMoving, match="from cell 'cell0' to 'cell1': try again"):
        site.own.transact(USER, put(b"name", b"Ada"), timeout=0)
    assert site.own.resume_moves() == 1
    site.own.transact(USER, put(b"name", b"Ada"), timeout=0)
    site.check()


def test_a_move_that_dies_at_any_point_can_be_finished(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "PIECE_ROWS", 2)
    site.own.place(USER)
    content = load(site.own, 3)
    point, died = 0, True
    while died:
        target = f"cell{(int(site.process().locate(USER).cell[-1]) + 1) % 3}"
        calls = iter(range(point))
        is_time = lambda calls=calls: next(calls, None) is None  # noqa: E731
        died = die_when(is_time, site, lambda dying: dying.move(USER, target))  # noqa: B023
        states = [fence.state for fence in site.fences().values()]
        assert states.count(HERE) <= 1
        with suppress(UserMoving):
            site.own.transact(USER, put(b"latest", b"%d" % point), timeout=0)
            content[b"latest"] = b"%d" % point
        site.own.resume_moves()
        assert content_of(site.own) == content
        site.check()
        point += 1

    assert point > 20


def test_a_copy_that_is_not_as_the_original_is_thrown_away(site: Site) -> None:
    """Somebody writes without `transact`, while the user is being moved."""
    site.own.place(USER)
    content = load(site.own, 5)
    prefix = cellkeys.data(cellkeys.encoded_user(USER))
    source = site.own.store("cell0")
    die_when(lambda: len(site.rows("cell1")) == 5, site, lambda dying: dying.move(USER, "cell1"))
    transact(source, lambda tr: tr.set(prefix + b"! astray", b""))

    with pytest.raises(MoveFailed, match=r"only through Cells.transact\(\)"):
        site.own.resume_moves()
    assert site.own.resume_moves() == 1
    assert content_of(site.own) == content | {b"! astray": b""}
    site.check()


def test_a_draining_or_unknown_cell_is_no_target(site: Site) -> None:
    site.own.place(USER)
    site.own.drain_cell("cell1")

    with pytest.raises(NoRoom, match="being drained"):
        site.own.move(USER, "cell1")
    with pytest.raises(CellNotKnown, match="no cell 'elsewhere'"):
        site.own.move(USER, "elsewhere")
    site.own.drain_cell("cell1", draining=False)
    site.own.move(USER, "cell1")
    site.check()


def test_rebalancing_empties_what_is_drained_and_evens_out_the_rest(site: Site) -> None:
    site.own.drain_cell("cell1")
    site.own.drain_cell("cell2")
    for number in range(9):
        site.own.place(number)
    site.own.drain_cell("cell1", draining=False)
    site.own.drain_cell("cell2", draining=False)
    die_when(lambda: site.state("cell0", 0) == LEAVING, site, lambda dying: dying.move(0, "cell1"))

    assert len(list(site.own.rebalance(2))) == 2
    assert len(list(site.own.rebalance())) > 0
    assert [each.users for each in site.own.cells()] == [3, 3, 3]
    site.own.drain_cell("cell0")
    list(site.own.rebalance())
    assert next(each.users for each in site.own.cells()) == 0
    assert list(site.own.rebalance()) == []
    site.check()


def test_rebalancing_chooses_again_if_others_close_the_cell_that_it_has_chosen(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        site.own.place(number)
    site.own.drain_cell("cell0")
    begin, chosen = Directory.begin_move, list[str]()

    def begin_late(directory: Any, user: Any, target: str) -> Any:
        chosen.append(target)
        if chosen == [target]:
            site.process().drain_cell(target)
        return begin(directory, user, target)

    monkeypatch.setattr(Directory, "begin_move", begin_late)

    list(site.own.rebalance())

    users = {each.name: each.users for each in site.own.cells()}
    assert users.pop("cell0") == users.pop(chosen[0]) == 0
    assert [*users.values()] == [9]
    site.check()


# Stores that are not what the directory says


def test_a_store_is_one_cell_of_one_directory(site: Site, tmp_path: Path) -> None:
    urls = [each.url for each in site.own.cells()]
    with pytest.raises(CellMismatch, match="is cell 'cell1': correct the URL"):
        site.own.add_cell("cell0", urls[1])
    with pytest.raises(CellMismatch, match="is no cell: it was emptied"):
        site.own.add_cell("cell0", f"embedded:{tmp_path}/new.db")
    other: Any = cq.open(f"embedded:{tmp_path}/other.db")
    with Cells(other) as cells, pytest.raises(CellMismatch, match="of another directory"):
        cells.add_cell("cell0", urls[0])
    other.close()


@pytest.mark.parametrize("url", ["postgresql://ada:secret@host/db", "embedded:", "nothing", "", None])
def test_a_url_that_names_no_store_is_not_repeated(site: Site, url: Any) -> None:
    with pytest.raises(cq.errors.InvalidUrl, match="cell 'new' names no store") as error:
        site.own.add_cell("new", url)
    assert "secret" not in str(error.value)


def test_paths_of_cells_are_stored_in_full(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site.own.add_cell("new", "embedded:new.db")
    assert [each.url for each in site.own.cells()][-1] == f"embedded:{tmp_path}/new.db"


def test_a_cell_that_was_emptied_or_set_back_is_noticed(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 2)
    site.own.move(USER, "cell1")
    emptied = site.own.store("cell1")
    identity: Any = transact(emptied, lambda tr: tr.get(cellkeys.IDENTITY).value)
    transact(emptied, lambda tr: tr.clear_range_startswith(ROOT))
    with pytest.raises(CellMismatch, match="emptied"):
        site.own.transact(USER, read(b"name"))
    transact(emptied, lambda tr: tr.set(cellkeys.IDENTITY, identity))
    with pytest.raises(CellMismatch, match="restored to an older state"):
        site.own.transact(USER, read(b"name"))

    site.own.place("new")
    assert site.own.locate("new").cell == "cell0"
    transact(site.own.store("cell0"), lambda tr: tr.clear_range_startswith(ROOT))
    with pytest.raises(CellMismatch, match="emptied"):
        site.own.transact("new", read(b"name"))
    with pytest.raises(CellMismatch, match="emptied"):
        site.own.move("new", "cell2")


def test_nobody_is_moved_into_a_cell_that_was_emptied(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 2)
    empty = partial(transact, site.own.store("cell1"), lambda tr: tr.clear_range_startswith(ROOT))
    identity: Any = transact(site.own.store("cell1"), lambda tr: tr.get(cellkeys.IDENTITY).value)
    restore = partial(transact, site.own.store("cell1"), lambda tr: tr.set(cellkeys.IDENTITY, identity))
    empty()
    with pytest.raises(CellMismatch, match="cell 'cell1' is no cell: it was emptied"):
        site.own.move(USER, "cell1")
    assert list(site.own.moves()) == []

    restore()
    die_when(lambda: site.state("cell0") == LEAVING, site, lambda dying: dying.move(USER, "cell1"))
    empty()
    with pytest.raises(CellMismatch, match="emptied"):
        site.own.resume_moves()
    restore()
    assert site.own.resume_moves() == 1
    site.check()


def test_rebalancing_goes_on_without_a_cell_that_was_emptied(site: Site) -> None:
    site.own.drain_cell("cell1")
    site.own.drain_cell("cell2")
    for number in range(6):
        site.own.place(number)
    site.own.drain_cell("cell1", draining=False)
    site.own.drain_cell("cell2", draining=False)
    transact(site.own.store("cell1"), lambda tr: tr.clear_range_startswith(ROOT))

    with pytest.raises(CellMismatch, match="cell 'cell1' is no cell: it was emptied"):
        list(site.own.rebalance())

    assert [each.users for each in site.own.cells()] == [3, 0, 3]


def test_a_directory_that_was_set_back_is_noticed(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 2)
    before = stored(site.directory, (ROOT, prefix_end(ROOT)))
    site.own.move(USER, "cell1")

    def restore(tr: Any) -> None:
        tr.clear_range_startswith(ROOT)
        for key, value in before:
            tr.set(key, value)

    transact(site.directory, restore)
    fresh = site.process()
    with pytest.raises(CellMismatch, match="restored to an older state"):
        fresh.transact(USER, read(b"name"))
    with pytest.raises(CellMismatch, match="restored to an older state"):
        fresh.move(USER, "cell1")


def test_identity_is_kept_as_written(site: Site) -> None:
    found = transact(site.own.store("cell1"), lambda tr: tr.get(cellkeys.IDENTITY).value)
    assert Identity.from_bytes(found) == Identity("cell1", ensure_store_id(site.own.directory.db))


def test_the_cache_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cq.cells.cells.CACHED_USERS", 3)
    for number in range(10):
        site.own.place(number)
    assert len(site.own._cache) <= 3


def test_transactions_of_a_users_data_use_queues_of_the_cell(site: Site) -> None:
    site.own.place(USER)
    queue = cq.CombineQueue("notes")
    cq.configure(site.own.store("cell0"), "notes")
    site.own.transact(USER, lambda data: queue.add(data.tr, {"all": 1}))
    site.own.move(USER, "cell1")

    pending = partial(queue.get, key="all", pending=True)
    assert transact(site.own.store("cell0"), pending) == 1
    assert list(verify(site.own.store("cell0"), "notes")) == []


def test_only_a_new_cell_creates_a_store(tmp_path: Path) -> None:
    """Another user may have written the URLs of the directory: a reader must not create files that they name."""
    url, missing = f"embedded:{tmp_path / 'cell.db'}?mode=0660", tmp_path / "missing.db"
    with Database(tmp_path / "directory.db") as directory, Cells(directory) as cells:
        cells.add_cell("eu", url)
        assert stat.S_IMODE((tmp_path / "cell.db").stat().st_mode) == 0o660
        (cell,) = cells.cells()
        assert cell.url == f"embedded:{tmp_path / 'cell.db'}"

        with pytest.raises(NotAStore, match="does not exist"):
            cells.add_cell("eu", f"embedded:{missing}")
        forged = replace(cells.directory.cell("eu"), url=f"embedded:{missing}?mode=0666")
        transact(directory, lambda tr: tr.set(cellkeys.cell("us"), forged.to_bytes()))
        with pytest.raises(NotAStore, match="does not exist"):
            cells.store("us")
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("missing")] == []


@pytest.mark.parametrize("gone", ["eu", "us"])
def test_no_move_begins_from_or_to_a_cell_without_a_store(tmp_path: Path, gone: str) -> None:
    with Database(tmp_path / "directory.db") as directory:
        with Cells(directory) as cells:
            cells.add_cell("eu", f"embedded:{tmp_path / 'eu.db'}")
            cells.place(USER)
            cells.add_cell("us", f"embedded:{tmp_path / 'us.db'}")
        (tmp_path / f"{gone}.db").unlink()

        with Cells(directory) as cells:
            with pytest.raises(NotAStore, match=f"cell '{gone}' has no store, correct its URL"):
                cells.move(USER, "us")
            assert list(cells.moves()) == []
            assert [each.users for each in cells.cells()] == [1, 0]


@pytest.mark.parametrize("name", [None, 5, b"cell1", "\udc80"])
def test_what_is_no_name_is_that_of_no_cell(site: Site, name: Any) -> None:
    site.own.place(USER)
    for act in (site.own.store, site.own.drain_cell, partial(site.own.move, USER)):
        with pytest.raises(CellNotKnown, match="the directory has no cell"):
            act(name)
    with pytest.raises(InvalidConfiguration, match="expected the web address"):
        site.own.add_cell("cell0", site.url_of("cell0"), web=5)  # type: ignore[arg-type]


class FullDisk(WrappedDatabase):
    """A database whose disk is full."""

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what == "commit" and tr.writes:
            raise self.error(1510)
        return super().call(tr, what, *args, **kwargs)


def test_a_user_whose_fence_is_damaged_stops_no_moves_of_others(site: Site) -> None:
    site.own.limit_cell("cell1", 0)
    users = ("ann", "bob")
    homes = {user: site.own.place(user) for user in users}
    site.own.limit_cell("cell1", None)
    for user in users:
        site.own.directory.begin_move(user, "cell1")
    damaged = cellkeys.fence(cellkeys.encoded_user("ann"))
    transact(site.own.store(homes["ann"]), lambda tr: tr.set(damaged, b"?"))

    with pytest.raises(CorruptData):
        site.own.resume_moves()

    assert [each.user for each in site.own.moves()] == ["ann"]
    assert site.own.locate("bob").cell == "cell1"


def test_a_user_whose_record_is_damaged_is_named_beside_the_moves_and_data_of_others(site: Site) -> None:
    for user in ("ann", "bob", "cyd"):
        site.own.place(user)
    for user in ("ann", "bob"):
        site.own.directory.begin_move(user, "cell1" if site.own.locate(user).cell == "cell0" else "cell0")
    record, fence = (
        of(cellkeys.encoded_user(user)) for of, user in ((cellkeys.record, "ann"), (cellkeys.fence, "cyd"))
    )
    transact(site.directory, lambda tr: tr.set(record, b"?"))
    transact(site.own.store(site.own.locate("cyd").cell), lambda tr: tr.set(fence, b"?"))
    cells = site.process()

    moves = cells.moves()
    assert next(moves).user == "bob"
    with pytest.raises(CorruptData, match="the record of user 'ann' in the directory is damaged"):
        next(moves)
    with pytest.raises(CorruptData, match="the record of user 'ann'"):
        cells.resume_moves()
    found = gather_users(cells, ["ann", "bob", "cyd"], lambda data: data.user)
    assert found.answers == {"bob": "bob"}
    assert set(found.missing) == {"ann", "cyd"}


def test_a_damaged_entry_of_a_cell_is_named_and_written_again(site: Site) -> None:
    transact(site.directory, lambda tr: tr.set(cellkeys.cell("cell1"), b"?"))
    cells = site.process()
    with pytest.raises(CorruptData, match="`cq cells add cell1 URL` writes it again"):
        cells.cells()

    cells.add_cell("cell1", site.url_of("cell1"))

    assert [each.name for each in cells.cells()] == ["cell0", "cell1", "cell2"]


def test_a_damaged_number_of_users_is_named(site: Site) -> None:
    site.own.place(USER)
    transact(site.own.directory.db, lambda tr: tr.set(cellkeys.count("cell1"), b"?"))

    with pytest.raises(CorruptData, match="the number of users of a cell"):
        site.own.cells()


@pytest.mark.parametrize("act", ["resume_moves", "rebalance"])
def test_a_cell_whose_disk_is_full_stops_no_moves_between_others(site: Site, act: str) -> None:
    targets = {USER: "cell1", "bob": "cell2"}
    for name in targets.values():
        site.own.limit_cell(name, 0)
    for user in targets:
        site.own.place(user)
    for name in targets.values():
        site.own.limit_cell(name, None)
    for user, name in targets.items():
        site.own.directory.begin_move(user, name)
    full = site.open(site.url_of("cell1"))
    cells = site.process(lambda db: FullDisk(db) if db is full else db)

    with pytest.raises(error_class(full)) as raised:
        list(cells.rebalance(0)) if act == "rebalance" else cells.resume_moves()

    assert error_code(raised.value) == 1510
    assert [(each.user, each.target) for each in cells.moves()] == [(USER, "cell1")]
    assert site.own.resume_moves() == 1
