"""Searches ask all cells at once, page through what they find, and name those that do not answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.cells import Cells, entries, search
from cq.cells import move as moving
from cq.keys import cell as keys
from cq.store.transact import transact
from tests.kit.queues import stored
from tests.kit.sites import Site, die_when, place

INDEX = "names"


def put(*texts: str) -> Callable[[Any], None]:
    def run(data: Any) -> None:
        for text in texts:
            data.put_entry(INDEX, text, [text.upper()])

    return run


def clear(*texts: str) -> Callable[[Any], None]:
    def run(data: Any) -> None:
        for text in texts:
            data.clear_entry(INDEX, text)

    return run


def all_texts(cells: Cells, prefix: str = "", limit: int = 3) -> list[str]:
    """The texts that a search finds, page by page."""
    found, token = [], None
    while True:
        page = search(cells, entries(INDEX, prefix), limit=limit, token=token, timeout=30)
        assert page.missing == {}
        assert len(page.items) <= limit
        found += [each.text for each in page.items]
        token = page.token
        if token is None:
            return found


def listed(site: Site) -> int:
    """How many entries the indexes of all cells have."""
    bounds = keys.listed_entries(INDEX)
    return sum(len(stored(site.own.store(name), bounds)) for name in site.names())


def test_pages_have_all_entries_in_order_wherever_users_move(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PIECE_ROWS", 2)
    rng, wanted = random.Random(7), []
    for user in range(5):
        texts = [f"{rng.choice('abc')}{rng.randrange(1000)} {user}" for _ in range(5)]
        place(site.own, user, f"cell{user % 3}")
        site.own.transact(user, put(*texts))
        wanted += texts
    for limit in (1, 4, 100):
        assert all_texts(site.own, limit=limit) == sorted(wanted)
    for user in range(5):
        site.own.move(user, "cell1")
    assert all_texts(site.own) == sorted(wanted)
    assert all_texts(site.own, "b") == sorted(each for each in wanted if each[0] == "b")
    assert listed(site) == len(wanted)

    site.own.transact(0, clear(*wanted[:5]))
    assert all_texts(site.own) == sorted(wanted[5:])
    assert listed(site) == len(wanted[5:])


def test_two_users_with_one_text_are_two_items_and_a_user_on_the_way_is_one(site: Site) -> None:
    for user in ("ada", "grace"):
        place(site.own, user, "cell0")
        site.own.transact(user, put("name"))
    die_when(lambda: len(site.rows("cell1")) == 1, site, lambda dying: dying.move("ada", "cell1"))
    assert listed(site) == 3

    page = search(site.own, entries(INDEX), timeout=30)
    assert sorted(page.items) == [("ada", "name", ["NAME"]), ("grace", "name", ["NAME"])]
    assert page.token is None


def test_an_entry_without_its_user_is_not_found(site: Site) -> None:
    place(site.own, "ada", "cell0")
    site.own.transact("ada", put("a", "b", "c", "d"))
    own = keys.own_entry(keys.encoded_user("ada"), keys.entry_name(INDEX, "b"))
    transact(site.own.store("cell0"), lambda tr: tr.clear(own))

    assert all_texts(site.own, limit=1) == ["a", "c", "d"]


def test_cells_that_do_not_answer_are_named_and_their_items_come_later(site: Site) -> None:
    for number, user in enumerate(("ada", "grace", "joan")):
        place(site.own, user, f"cell{number}")
        site.own.transact(user, put(user))
    is_down = [True]
    identity = transact(site.own.store("cell0"), lambda tr: tr.get(keys.IDENTITY).value)

    def find(tr: Any, after: Any, limit: int) -> Any:
        if is_down[0] and tr.get(keys.IDENTITY).value == identity:
            raise cq.StoreError("the disk is gone")
        return entries(INDEX)(tr, after, limit)

    page = search(site.own, find, limit=1, timeout=30)
    assert [each.user for each in page.items] == ["grace"]
    assert page.missing == {"cell0": "StoreError: the disk is gone"}
    is_down[0] = False
    assert [each.user for each in search(site.own, find, limit=1, token=page.token, timeout=30).items] == [
        "joan"
    ]
    assert [each.user for each in search(site.own, find, limit=1, timeout=30).items] == ["ada"]


@pytest.mark.parametrize("token", ["", "x", "öäü", "gYGB", "9g==", "a" * 20_000, "ZWhlbGxv", "RXdyb25n", 5])
def test_a_token_of_somebody_else_is_refused(site: Site, token: Any) -> None:
    with pytest.raises(cq.InvalidData, match="begin with the first page"):
        search(site.own, entries(INDEX), token=token)


@pytest.mark.parametrize("text", ["", "a\x00b", "x" * 1001, "\udc80", 5])
def test_what_cannot_be_an_entry_is_refused(site: Site, text: Any) -> None:
    site.own.place("ada")
    with pytest.raises(cq.InvalidData):
        site.own.transact("ada", lambda data: data.put_entry(INDEX, text))


def test_what_cannot_be_searched_for_is_refused(site: Site) -> None:
    for prefix in ("\udc80", 5, "a\x00"):
        with pytest.raises(cq.InvalidData, match="an entry of an index to be a text without NUL"):
            entries(INDEX, prefix)  # type: ignore[arg-type]
    with pytest.raises(cq.errors.InvalidConfiguration, match="expected a search index name"):
        entries("a/b")
    with pytest.raises(cq.InvalidData, match="expected a limit from 1 to"):
        search(site.own, entries(INDEX), limit=0)
