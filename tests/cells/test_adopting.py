"""Adopting users whose data were in the store before it became a cell."""

from __future__ import annotations

from typing import Any

import pytest

from cq.cells import directory
from cq.errors import CellError, CellNotKnown, NameTaken, UserDeleted, UserNotPlaced
from cq.keys import ROOT, below
from cq.keys import cell as cellkeys
from cq.store.transact import transact
from tests.kit.queues import stored
from tests.kit.sites import USER, Site, content_of, die_when, put, read

OLD = ROOT + b"zz-notes/"
ROWS = {b"%d" % number: b"note %d" % number for number in range(5)}


@pytest.fixture
def old(site: Site) -> Site:
    """A site whose cell0 has rows of ada and 7 of before it was a cell."""

    def fill(tr: Any) -> None:
        for user in (USER, 7):
            for number, text in ROWS.items():
                tr.set(OLD + cellkeys.encoded_user(user) + b"/" + number, text)

    transact(site.own.store("cell0"), fill)
    return site


def convert(data: Any) -> bool:
    """Move two rows below the user's prefix."""
    prefix = OLD + cellkeys.encoded_user(data.user) + b"/"
    rows = data.tr.get_range(*below(prefix), limit=3).to_list()
    for row in rows[:2]:
        data.next_id()
        data.tr.set(data.prefix + row.key.removeprefix(prefix), row.value)
        data.tr.clear(row.key)
    return len(rows) > 2


def rest(site: Site, user: Any = USER) -> int:
    """How many rows of a user are where they were."""
    return len(stored(site.own.store("cell0"), below(OLD + cellkeys.encoded_user(user))))


def test_an_adopted_user_is_one_like_others(old: Site) -> None:
    old.own.drain_cell("cell0")
    old.own.limit_cell("cell0", 1)
    for user in (USER, 7):
        assert old.own.adopt(user, "cell0", convert, names=[f"login:{user}"]) == "cell0"

    assert [each.users for each in old.own.cells()] == [2, 0, 0]
    old.own.move(USER, "cell1")
    assert old.own.adopt(USER, "cell0", convert) == "cell1"
    assert content_of(old.own) == content_of(old.own, 7) == ROWS
    assert old.own.transact(USER, lambda data: data.next_id()) == 6
    assert (old.own.names.find("login:ada"), rest(old), rest(old, 7)) == (USER, 0, 0)
    old.check()
    old.own.delete(7)
    with pytest.raises(UserDeleted):
        old.own.adopt(7, "cell0", convert)


def test_an_adoption_that_dies_at_any_point_is_continued(old: Site) -> None:
    point, died = 0, True
    while died:
        user = f"user {point}"
        for number, text in ROWS.items():
            key = OLD + cellkeys.encoded_user(user) + b"/" + number
            transact(old.own.store("cell0"), lambda tr: tr.set(key, text))  # noqa: B023
        calls = iter(range(point))
        is_time = lambda calls=calls: next(calls, None) is None  # noqa: E731
        died = die_when(is_time, old, lambda dying: dying.adopt(user, "cell0", convert))  # noqa: B023
        assert old.own.adopt(user, "cell0", convert) == "cell0"
        assert (content_of(old.own, user), rest(old, user)) == (ROWS, 0)
        old.check()
        point += 1

    assert point > 6


def test_during_an_adoption_the_user_can_only_be_adopted(old: Site) -> None:
    other = old.process()

    def look(data: Any) -> bool:
        for use in (other.place, other.locate, other.delete, lambda user: other.move(user, "cell1")):
            with pytest.raises(UserNotPlaced, match=r"is being adopted by cell 'cell0': Cells.adopt\(\)"):
                use(USER)
        with pytest.raises(UserNotPlaced):
            other.transact(USER, read(b"0"))
        with pytest.raises(CellError, match="is being adopted by cell 'cell0': adopt the user there"):
            other.adopt(USER, "cell1", convert)
        return convert(data)

    old.own.adopt(USER, "cell0", look)
    assert content_of(other) == ROWS


def test_two_adoptions_at_once_are_one(old: Site) -> None:
    other, tries = old.process(), []

    def convert_late(data: Any) -> bool:
        tries.append(data.cell)
        more = convert(data)
        if len(tries) == 1:
            other.adopt(USER, "cell0", convert)
            other.transact(USER, put(b"new", b"1"))
        return more

    old.own.adopt(USER, "cell0", convert_late)
    assert tries == ["cell0"]  # the second try finds the fence
    assert content_of(old.own) == {**ROWS, b"new": b"1"}
    old.check()


def test_an_adoption_that_cannot_begin_changes_nothing(old: Site) -> None:
    old.own.place("eve", names=["login:ada"])
    with pytest.raises(NameTaken):
        old.own.adopt(USER, "cell0", convert, names=["login:ada"])
    with pytest.raises(CellNotKnown):
        old.own.adopt(USER, "nowhere", convert)
    with pytest.raises(UserNotPlaced, match="is in no cell"):
        old.own.locate(USER)
    assert rest(old) == len(ROWS)
    assert old.own.adopt("eve", "cell0", convert) == old.own.locate("eve").cell


def test_a_placement_notices_an_adoption_that_fills_the_cell(old: Site) -> None:
    old.own.limit_cell("cell0", 10)
    tries: list[int] = []

    def place(tr: Any) -> None:
        tries.append(cellkeys.count_of(tr.snapshot.get(cellkeys.count("cell0")).value))
        directory.take_seat(tr, "cell0", 10)
        if len(tries) == 1:
            old.own.adopt(USER, "cell0", convert)

    transact(old.directory, place)
    assert tries == [0, 1]
