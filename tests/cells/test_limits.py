"""Limits of the users of a cell, and which cell new users fill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cq.cells import Cells
from cq.cells.directory import CellStatus
from cq.cells.records import LEAVING, Cell
from cq.errors import CellNotKnown, InvalidConfiguration, NoRoom
from tests.kit.sites import USER, Site, die_when, load
from tests.kit.trips import COMMIT, VERSION, TripsDatabase


def status(site: Site) -> list[CellStatus]:
    return site.own.cells()


def users(site: Site) -> list[int]:
    return [each.users for each in status(site)]


def fit_in(site: Site, names: Any) -> int:
    """Place users until there is no room; returns how many there were room for."""
    placed = 0
    for name in names:
        try:
            site.own.place(name)
        except NoRoom:
            return placed
        placed += 1
    return placed


def test_a_full_cell_closes_itself_and_says_why(site: Site) -> None:
    site.own.limit_cell("cell0", 3)
    site.own.limit_cell("cell1", 0)
    site.own.drain_cell("cell2")

    assert fit_in(site, range(10)) == 3
    assert [each.closed for each in status(site)] == [
        "it is full: 3 of 3 users",
        "it is full: 0 of 0 users",
        "it is being drained",
    ]
    with pytest.raises(NoRoom, match="takes no users, it is full: 0 of 0 users: choose another one"):
        site.own.move(0, "cell1")
    site.own.limit_cell("cell0", None)
    assert fit_in(site, range(10, 20)) == 10
    site.check()


def test_a_limit_is_exact_when_users_are_placed_at_once(site: Site) -> None:
    site.own.limit_cell("cell0", 13)
    site.own.limit_cell("cell1", 8)
    site.own.drain_cell("cell2")

    with ThreadPoolExecutor(8) as pool:
        placed = sum(pool.map(lambda part: fit_in(site, range(100 * part, 100 * part + 10)), range(8)))

    assert (placed, users(site)) == (21, [13, 8, 0])
    site.check()


def test_a_lower_limit_is_exact_too(site: Site) -> None:
    site.own.drain_cell("cell1")
    site.own.drain_cell("cell2")
    site.own.limit_cell("cell0", 40)
    assert fit_in(site, range(40)) == 40
    site.own.limit_cell("cell0", 30)
    site.own.drain_cell("cell1", draining=False)
    left = 0
    while users(site)[0] > 29:
        assert users(site)[0] < 30 or status(site)[0].closed
        site.own.move(left, "cell1")
        left += 1
    site.own.drain_cell("cell1")

    with ThreadPoolExecutor(8) as pool:
        placed = sum(pool.map(lambda part: fit_in(site, range(1000 * part, 1000 * part + 5)), range(1, 9)))

    assert (placed, users(site)[0]) == (1, 30)
    site.check()


def test_a_user_on_the_way_to_a_cell_has_a_seat_there(site: Site) -> None:
    site.own.place(USER)
    load(site.own, 2)
    site.own.limit_cell("cell1", 1)
    site.own.drain_cell("cell0")
    site.own.drain_cell("cell2")
    die_when(lambda: site.state("cell0") == LEAVING, site, lambda dying: dying.move(USER, "cell1"))

    with pytest.raises(NoRoom, match=r"cq cells list.*cq cells add"):
        site.own.place("late")
    assert site.own.resume_moves() == 1
    assert users(site) == [0, 1, 0]
    site.check()


def test_rebalancing_moves_users_above_a_limit(site: Site) -> None:
    for number in range(9):
        site.own.place(number)
    site.own.add_cell("cell0", status(site)[0].url, weight=100)
    site.own.limit_cell("cell0", 1)

    list(site.own.rebalance())
    assert users(site) == [1, 4, 4]
    site.check()


def test_new_users_fill_the_newest_cell_with_room(site: Site) -> None:
    site.own.fill("newest")
    site.own.limit_cell("cell2", 2)
    site.own.add_cell("cell0", status(site)[0].url)  # stays the oldest
    assert [site.own.place(number) for number in range(4)] == ["cell2", "cell2", "cell1", "cell1"]

    site.own.fill("emptiest")
    assert site.own.place("next") == "cell0"


def test_reported_loads_say_where_new_users_go(site: Site) -> None:
    for name, weight, reported in (("cell0", 1, 1), ("cell1", 500, 300.0), ("cell2", 100, 70)):
        site.own.add_cell(name, site.url_of(name), weight=weight)
        site.own.report_load(name, reported)

    assert [site.own.place(number) for number in range(3)] == ["cell1"] * 3
    site.own.report_load("cell1", 400)
    assert site.own.place(3) == "cell2"
    assert status(site)[0].closed == "it is full: load 1 of 1"
    site.own.report_load("cell0", None)
    assert status(site)[0].closed == ""


@pytest.mark.parametrize("limit", [-1, 1.5, True, "many"])
def test_what_is_no_limit_or_load_is_refused(site: Site, limit: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="limit of users"):
        site.own.limit_cell("cell0", limit)
    with pytest.raises(CellNotKnown):
        site.own.limit_cell("no", 1)
    with pytest.raises(CellNotKnown):
        site.own.report_load("no", 1)
    wrong: Any
    for wrong in (-1, float("nan"), float("inf"), 10**400, "x", True):
        with pytest.raises(InvalidConfiguration, match="load from 0 to"):
            site.own.report_load("cell0", wrong)
    with pytest.raises(InvalidConfiguration, match="'newest'"):
        site.own.fill("oldest")


def test_an_entry_keeps_what_the_other_commands_do_not_name(site: Site) -> None:
    site.own.limit_cell("cell1", 7)
    site.own.drain_cell("cell1")
    site.own.add_cell("cell1", site.url_of("cell1"), weight=5)

    found = site.own.directory.cell("cell1")
    assert found == Cell(found.url, 5, "draining", 7, 2)


def test_all_cells_are_read_together(site: Site) -> None:
    counted = TripsDatabase(site.directory)
    cells = Cells(counted)

    cells.cells()
    assert counted.trips == [VERSION, ["get_range"], ["get"] * 3, COMMIT]
