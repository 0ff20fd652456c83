"""Updates of rows, brought in order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.combiners import BUILT_IN
from cq.encoding import codec
from cq.encoding.codec import ValueType
from cq.encoding.hashing import key_hash
from cq.errors import InvalidData
from cq.keys import place
from cq.passes.decision import sort_from_cursor
from cq.passes.sorting import sorted_pairs
from cq.queue.rows import decode_content

ALIKE: Final = [codec.encode(word) for word in ("plumless", "buckeroo")]
"""Keys of the same hash."""
KEYS: Final = [*ALIKE, *(codec.encode(word) for word in "abcdefgh")]


def found(contents: list[Any], combiner: str, kind: str, cursor: bytes) -> list[tuple[bytes, Any]]:
    """Keys and updates in their order, out of what a row of them would be."""
    pairs = sorted_pairs(BUILT_IN[combiner], ValueType(kind), contents, cursor)
    assert pairs is not None
    row = b"\x9f\xf6" + b"".join(pairs.encoded[position] for position in pairs.order) + b"\xff"
    content = decode_content(b"row", row)
    return list(zip(content[1::2], content[2::2], strict=True))


def test_two_of_the_keys_have_the_same_hash() -> None:
    assert key_hash(ALIKE[0]) == key_hash(ALIKE[1])


@given(
    rows=st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-300, 300)), max_size=8), max_size=5),
    combiner=st.sampled_from(["sum", "last", "first", "maximum"]),
    after=st.sampled_from([None, *KEYS]),
)
def test_each_key_comes_once_in_its_turn_with_all_its_updates(
    rows: list[list[tuple[bytes, int]]], combiner: str, after: bytes | None
) -> None:
    cursor = b"" if after is None else place(after)
    lists: dict[bytes, list[int]] = {}
    for row in rows:
        for key, update in row:
            lists.setdefault(key, []).append(update)
    combine: dict[str, Callable[[list[int]], int]] = {
        "sum": sum,
        "last": lambda values: values[-1],
        "first": lambda values: values[0],
        "maximum": max,
    }
    expected = [(key, combine[combiner](lists[key])) for key in sort_from_cursor(list(lists), cursor)]

    contents: list[Any] = [[None, *chain.from_iterable(row)] for row in rows]
    assert found(contents, combiner, "int", cursor) == expected


def test_deletions_are_updates_of_the_combiner_that_takes_them() -> None:
    contents = [[None, b"aa", 1, b"ab", codec.DELETE], [None, b"aa", codec.DELETE]]
    assert dict(found(contents, "last", "int", b"")) == {b"aa": codec.DELETE, b"ab": codec.DELETE}


def test_what_is_combined_into_no_update_is_told() -> None:
    contents = [[None, b"aa", 1, b"aa", 0.5]]
    assert sorted_pairs(BUILT_IN["sum"], ValueType("int"), contents, b"") is None


def test_what_cannot_be_combined_raises() -> None:
    contents = [[None, b"aa", {1}, b"aa", "x"]]
    with pytest.raises((InvalidData, TypeError)):
        sorted_pairs(BUILT_IN["sum"], ValueType("int"), contents, b"")
