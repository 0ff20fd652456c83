"""One question to many cells: who answers in time, and who does not."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cells import Cells, gather, gather_users
from cq.cells.records import LEAVING
from cq.keys import ROOT
from cq.store.transact import transact
from tests.kit.faults import WrappedDatabase
from tests.kit.sites import Site, die_when, place, put, read
from tests.kit.trips import COMMIT, VERSION, TripsDatabase


def test_cells_answer_at_once_and_the_others_are_named(tmp_path: Path) -> None:
    directory: Any = cq.open(f"embedded:{tmp_path}/directory.db")
    with Cells(directory) as cells:
        for name in ("a", "b", "failing", "ending", "late"):
            cells.add_cell(name, f"embedded:{tmp_path}/{name}.db")
            transact(cells.store(name), lambda tr, name=name: tr.set(b"name", name.encode()))  # type: ignore[misc]
        both = threading.Barrier(2)
        done = threading.Event()

        def ask(tr: Any) -> bytes:
            name: bytes = tr.get(b"name").value
            if name == b"failing":
                raise ValueError("no idea")
            if name == b"ending":
                sys.exit("no service")
            if name == b"late":
                done.wait()
            else:
                both.wait()  # they are asked at once, or nobody answers
            return name

        found = gather(cells, ask, names=["a", "failing", "ending", "gone", "b"], timeout=30)
        late = gather(cells, ask, names=["late"], timeout=0.05)
        done.set()

        assert found.answers == {"a": b"a", "b": b"b"}
        assert found.missing["failing"] == "ValueError: no idea"
        assert found.missing["ending"] == "SystemExit: no service"
        assert found.missing["gone"].startswith("CellNotKnown: the directory has no cell 'gone'")
        assert (late.answers, late.missing) == ({}, {"late": "no answer within 0.05 s"})
        assert gather(cells, lambda tr: 1, timeout=30).answers == dict.fromkeys(
            ("a", "b", "failing", "ending", "late"), 1
        )
    directory.close()


USERS = ("ada", "grace", "joan", "dorothy")


@pytest.fixture
def full(site: Site) -> Site:
    """A site with users in two cells, each of whom has written the own name."""
    for number, user in enumerate(USERS):
        place(site.own, user, f"cell{number % 2}")
        site.own.transact(user, put(b"name", user.encode()))
    return site


def test_each_cell_is_asked_once_for_all_of_its_users(full: Site) -> None:
    class Counting(WrappedDatabase):
        transactions = 0

        def create_transaction(self) -> Any:
            Counting.transactions += 1
            return super().create_transaction()

    cells = Cells(full.directory, opener=lambda url, *, create: Counting(full.open(url)))
    full.own.place("new")
    for user in (*USERS, "new"):
        cells.locate(user)
    for name in ("cell0", "cell1", "cell2"):
        cells.store(name)
    Counting.transactions = 0

    found = gather_users(cells, [*USERS, "new", "ada"], read(b"name"), timeout=30)

    assert found.answers == {user: user.encode() for user in USERS} | {"new": None}
    assert found.missing == {}
    assert Counting.transactions == 3


def test_users_who_have_moved_are_asked_for_in_their_new_cells(full: Site) -> None:
    late = full.process()
    gather_users(late, USERS, read(b"name"), timeout=30)
    full.own.move("ada", "cell2")
    full.own.move("grace", "cell0")

    found = gather_users(late, [*USERS, "nobody"], read(b"name"), timeout=30)

    assert found.answers == {user: user.encode() for user in USERS}
    assert list(found.missing) == ["nobody"]
    assert "is in no cell" in found.missing["nobody"]


@pytest.mark.parametrize("timeout", ["30d", math.inf])
def test_a_time_limit_can_be_longer_than_that_of_a_transaction(full: Site, timeout: Any) -> None:
    assert gather(full.own, lambda tr: 1, timeout=timeout).missing == {}
    assert gather_users(full.own, USERS, read(b"name"), timeout=timeout).missing == {}


def test_users_on_their_way_and_cells_that_fail_are_named(full: Site) -> None:
    die_when(lambda: full.state("cell0") == LEAVING, full, lambda dying: dying.move("ada", "cell2"))

    def ask(data: Any) -> Any:
        if data.cell == "cell1":
            raise cq.StoreError("the disk is gone")
        return data.tr.get(data.prefix + b"name").value

    found = gather_users(full.own, USERS, ask, timeout=0.3)
    is_asked = threading.Event()
    late = gather_users(full.own, ["joan"], lambda data: is_asked.wait(), timeout=0.01)
    is_asked.set()

    assert late.missing == {"joan": "no answer within 0.01 s"}
    assert found.answers == {"joan": b"joan"}
    assert found.missing.pop("ada").startswith("no answer within 0.3 s")
    assert found.missing == {
        "grace": "StoreError: the disk is gone",
        "dorothy": "StoreError: the disk is gone",
    }


def test_deleted_users_and_an_emptied_cell_are_named(full: Site) -> None:
    late = full.process()
    gather_users(late, USERS, read(b"name"), timeout=30)
    full.own.place("new")
    (cell,) = {full.own.locate("new").cell}
    full.own.delete("ada")
    found = gather_users(late, ["ada", "joan"], read(b"name"), timeout=30)
    assert (found.answers, list(found.missing)) == ({"joan": b"joan"}, ["ada"])
    assert found.missing["ada"].startswith("UserDeleted")

    transact(full.own.store(cell), lambda tr: tr.clear_range_startswith(ROOT))
    assert "emptied" in gather_users(full.own, ["new"], read(b"name"), timeout=30).missing["new"]


def test_writes_are_refused(full: Site) -> None:
    found = gather_users(full.own, ["ada"], put(b"name", b"Ada"), timeout=30)
    asked = gather(full.own, lambda tr: tr.set(b"x", b""), names=["cell0"], timeout=30, max_age=1.0)

    for why in (found.missing["ada"], asked.missing["cell0"]):
        assert why.startswith("TypeError: a read of an earlier version cannot write")


def test_the_directory_is_read_once_for_all_users(full: Site) -> None:
    counted = TripsDatabase(full.directory)
    cells = full.process(lambda db: counted if db is full.directory else db)
    for name in ("cell0", "cell1"):
        cells.store(name)
    before = len(counted.trips)

    assert gather_users(cells, USERS, read(b"name"), timeout=30).missing == {}
    assert counted.trips[before:] == [VERSION, ["get"] * len(USERS), COMMIT]
