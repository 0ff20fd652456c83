"""Deleting users: all data, exactly once, whatever dies or happens at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cq.cells import move
from cq.cells.move import users_being_deleted
from cq.cells.records import DELETED, LEAVING
from cq.errors import CellMismatch, UserDeleted, UserNotPlaced
from cq.keys import ROOT, below
from cq.keys import cell as cellkeys
from cq.store.transact import transact
from tests.kit.queues import stored
from tests.kit.sites import USER, Site, content_of, die_when, load, put, read

TOTAL = ROOT + b"zz-total"


def count_out(data: Any) -> None:
    """Take a user away from a total of the cell."""
    data.tr.add(TOTAL, cellkeys.packed_count(-1))


def totals(site: Site) -> int:
    """The total of all cells."""
    found = (transact(site.own.store(name), lambda tr: tr.get(TOTAL).value) for name in site.names())
    return sum(cellkeys.count_of(value) for value in found if value is not None)


def check_deleted(site: Site, user: Any = USER) -> None:
    """Nothing is left of a user, and the id cannot be used."""
    site.check()
    assert [site.rows(name, user) for name in site.names()] == [[], [], []]
    assert [transact(site.own.store(name), users_being_deleted) for name in site.names()] == [[], [], []]
    for process in (site.own, site.process()):
        uses: list[Callable[[], object]] = [
            lambda: process.transact(user, read(b"name")),  # noqa: B023 - first: it corrects the cache
            lambda: process.place(user),  # noqa: B023
            lambda: process.locate(user),  # noqa: B023
            lambda: process.move(user, "cell1"),  # noqa: B023
        ]
        for use in uses:
            with pytest.raises(UserDeleted, match="was deleted, and the id cannot be used again"):
                use()


def test_a_deleted_user_leaves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "PIECE_ROWS", 3)
    late = site.process()
    for user in (USER, "adamant"):
        site.own.place(user)
        load(site.own, 10, user=user)
        late.transact(user, lambda data: data.map_id("old", data.next_id()))
    site.own.move(USER, "cell2")
    site.own.delete(USER)
    site.own.delete(USER)

    with pytest.raises(UserDeleted):
        late.transact(USER, read(b"name"))
    check_deleted(site)
    assert sum(each.users for each in site.own.cells()) == 1
    assert len(content_of(site.own, "adamant")) == 10


def test_a_user_without_data_can_be_deleted(site: Site) -> None:
    late = site.process()
    site.own.place(USER)
    late.locate(USER)
    site.own.delete(USER)

    with pytest.raises(UserDeleted):
        late.transact(USER, put(b"name", b"Ada"))
    check_deleted(site)
    with pytest.raises(UserNotPlaced):
        site.own.delete("nobody")


def test_a_write_under_way_when_a_user_is_deleted_is_not_committed(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 1)
    other = site.process()

    def write(data: Any) -> None:
        data.tr.set(data.prefix + b"late", b"1")
        data.tr.add(TOTAL, cellkeys.packed_count(1))
        other.delete(USER)  # between the write and its commit

    with pytest.raises(UserDeleted):
        site.own.transact(USER, write)
    assert totals(site) == 0
    check_deleted(site)


@pytest.mark.parametrize("continued", ["deleted again", "resumed"])
def test_a_deletion_that_dies_at_any_point_is_completed(
    site: Site, monkeypatch: pytest.MonkeyPatch, continued: str
) -> None:
    monkeypatch.setattr(move, "PIECE_ROWS", 2)
    point, died = 0, True
    while died:
        site.own.place(point)
        load(site.own, 3, user=point)
        calls = iter(range(point))
        is_time = lambda calls=calls: next(calls, None) is None  # noqa: E731
        died = die_when(is_time, site, lambda dying: dying.delete(point, count_out))  # noqa: B023
        if continued == "deleted again":
            site.own.delete(point, count_out)
        site.own.resume_deletions()
        if any(site.rows(name, point) for name in site.names()):  # it was not decided
            assert totals(site) == -point
            site.own.delete(point, count_out)
        check_deleted(site, point)
        point += 1
        assert totals(site) == -point

    assert point > 10


def test_a_deletion_during_a_move_completes_the_move_first(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 3)
    die_when(lambda: site.state("cell0") == LEAVING, site, lambda dying: dying.move(USER, "cell1"))
    site.own.delete(USER, count_out)

    assert site.state("cell1") == DELETED
    assert totals(site) == -1
    check_deleted(site)


@pytest.mark.parametrize("act", ["move", "rebalance", "resume_moves", "delete"])
def test_a_move_that_begins_during_a_deletion_stops(site: Site, act: str) -> None:
    site.own.place(USER)
    load(site.own, 3)
    die_when(lambda: site.state("cell0") == DELETED, site, lambda dying: dying.delete(USER, count_out))
    if act in ("resume_moves", "delete"):
        site.own.directory.begin_move(USER, "cell1")
    if act == "move":
        with pytest.raises(UserDeleted):
            site.own.move(USER, "cell1")
        assert site.own.resume_deletions() == 1
    elif act == "rebalance":
        site.own.drain_cell("cell0")
        assert list(site.own.rebalance()) == []
    elif act == "resume_moves":
        assert site.own.resume_moves() == 1
    else:
        site.own.delete(USER, count_out)

    assert [each.users for each in site.own.cells()] == [0, 0, 0]
    assert totals(site) == -1
    check_deleted(site)


def test_two_deletions_at_once_count_once(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 1)
    other = site.process()
    tries: list[str] = []

    def final(data: Any) -> None:
        tries.append(data.cell)
        count_out(data)
        other.delete(USER, count_out)

    site.own.delete(USER, final)
    assert (tries, totals(site)) == (["cell0"], -1)
    check_deleted(site)


def test_a_deletion_that_the_application_refuses_changes_nothing(site: Site) -> None:
    site.own.place(USER)
    content = load(site.own, 2)

    def refuse(data: Any) -> None:
        count_out(data)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        site.own.delete(USER, refuse)
    assert (content_of(site.own), totals(site)) == (content, 0)
    site.check()


def test_a_cell_that_was_set_back_does_not_delete(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 2)
    before = stored(site.own.store("cell0"), below(cellkeys.CELLS))
    site.own.move(USER, "cell1")
    site.own.move(USER, "cell0")

    def restore(tr: Any) -> None:
        for key, value in before:
            tr.set(key, value)

    transact(site.own.store("cell0"), restore)
    with pytest.raises(CellMismatch, match="restored to an older state"):
        site.own.delete(USER)
