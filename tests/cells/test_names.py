"""Second names of users: each belongs to one user, whoever claims it at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cq
from cq.cells import names
from cq.cells.records import DELETED
from cq.errors import InvalidData, NameTaken, TooLarge, UserDeleted, UserNotPlaced
from tests.kit.sites import USER, Site, die_when


@pytest.fixture
def two(site: Site) -> Site:
    """A site with the users ada and 7."""
    site.own.place(USER, names=["login:ada", "email:ada@example.com"])
    site.own.place(7)
    return site


def test_names_find_their_users_in_any_cell(two: Site) -> None:
    two.own.move(USER, "cell2")
    late = two.process()

    assert late.names.find("login:ada") == USER
    assert late.names.of(USER) == ["email:ada@example.com", "login:ada"]
    assert (late.names.find("login:ad"), late.names.of(7), late.names.of("nobody")) == (None, [], [])


def test_a_name_has_one_user(two: Site) -> None:
    with pytest.raises(NameTaken, match="the name 'login:ada' belongs to another user"):
        two.own.names.claim(7, "login:new", "login:ada")
    assert two.own.names.of(7) == []
    two.own.names.claim(USER, "login:ada")
    with pytest.raises(InvalidData, match="has no name 'login:ada'"):
        two.own.names.rename(7, "login:ada", "login:ada")
    two.own.names.release(7, "login:ada")
    assert two.own.names.find("login:ada") == USER


def test_a_user_is_not_placed_without_the_names(two: Site) -> None:
    with pytest.raises(NameTaken):
        two.own.place("eve", names=["login:eve", "login:ada"])
    with pytest.raises(UserNotPlaced):
        two.own.locate("eve")
    assert two.own.names.find("login:eve") is None
    wrong: Any
    for wrong in ("login:eve", iter(["login:eve"])):
        with pytest.raises(InvalidData, match="expected names in a collection"):
            two.own.place("eve", names=wrong)
    two.own.place(USER, names=["login:ada", "login:more"])
    assert two.own.names.find("login:more") == USER


def test_a_renamed_name_is_free(two: Site) -> None:
    for _ in range(2):  # the second one is a retry
        two.own.names.rename(USER, "login:ada", "login:countess")
    two.own.names.claim(7, "login:ada")

    assert two.own.names.of(USER) == ["email:ada@example.com", "login:countess"]
    with pytest.raises(
        InvalidData, match="has no name 'login:none', see `cq cells names`: claim the new one"
    ):
        two.own.names.rename(USER, "login:none", "login:other")
    with pytest.raises(NameTaken):
        two.own.names.rename(USER, "login:countess", "login:ada")
    two.own.names.rename(USER, "login:countess", "login:countess")
    assert two.own.names.find("login:countess") == USER


def test_of_many_who_claim_a_name_at_once_one_gets_it(site: Site) -> None:
    for user in range(8):
        site.own.place(user, names=[f"login:{user}"])

    def claim(user: int) -> bool:
        try:
            site.own.names.rename(user, f"login:{user}", "login:best")
        except NameTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(claim, range(8)))
    (best,) = [user for user in range(8) if got[user]]
    assert site.own.names.find("login:best") == best
    assert [site.own.names.of(user) for user in range(8)] == [
        [f"login:{'best' if user == best else user}"] for user in range(8)
    ]


def test_a_deletion_frees_the_names_or_keeps_them(two: Site) -> None:
    two.own.names.claim(7, "login:seven")
    two.own.delete(USER)
    two.own.names.claim(7, "login:ada")
    two.own.delete(7, keep_names=True)
    two.own.place("eve")

    for name in ("login:ada", "login:seven"):
        with pytest.raises(NameTaken):
            two.own.names.claim("eve", name)
    two.own.names.claim("eve", "email:ada@example.com")
    with pytest.raises(UserDeleted):
        two.own.names.claim(USER, "login:again")
    with pytest.raises(UserNotPlaced):
        two.own.names.claim("nobody", "login:nobody")


@pytest.mark.parametrize("keep", [False, True])
def test_who_completes_a_deletion_does_with_the_names_what_it_began_with(two: Site, keep: bool) -> None:
    die_when(lambda: two.state("cell0") == DELETED, two, lambda dying: dying.delete(USER, keep_names=keep))
    assert two.own.names.find("login:ada") == USER
    two.own.delete(USER, keep_names=not keep)

    assert two.own.names.find("login:ada") == (USER if keep else None)


@pytest.mark.parametrize("name", ["", None, 5, b"login", "\ud800", "x" * 201])
def test_what_cannot_be_a_name_is_refused(two: Site, name: Any) -> None:
    for act in (two.own.names.find, lambda name: two.own.names.claim(USER, name)):
        with pytest.raises(cq.InvalidData):
            act(name)


def test_a_user_has_a_limit_of_names(two: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_NAMES", 3)
    with pytest.raises(InvalidData, match="more than 3 names: release some"):
        two.own.names.claim(USER, "a", "b")
    two.own.names.claim(USER, "a")
    two.own.names.rename(USER, "a", "b")
    with pytest.raises(TooLarge):
        two.own.names.claim(USER, "é" * 101)
