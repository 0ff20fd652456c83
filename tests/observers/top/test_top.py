"""The top of a queue: equal to a sort of all values, whatever changes; written blindly; read for what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cq
from cq.errors import CodeMismatch, InvalidConfiguration, InvalidData, NotReady, TooLarge
from cq.observer import Change
from cq.observers.top.cloud import CloudReader
from cq.observers.top.index import observer, top
from cq.observers.top.ranking import RankedEntry, Ranking
from cq.store.transact import transact
from tests.kit.faults import Calls
from tests.kit.queues import commits
from tests.observers.top.tops import FIRST, ToldTop

many = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])

KEYS = st.sampled_from(["a", "b", "c", "bb", "ä", "日", "", "a\x00", "z" * 50])
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.integers(),
    st.sampled_from(
        [0.1, Decimal("0.1"), 1.0, Decimal("1.50"), 1.5, -0.0, 1e300, 5e-324, math.inf, -math.inf]
    ),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False),
)
BATCHES = st.lists(st.dictionaries(KEYS, st.none() | NUMBERS, max_size=6), max_size=6)


def page_of(told: ToldTop, **how: Any) -> list[tuple[Any, Any]]:
    entries = told.read(Ranking(told.name).page, 1000, **how).entries
    return [(entry.key, entry.score) for entry in entries]


def check(told: ToldTop, group: str | None = None) -> None:
    """The whole index equals the model: order, bottom, count, ranks."""
    expected, ranking = told.order(group), Ranking(told.name, **told.functions)
    assert page_of(told, group=group) == expected
    assert page_of(told, group=group, bottom=True) == expected[::-1]
    assert told.read(ranking.count, group) == len(expected)
    for key, score in expected:
        rank = 1 + sum(other > score for _, other in expected)
        assert told.read(ranking.rank, key) == rank
        assert told.read(ranking.count, group, highest=score) == len(expected) + 1 - rank


@many
@given(BATCHES)
def test_the_top_equals_a_sort_of_all_values_after_every_batch(
    db: Any, batches: list[dict[str, Any]]
) -> None:
    told = ToldTop(db, ranks=True)
    for batch in batches:
        told.tell(batch)
        check(told)


@many
@given(BATCHES, st.sampled_from(["", "x", "0", "日"]))
def test_groups_have_tops_of_their_own(db: Any, batches: list[dict[str, Any]], longer: str) -> None:
    """Also where one group's name begins with another's, and keys move between groups with their values."""

    def group(key: str, value: Any) -> str | None:
        return None if key == "c" else f"g{longer if value > 0 else ''}"

    def score(key: str, value: Any) -> Any:
        return None if value == 7 else value

    told = ToldTop(db, ranks=True, score=score, group=group)
    for batch in batches:
        told.tell(batch)
    groups = {"g", f"g{longer}"}
    for name in groups:
        check(told, name)
    counts = {name: len(told.order(name)) for name in groups if told.order(name)}
    assert dict(told.read(Ranking(told.name).groups)) == counts


@many
@given(st.dictionaries(KEYS, NUMBERS), st.integers(1, 4), st.booleans(), st.data())
def test_pages_go_through_everything_once(
    db: Any, values: dict[str, Any], limit: int, bottom: bool, data: st.DataObject
) -> None:
    """From a range of scores, and going on behind a place whose key has gone."""
    told = ToldTop(db, ranks=True)
    told.tell(values)
    bounds = data.draw(st.fixed_dictionaries({}, optional={"lowest": NUMBERS, "highest": NUMBERS}))
    low, high = bounds.get("lowest", -math.inf), bounds.get("highest", math.inf)
    expected = [item for item in told.order() if low <= item[1] <= high]
    ranking, seen, after = Ranking(told.name), list[Any](), None

    assert told.read(ranking.count, **bounds) == len(expected)
    while True:
        page = told.read(ranking.page, limit, bottom=bottom, after=after, **bounds)
        seen += [(entry.key, entry.score) for entry in page.entries]
        assert len(page.entries) <= limit
        if page.continuation is None:
            break
        after = page.continuation
        told.tell({page.entries[-1].key: None})

    assert seen == (expected[::-1] if bottom else expected)


def test_values_come_along_when_asked_for(db: Any) -> None:
    told = ToldTop(db, score=lambda key, value: len(value))
    told.tell({"a": [1, 2], "b": [1]})
    ranking = Ranking(told.name)

    assert told.read(ranking.page).entries == [RankedEntry("a", 2), RankedEntry("b", 1)]
    assert told.read(ranking.page, values=True).entries == [
        RankedEntry("a", 2, [1, 2]),
        RankedEntry("b", 1, [1]),
    ]


def test_nothing_is_left_of_keys_that_have_gone(db: Any) -> None:
    """Counts that reach zero are removed, those of ranks too."""
    told = ToldTop(db, ranks=True)
    told.tell({"a": 1.5, "b": -20, "c": 0})
    told.tell({"a": 1e-9, "b": None})
    told.tell({"a": None, "c": None})

    assert [key[:1] for key in told.stored()] == [b"m", b"n"]


def calls(told: ToldTop, changes: list[Change]) -> list[str]:
    """The calls that the observer makes of a transaction, which is committed."""
    tr = told.db.create_transaction()
    listed = Calls(tr)
    told.observe(listed, changes)
    tr.commit().wait()
    return listed.made


def test_a_change_is_written_blindly(db: Any) -> None:
    told = ToldTop(db)

    assert calls(told, [Change("a", None, 1), Change("b", None, 1)]) == [
        "set",  # the entry of a
        "set",  # the entry of b
        "add",  # two more keys
        "set_versionstamped_value",  # the mark of the group whose cloud may differ
        "set_versionstamped_value",  # the publisher's notification
    ]
    assert calls(told, [Change("a", 1, 2)]) == [
        "clear",  # where a stood
        "set",  # where it stands now: the number of keys is the same
        "set_versionstamped_value",
        "set_versionstamped_value",
    ]
    assert calls(told, [Change("a", 2, None)]) == [
        "clear",
        "add",  # one key less
        "compare_and_clear",  # the count, if that was the last one
        "set_versionstamped_value",
        "set_versionstamped_value",
    ]


def test_ranks_cost_atomic_adds_from_the_first_digit_that_differs(db: Any) -> None:
    told = ToldTop(db, ranks=True)
    calls(told, [Change("a", None, 123_456)])

    assert calls(told, [Change("a", 123_456, 123_478)]) == [
        *("clear", "set"),
        *("add", "compare_and_clear") * 2,  # the last pair of digits, and the end
        *("add", "add"),
        *("set_versionstamped_value",) * 2,
    ]


@pytest.mark.parametrize(
    ("old", "new"), [(1, 1.0), (None, None), ("x", "y"), (2, Decimal("2.00")), (0, -0.0)]
)
def test_nothing_is_written_when_the_score_is_the_same(db: Any, old: Any, new: Any) -> None:
    told = ToldTop(db, score=lambda key, value: None if isinstance(value, str) else value)

    assert calls(told, [Change("a", old, new)]) == []


@pytest.mark.parametrize("value", [math.nan, Decimal("NaN"), True, "1", [1]])
def test_what_is_no_score_is_refused_and_the_key_named(db: Any, value: Any) -> None:
    told = ToldTop(db)
    tr = Calls(db.create_transaction())

    with pytest.raises(InvalidData, match=r"key 'bad': expected a score"):
        told.observe(tr, [Change("good", None, 1), Change("bad", None, value)])
    assert tr.made == []


@pytest.mark.parametrize("group", ["", "x" * 501, "\ud800", 7, b"x"])
def test_what_is_no_group_is_refused(db: Any, group: Any) -> None:
    told = ToldTop(db, group=lambda key, value: group)

    with pytest.raises(InvalidData, match=r"key 'a': expected a group"):
        told.observe(db.create_transaction(), [Change("a", None, 1)])
    with pytest.raises(InvalidData, match="expected a group"):
        page_of(told, group=group)
    with pytest.raises(InvalidData, match="expected a group"):
        told.read(CloudReader(told.name, group).read)


def test_an_entry_beyond_the_stores_limit_of_keys_is_refused(db: Any) -> None:
    told = ToldTop(db, key=(bytes, bytes))
    key = (b"\x00" * 5000, b"")  # each 00 takes two bytes in an entry

    with pytest.raises(TooLarge, match="an entry of 10,"):
        told.observe(db.create_transaction(), [Change(key, None, 1)])


def test_the_longest_key_and_group_fit(db: Any) -> None:
    told = ToldTop(db, key=bytes, group=lambda key, value: "g" * 500, ranks=True)
    told.tell({b"k" * 7990: 5e-324})

    check(told, "g" * 500)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0},
        {"n": 10_001},
        {"n": True},
        {"every": -1},
        {"every": 86_401},
        {"ranks": 1},
        {"score": "views"},
        {"group": "first"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=f"expected {next(iter(wrong))} of a top"):
        top(**wrong)


def test_a_process_without_the_functions_does_not_keep_the_top(db: Any) -> None:
    told = ToldTop(db, score=lambda key, value: value)

    with pytest.raises(CodeMismatch, match="score function of the application's"):
        observer(told.config, told.spec.settings, FIRST)
    with pytest.raises(CodeMismatch, match="without the group function"):
        observer(told.config, told.spec.settings, FIRST, score=max, group=max)


def test_a_top_that_is_missing_or_not_built_yet_is_said_to_be_so(db: Any, name: str) -> None:
    cq.configure(db, name, value="any")
    told = ToldTop(db)
    transact(db, lambda tr: tr.clear(told.keys.observer_current("top")))

    with pytest.raises(InvalidConfiguration, match="keeps no top: run `cq configure"):
        transact(db, Ranking(name).page)
    with pytest.raises(NotReady, match="is being built"):
        transact(db, Ranking(told.name).page)
    with pytest.raises(cq.errors.QueueNotConfigured):
        transact(db, Ranking("nobody").count)


def test_a_reader_that_does_not_fit_the_top_is_told_so(db: Any) -> None:
    """It would read nothing, or give wrong ranks."""
    plain = ToldTop(db, ranks=True)
    grouped = ToldTop(db, ranks=True, group=lambda key, value: "g")

    for read in (Ranking(grouped.name).page, Ranking(grouped.name).count, Ranking(plain.name).groups):
        with pytest.raises(InvalidConfiguration, match="kept in groups"):
            transact(db, read)
    with pytest.raises(InvalidConfiguration, match="is not kept in groups"):
        plain.read(Ranking(plain.name).count, "g")
    for told, functions in ((plain, grouped.functions), (grouped, plain.functions)):
        with pytest.raises(CodeMismatch, match="group function"):
            told.read(Ranking(told.name, **functions).rank, "a")


def test_ranks_that_are_not_kept_are_said_to_be_so(db: Any) -> None:
    told = ToldTop(db)
    told.tell({"a": 1})
    ranking = Ranking(told.name)

    reads: list[Callable[[Any], Any]] = [
        lambda tr: ranking.rank(tr, "a"),
        lambda tr: ranking.count(tr, lowest=1),
    ]
    for read in reads:
        with pytest.raises(InvalidConfiguration, match="keeps no ranks"):
            transact(db, read)


def test_a_key_without_a_score_has_no_rank(db: Any) -> None:
    told = ToldTop(db, ranks=True, score=lambda key, value: value or None)
    told.tell({"a": 1, "b": 0})
    ranking = Ranking(told.name, **told.functions)

    assert [told.read(ranking.rank, key) for key in ("a", "b", "c")] == [1, None, None]


def test_a_rank_costs_small_ranges_whatever_the_number_of_keys(db: Any) -> None:
    told = ToldTop(db, ranks=True)
    told.tell({f"key {number}": number for number in range(3000)})
    tr = Calls(db.create_transaction().snapshot)

    assert Ranking(told.name).rank(tr, "key 1234") == 1766
    assert tr.made.count("get_range") == 4  # exponent, two pairs of digits, the end
    # metadata version, configuration, value, generation; the count of that score, and two of all keys
    assert tr.made.count("get") == 7


@pytest.mark.parametrize(("score", "is_valid"), [(2, True), (10, False)])
def test_a_read_of_a_page_conflicts_with_changes_of_this_page_only(
    db: Any, score: int, is_valid: bool
) -> None:
    told = ToldTop(db)
    told.tell({"a": 9, "b": 8, "c": 1})
    tr = db.create_transaction()
    Ranking(told.name).page(tr, 2)
    tr.set(told.keys.prefix + b"test", b"")
    told.tell({"c": score})

    assert commits(tr) == is_valid
