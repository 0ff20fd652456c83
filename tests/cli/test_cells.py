"""`cq cells`: cells and users from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cells.cells import Cells
from cq.cells.move import UserDeletion
from tests.cli.conftest import Here


@pytest.fixture
def site(here: Here, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A directory with two cells."""
    monkeypatch.setenv("CQ_DIRECTORY", "embedded:directory.db")
    for number in (1, 2):
        assert here("cells", "add", f"cell{number}", f"embedded:cell{number}.db").status == 0
    return here


def test_users_are_placed_listed_and_moved(site: Here) -> None:
    placed = site("cells", "place", "ada", "42", '"42"', "--json").rows()
    assert placed == [
        {"user": "ada", "cell": "cell1"},
        {"user": 42, "cell": "cell2"},
        {"user": "42", "cell": "cell1"},
    ]
    assert site("cells", "move", "ada", "cell2").out == "ada: cell1 -> cell2\n"
    assert [(row["cell"], row["users"]) for row in site("cells", "list", "--json").rows()] == [
        ("cell1", 1),
        ("cell2", 2),
    ]
    assert site("cells", "list").out.splitlines()[0].split() == [
        "cell",
        "users",
        "limit",
        "weight",
        "state",
        "url",
        "web",
    ]


def test_a_directory_without_cells_says_how_to_add_one(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    assert here("cells", "list").out == "no cells: add one with `cq cells add NAME URL`\n"


def test_a_corrected_url_changes_no_weight_and_no_web_address(site: Here) -> None:
    site("cells", "add", "cell2", "embedded:cell2.db", "--weight", "3", "--web", "https://two.example.com")
    Path("cell2.db").rename("moved.db")
    assert site("cells", "add", "cell2", "embedded:moved.db", "--json").rows() == [
        {"cell": "cell2", "weight": 3}
    ]
    found = site("cells", "list", "--json").rows()[1]
    assert (found["weight"], found["web"]) == (3, "https://two.example.com")
    assert found["url"].endswith("moved.db")
    site("cells", "add", "cell2", "embedded:moved.db", "--weight", "1", "--web", "")
    found = site("cells", "list", "--json").rows()[1]
    assert (found["weight"], found["web"]) == (1, "")


def test_printed_ids_can_be_used_in_the_next_command(site: Here) -> None:
    site("cells", "place", "42", '"42"')
    site("cells", "names", '"42"', "login:text")
    found = site("cells", "find", "login:text").out.strip()
    assert found == '"42"'
    assert "expected a user's id" in site("cells", "place", "").err
    assert site("cells", "delete", found, "--yes").out == '"42": deleted\n'
    assert site("cells", "delete", "42", "--yes").out == "42: deleted\n"


def test_a_cell_is_emptied_by_rebalancing(site: Here) -> None:
    site("cells", "place", *map(str, range(6)))
    assert site("cells", "drain", "cell1").out == "cell1: draining\n"
    assert len(site("cells", "rebalance", "--most", "1", "--json").rows()) == 1
    rest = site("cells", "rebalance")
    assert (len(rest.out.splitlines()), rest.err) == (2, "2 users moved\n")
    assert site("cells", "rebalance").err == "0 users moved\n"
    site("cells", "drain", "cell2")
    assert site("cells", "rebalance").err == "0 users moved: no cell takes users, see `cq cells list`\n"
    site("cells", "drain", "cell2", "--undo")
    assert [row["users"] for row in site("cells", "list", "--json").rows()] == [0, 6]
    assert site("cells", "drain", "cell1", "--undo", "--json").rows() == [{"cell": "cell1", "state": "open"}]


def test_moves_under_way_are_listed_and_finished(site: Here) -> None:
    site("cells", "place", "ada")
    directory: Any = cq.open("embedded:directory.db")
    cells = Cells(directory)
    cells.place(b"grace")
    cells.directory.begin_move("ada", "cell2")
    cells.directory.begin_move(b"grace", "cell1")
    directory.close()

    listed = site("cells", "list")
    assert "under way: ada: cell1 -> cell2" in listed.out.splitlines()
    assert "cq cells resume" in listed.err
    assert {"user": "ada", "from": "cell1", "to": "cell2"} in site("cells", "list", "--json").rows()
    assert site("cells", "resume").out == "2 moves finished\n"


def test_deletions_under_way_are_listed_and_finished(site: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    site("cells", "place", "ada", "grace", "joan")
    with monkeypatch.context() as dying:
        dying.setattr(UserDeletion, "clear", lambda *_: None)  # as if the process had died then
        site("cells", "delete", "joan", "--yes")
    directory: Any = cq.open("embedded:directory.db")
    with Cells(directory) as cells:
        cells.add_cell("cell3", "embedded:cell3.db")
        cells.directory.begin_move("ada", "cell2")
    directory.close()
    Path("cell3.db").unlink()

    listed = site("cells", "list")
    assert "under way: joan: deleted from cell1" in listed.out.splitlines()
    assert "deletions in cell3 are not known: NotAStore: cell 'cell3' has no store, correct" in listed.err
    assert "`cq cells resume` finishes moves and deletions" in listed.err
    rows = site("cells", "list", "--json").rows()
    assert rows[-1] == {"user": "joan", "deleted_from": "cell1"}

    resumed = site("cells", "resume")
    assert (resumed.status, resumed.out, resumed.err.count("\n")) == (1, "", 1)
    assert "cell3.db does not exist" in resumed.err
    assert "under way" not in site("cells", "list").out


def test_the_totals_of_cells_are_forwarded(site: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_FORWARD_URL", "embedded:directory.db")
    site("configure", "notes", "--combiner", "sum", "--store", "embedded:directory.db")
    store = ("--store", "embedded:cell1.db")
    assert site("configure", "notes", "--forward", "notes", *store).status == 0
    site("add", "notes", "saved=3", *store)
    assert site("worker", "notes", "--drain", *store).status == 0
    assert "notes in $CQ_FORWARD_URL" in site("link", "list", *store).out
    site("worker", "--drain", "--store", "embedded:directory.db")

    assert site("get", "notes", "saved", "--store", "embedded:directory.db").out.split() == ["saved", "3"]
    assert site("configure", "notes", "--no-link", "forward", *store).status == 0


def test_a_full_cell_says_so(site: Here) -> None:
    assert site("cells", "limit", "cell1", "1").out == "cell1: at most 1 user\n"
    assert site("cells", "fill", "newest").out == "new users go to the newest cell\n"
    assert site("cells", "load", "cell2", "1").out == "cell2: load 1\n"
    assert site("cells", "place", "ada").out == "ada: cell1\n"

    found = site("cells", "place", "grace")
    assert (found.status, found.err.count("\n")) == (1, 1)
    assert "no cell takes users, see `cq cells list`" in found.err
    listed = site("cells", "list").out
    assert "it is full: 1 of 1 users" in listed
    assert "it is full: load 1 of 1" in listed
    assert [row["closed"] for row in site("cells", "list", "--json").rows()] == [
        "it is full: 1 of 1 users",
        "it is full: load 1 of 1",
    ]
    assert site("cells", "limit", "cell1").out == "cell1: no limit\n"
    assert site("cells", "load", "cell2").out == "cell2: no load\n"
    assert site("cells", "place", "grace", "joan").out == "grace: cell2\njoan: cell2\n"


def test_a_user_is_deleted_for_ever(site: Here) -> None:
    site("cells", "place", "ada", "grace")
    asked = site("cells", "delete", "ada")
    assert (asked.status, asked.out) == (2, "")
    assert "Confirm with --yes" in asked.err
    assert site("cells", "delete", "ada", "--yes").out == "ada: deleted\n"
    assert site("cells", "delete", "ada", "--yes", "--json").rows() == [{"user": "ada"}]

    found = site("cells", "place", "ada")
    assert (found.status, found.out) == (1, "")
    assert "user 'ada' was deleted, and the id cannot be used again" in found.err
    assert [row["users"] for row in site("cells", "list", "--json").rows()] == [0, 1]
    assert site("cells", "resume", "--json").rows() == [{"finished": 0, "deleted": 0}]


def test_second_names_are_claimed_changed_and_found(site: Here) -> None:
    site("cells", "place", "7", "grace")
    assert site("cells", "names", "7", "login:ada", "email:a@b").out == "email:a@b\nlogin:ada\n"
    taken = site("cells", "names", "grace", "login:ada")
    assert (taken.status, taken.out) == (1, "")
    assert "the name 'login:ada' belongs to another user" in taken.err
    assert site("cells", "names", "7", "login:lovelace", "--rename", "login:ada", "--json").rows() == [
        {"user": 7, "name": "email:a@b"},
        {"user": 7, "name": "login:lovelace"},
    ]
    assert site("cells", "names", "7", "email:a@b", "--release").out == "login:lovelace\n"
    assert site("cells", "find", "login:lovelace").out == "7\n"
    gone = site("cells", "find", "login:ada")
    assert (gone.status, gone.out, gone.err) == (1, "", "nobody has the name 'login:ada'\n")
    assert site("cells", "delete", "7", "--yes", "--keep-names").status == 0
    assert site("cells", "names", "grace", "login:lovelace").status == 1
