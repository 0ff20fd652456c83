"""Reading many values at once."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cq.keys import ROOT, prefix_end
from cq.store.bounded_reads import prefix_read, read_each, read_stored
from cq.store.embedded import Database
from cq.store.transact import transact
from tests.kit.queues import put

MANY = 600
LARGE = 5_000


class Counted:
    """A snapshot, and how many bytes of values it was asked for."""

    def __init__(self, snapshot: Any) -> None:
        self._snapshot = snapshot
        self.size = 0

    def get(self, key: bytes) -> Any:
        found = self._snapshot.get(key)
        self.size += len(found.value or b"")
        return found

    def get_range(self, *bounds: bytes, **options: Any) -> Any:
        for row in self._snapshot.get_range(*bounds, **options):
            self.size += len(row.value)
            yield row


def key_at(number: int) -> bytes:
    return ROOT + b"%06d" % number


@given(
    step=st.sampled_from([1, 2, 4, 20]),
    missing=st.sampled_from([1, 3, 1_000]),
    start=st.integers(0, 500),
    limit=st.sampled_from([1, 3_000, 1_000_000]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_are_what_is_stored_as_far_as_the_limit(
    db: Database, step: int, missing: int, start: int, limit: int
) -> None:
    db.clear_range(ROOT, prefix_end(ROOT))
    rows = {key_at(number): b"%0100d" % number for number in range(step * MANY) if number % missing == 0}
    put(db, rows)
    asked = [key_at(number) for number in range(0, step * MANY, step)]
    asked = asked[start:] + asked[:start]  # as turns come

    found = transact(db, lambda tr: read_stored(tr.snapshot, asked, limit))
    first = prefix_read(asked, found)

    assert first
    assert first == asked[: len(first)]
    assert all(found[key] == rows.get(key) for key in found)
    if limit == 1_000_000:
        assert first == asked


def test_no_more_than_the_limit_and_a_window_are_read(db: Database) -> None:
    keys = [key_at(number) for number in range(MANY)]
    put(db, dict.fromkeys(keys, bytes(LARGE)))
    snapshot: Any = Counted(db.create_transaction().snapshot)

    found = read_stored(snapshot, keys, 50_000)

    assert 0 < len(found) < MANY
    assert snapshot.size < 2 * (50_000 + 128 * LARGE)


def test_reads_for_many_names_take_several_transactions(db: Any) -> None:
    put(db, {key_at(number): b"%d" % number for number in range(250)})
    read: dict[int, list[bytes | None]] = {}

    def value(tr: Any, name: str) -> bytes | None:
        found: bytes | None = tr.snapshot.get(name.encode()).value
        read.setdefault(tr.get_read_version().wait(), []).append(found)
        put(db, {key_at(1_000): name.encode()})  # the next transaction has another version
        return found

    names = [key_at(number).decode() for number in range(250)]
    found = read_each(db, names, value, lambda name: [name.encode()])

    assert found == [b"%d" % number for number in range(250)]
    assert [len(values) for values in read.values()] == [100, 100, 50]
