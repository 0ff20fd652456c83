"""Transactions that tell afterwards whether all, nothing or a part of them is in the store.

What transaction `number` of `writer` writes follows from the seed. Each leaves its versionstamp, so that what a store
holds can be compared with what its transactions, in their order, make of an empty one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from cq.store.embedded import Database
from tests.kit.busy import in_threads

Name = tuple[int, int]
"""Writer and number of a transaction."""
_COMMITS: Final = b"commit/"
_KEYS: Final = 40


def write(tr: Any, seed: int, name: Name) -> None:
    """All that the transaction writes."""
    for key, value in _writes(seed, name):
        if value is None:
            tr.clear(key)
        else:
            tr.set(key, value)
    tr.set_versionstamped_value(_COMMITS + b"%d/%d" % name, bytes(14))


def commit_in_threads(
    db: Database, seed: int, writers: int, numbers: range, returned: Callable[[int, int, bytes], object]
) -> None:
    """Have each writer commit its transactions with these numbers, in a thread of its own.

    Each commit that has returned is reported, with writer, number and versionstamp.
    """

    def commit(writer: int) -> None:
        for number in numbers:
            tr = db.create_transaction()
            write(tr, seed, (writer, number))
            stamp = tr.get_versionstamp()
            tr.commit().wait()
            returned(writer, number, stamp.value)

    in_threads(*(partial(commit, writer) for writer in range(writers)))


def assert_whole(db: Database, seed: int, returned: Mapping[Name, bytes]) -> dict[Name, bytes]:
    """Assert that a store holds the first so many of its transactions, and among them all that have returned.

    Args:
        db: the store.
        seed: of what was written.
        returned: the transactions that are known to be committed, with their versionstamps.

    Returns the transactions that it holds, with their versionstamps.
    """
    rows = [(row.key, row.value) for row in db.get_range(b"", b"\xff")]
    found = {_name(key): value for key, value in rows if key.startswith(_COMMITS)}
    lost = returned.keys() - found.keys()
    assert not lost, f"committed, and lost: {sorted(lost)}"
    assert all(found[name] == stamp for name, stamp in returned.items())
    for writer in {writer for writer, _ in found}:
        numbers = sorted(number for each, number in found if each == writer)
        assert numbers == list(range(len(numbers))), f"transactions in between are missing: {numbers}"
    expected: dict[bytes, bytes] = {}
    for name in sorted(found, key=found.__getitem__):
        for key, value in _writes(seed, name):
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
    assert {key: value for key, value in rows if not key.startswith(_COMMITS)} == expected
    return found


def assert_goes_on(db: Database, seed: int, found: Mapping[Name, bytes]) -> None:
    """Assert that a store which holds these transactions takes another one, and keeps all."""
    later = (9, 0)
    db.transact(lambda tr: write(tr, seed, later))
    assert assert_whole(db, seed, found).keys() == {*found, later}


def _writes(seed: int, name: Name) -> list[tuple[bytes, bytes | None]]:
    draw = random.Random(f"{seed}/{name}")
    keys = [b"key/%02d" % draw.randrange(_KEYS) for _ in range(draw.randint(1, 6))]
    value = b"%d of %d." % (name[1], name[0])
    return [(key, None if draw.random() < 0.2 else value * draw.choice([1, 1, 20, 300])) for key in keys]


def _name(key: bytes) -> Name:
    writer, number = key.removeprefix(_COMMITS).split(b"/")
    return int(writer), int(number)
