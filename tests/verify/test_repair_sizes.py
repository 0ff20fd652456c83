"""Sizes of the transactions of repairs, whatever the sizes of keys, and of however many buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cq
from cq.encoding import codec
from cq.failure import KeyFailure
from cq.keys import QueueKeys, place
from cq.keys.missed import MissedKeys
from cq.verify.queue import verify
from tests.kit import queues
from tests.kit.queues import aside
from tests.kit.sized import MOST, Sized, words

LARGE = words(7_900, 120)
Rows = Iterator[tuple[bytes, bytes]]


def astray(key: str) -> bytes:
    """The place of a key, under the hash of another one."""
    where = place(codec.encode(key))
    return bytes([where[0] ^ 1]) + where[1:]


def values_astray(name: str) -> Rows:
    return ((QueueKeys(name).value_at(astray(key)), codec.encode(1)) for key in LARGE)


def large_values_astray(name: str) -> Rows:
    return ((QueueKeys(name).value_at(astray(key)), codec.encode("v" * 89_000)) for key in LARGE[:30])


def unreadable_staged(name: str) -> Rows:
    return ((QueueKeys(name).staged_at(place(codec.encode(key))), b"\xff" * 5_000) for key in LARGE)


def unreadable_rows(name: str) -> Rows:
    begin = QueueKeys(name).rows(1, 0)[0]
    return ((begin + number.to_bytes(18, "big"), b"\xff") for number in range(6_000))


def notes_of_other_keys(name: str) -> Rows:
    return (
        (MissedKeys(name).note(astray(key)), codec.encode(KeyFailure("an error").to_stored()))
        for key in LARGE
    )


DAMAGE: list[Callable[[str], Rows]] = [
    values_astray,
    large_values_astray,
    unreadable_staged,
    unreadable_rows,
    notes_of_other_keys,
]


def put(db: Any, rows: Rows) -> int:
    """Write rows behind cq's back, a hundred in each transaction; returns how many."""
    left = list(rows)
    for start in range(0, len(left), 100):
        some = left[start : start + 100]
        queues.put(db, dict(some))
    return len(left)


def repaired(db: Any, name: str) -> list[int]:
    """The sizes of the transactions of a repair that mends all differences."""
    sized = Sized(db)
    found = [each for each in verify(sized, name, repair=True) if name.encode() in each.where]
    assert found
    assert all(each.repaired for each in found)
    assert [each for each in verify(db, name) if name.encode() in each.where] == []
    return sized.sizes


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_repair_writes_at_most_a_megabyte_in_each_transaction(
    db: Any, name: str, damage: Callable[[str], Rows]
) -> None:
    value = str if damage is large_values_astray else int
    cq.configure(db, name, buckets=1, value=value, combiner="last")
    number = put(db, damage(name))

    assert max(repaired(db, name)) <= MOST
    if damage is not notes_of_other_keys:
        assert len(aside(db, name)) == number
