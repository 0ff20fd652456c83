"""One answer to the question whether a queue takes an update, and how much its add writes, for all who add."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest

import cq
from cq.config.queue import read_config
from cq.encoding.codec import encode
from cq.encoding.hashing import bucket_of
from cq.errors import InvalidData, TooLarge
from cq.intake.documents import Documents
from cq.intake.json_lines import add_jsonl
from cq.queue.checks import AddCheck
from cq.queue.set_aside import read_aside
from cq.store.transact import transact
from cq.testing import drain
from cq.windows import Window
from tests.kit.queues import combine_all, values

ROLLUP = "1m:2d,1h:60d"
LONGEST = 8_000 - 3 - 10
"""Letters of the longest key of a queue with a window or a roll-up: three bytes are the head of a long text."""


def check_of(db: Any, name: str) -> AddCheck:
    return AddCheck(transact(db, lambda tr: read_config(tr, name)))


def takes(act: Any) -> bool:
    try:
        act()
    except InvalidData:
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "key", "update", "is_taken"),
    [
        ({"rollup": ROLLUP}, "a" * LONGEST, 1, True),
        ({"rollup": ROLLUP}, "a" * (LONGEST + 1), 1, False),
        ({}, "a" * (LONGEST + 1), 1, True),
        ({"combiner": "maximum", "window": 600}, "a" * (LONGEST + 1), 1, False),
        ({"combiner": "counter", "value": dict}, "a", {"a": "text"}, False),
        ({"combiner": "counter", "value": dict}, "a", {"stats": {"a": 1}}, False),
        ({"combiner": "counter", "value": dict}, "a", {"a": None}, False),
        ({"combiner": "counter", "value": dict}, "a", {"a": Decimal("inf")}, False),
        ({"combiner": "counter", "value": dict}, "a", {"a": 1, "b": Decimal("0.5"), "c": 0.5}, True),
        ({"combiner": "intervals", "value": list}, "a", [[1, 1, 1]], False),
        ({"combiner": "intervals", "value": list}, "a", [[1, 2]], False),
        ({"combiner": "intervals", "value": list}, "a", [[1, 2.5, 1]], False),
        ({"combiner": "intervals", "value": list}, "a", [1], False),
        ({"combiner": "intervals", "value": list}, "a", [[3, 9, 1], (1, 2, 1)], True),
        ({"combiner": "counter", "value": dict, "window": 600}, "a", {"a": "x"}, False),
        ({"combiner": "counter", "value": dict, "window": 600}, "a", {"a": float("inf")}, False),
        ({"combiner": "counter", "value": dict, "window": 600}, "a", {"a": 0.5}, False),
        ({"value": float, "window": 600}, "a", 0.5, True),
        ({"combiner": "counter", "value": dict, "window": 600}, "a", {"a": 1}, True),
        ({"combiner": "sum", "value": "any"}, "a", "text", False),
        ({"combiner": "sum", "value": "any"}, "a", Decimal("0.5"), True),
        ({"combiner": "maximum", "value": "any"}, "a", {1}, False),
        ({"combiner": "last", "value": "any"}, "a", {1}, True),
    ],
)
def test_all_who_add_get_the_same_answer_and_what_is_taken_can_be_combined(
    db: Any, name: str, settings: Any, key: str, update: Any, is_taken: bool
) -> None:
    cq.configure(db, name, **settings)
    queue = cq.CombineQueue(name)

    assert takes(lambda: check_of(db, name).check(key, update)) is is_taken
    assert takes(lambda: queue.add_now(db, {key: update})) is is_taken
    with cq.Emitter(queue, db) as emitter:
        assert takes(lambda: emitter.emit(key, update)) is is_taken
    combine_all(db, name, cq.App())
    assert transact(db, lambda tr: read_aside(tr, name)) == []
    assert (transact(db, lambda tr: queue.get(tr, key)) is not None) is is_taken


@pytest.mark.parametrize("at", [0, 59, 1_800_000_000, 1 << 34])
def test_the_longest_key_has_room_for_any_period(db: Any, name: str, at: int) -> None:
    """Whether a key is taken does not depend on the time of the update."""
    cq.configure(db, name, rollup="1m:forever,1h:forever")
    window: Window[str] = Window(name)
    transact(db, lambda tr: window.add(tr, {"a" * LONGEST: 1}, at=at, now=at))
    drain(db, name)

    assert [len(values(db, level)) for level in (f"{name}.1m", f"{name}.1h")] == [1, 1]
    with pytest.raises(TooLarge, match="limit of 7,990 of a queue with a window or a roll-up"):
        transact(db, lambda tr: window.add(tr, {"a" * (LONGEST + 1): 1}, at=at, now=at))


def test_a_document_with_a_bad_item_is_refused(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=ROLLUP)
    documents = Documents(cq.CombineQueue(name))

    with pytest.raises(TooLarge):
        transact(db, lambda tr: documents.set(tr, b"page", {"a": 1, "a" * (LONGEST + 1): 1}))

    assert list(documents.ids(db)) == []


def test_a_document_of_several_parts_with_a_bad_item_is_refused_as_a_whole(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=ROLLUP)
    documents = Documents(cq.CombineQueue(name))
    long = [letter * (LONGEST + 1) for letter in "abcdefgh"]
    bad = next(item for item in long if bucket_of(encode(item), 2) == 1)  # in the last of two parts

    with pytest.raises(TooLarge, match="a queue with a window or a roll-up"):
        documents.put(db, b"page", {**{f"k{number}": 1 for number in range(20_000)}, bad: 1})

    assert list(documents.ids(db)) == []
    drain(db, name)
    assert values(db, name) == {}


def test_a_line_that_a_level_does_not_take_is_named_and_those_before_it_are_added(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=ROLLUP)
    lines = [b'{"key": "%s", "update": 1}\n' % key for key in (b"a", b"b", b"a" * (LONGEST + 1), b"c")]

    with pytest.raises(InvalidData, match=r"^line 3: .*; the 2 lines before it are committed") as refused:
        add_jsonl(db, cq.CombineQueue(name), BytesIO(b"".join(lines)), name=b"file")

    assert len(str(refused.value)) < 400
    drain(db, name)
    assert values(db, name) == {"a": 1, "b": 1}
    del lines[2]
    assert add_jsonl(db, cq.CombineQueue(name), BytesIO(b"".join(lines)), name=b"file")[1] == 1


# How much an add writes


@pytest.mark.parametrize(
    ("settings", "keys", "size"),
    [
        ({}, 1, 60_000),
        ({}, 2_000, 5),
        ({"buckets": 4096}, 500, 5),
        ({"rollup": ROLLUP, "window": 60}, 2_000, 5),
    ],
)
@pytest.mark.parametrize("once", [None, "operation"])
def test_an_add_writes_about_what_is_predicted(
    db: Any, name: str, settings: Any, keys: int, size: int, once: str | None
) -> None:
    cq.configure(db, name, value=str, combiner="first", **settings)
    updates = {f"{number:08}": "x" * size for number in range(keys)}
    check = check_of(db, name)
    predicted = sum(check.check(key, update).size for key, update in updates.items()) + check.operation

    def add(tr: Any) -> int:
        cq.CombineQueue(name).add(tr, updates, once)
        size: int = tr.get_approximate_size().wait()
        return size

    written = transact(db, add)

    constant = 200_000
    assert written <= predicted + constant
    assert predicted <= 2 * written + constant
