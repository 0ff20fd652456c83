"""Range reads: in pieces, both ways, by selectors, through own writes; and conflict ranges."""

from __future__ import annotations

import tracemalloc

import pytest

from cq.store.api import METADATA_VERSION, WANT_ALL
from cq.store.embedded import Database, FDBError, KeySelector, Transaction
from cq.store.embedded.reading import EXACT, ITERATOR, LARGE, MEDIUM, SERIAL, SMALL
from tests.store.calls import commit_code

MODES = [WANT_ALL, ITERATOR, SMALL, MEDIUM, LARGE, SERIAL]
SYSTEM = b"\xff/some"
CONFLICT_KEYS = [
    *(b"", b"a", b"b", b"a" * 10_000, b"a" * 10_001, b"a" * 10_002),
    *(
        METADATA_VERSION,
        METADATA_VERSION + b"x",
        b"\xff",
        SYSTEM,
        SYSTEM * 5_000,
        SYSTEM * 7_000,
        b"\xff\xff",
    ),
]


def fill(db: Database, rows: int, size: int = 100) -> list[bytes]:
    keys = [b"%06d" % number for number in range(rows)]

    def run(tr: Transaction) -> None:
        for key in keys:
            tr[key] = bytes(size)

    db.transact(run)
    return keys


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_mode_reads_all_rows(db: Database, mode: int, reverse: bool) -> None:
    keys = fill(db, 3000)
    tr = db.create_transaction()
    found = [row.key for row in tr.get_range(b"", b"\xff", reverse=reverse, streaming_mode=mode)]
    assert found == (keys[::-1] if reverse else keys)


@pytest.mark.parametrize("mode", [*MODES, EXACT])
def test_a_limit_holds_over_pieces(db: Database, mode: int) -> None:
    keys = fill(db, 3000)
    tr = db.create_transaction()
    assert [row.key for row in tr.get_range(b"", b"\xff", 2500, streaming_mode=mode)] == keys[:2500]
    assert len(tr.get_range(b"", b"\xff", 2500, True, mode).to_list()) == 2500


@pytest.mark.parametrize("reverse", [False, True])
def test_own_writes_are_merged_over_pieces(db: Database, reverse: bool) -> None:
    keys = fill(db, 2000)
    tr = db.create_transaction()
    tr.clear_range(keys[100], keys[700])
    for key in keys[::3]:
        tr.clear(key)
    for key in keys[::5]:
        tr.set(key, b"new")
    tr.append_if_fits(keys[1999], b"!")
    expected = {key: bytes(100) for key in keys[:100] + keys[700:]}
    for key in keys[::3]:
        expected.pop(key, None)
    expected.update(dict.fromkeys(keys[::5], b"new"))
    expected[keys[1999]] = bytes(100) + b"!"

    rows = [(row.key, row.value) for row in tr.get_range(b"", b"\xff", reverse=reverse)]

    assert rows == sorted(expected.items(), reverse=reverse)


def test_iterating_sees_one_version(db: Database) -> None:
    keys = fill(db, 3000)
    tr = db.create_transaction()
    rows = iter(tr.get_range(b"", b"\xff"))
    next(rows)
    db.clear_range(b"", b"\xff")
    assert [row.key for row in rows] == keys[1:]


def test_only_what_was_read_conflicts(db: Database) -> None:
    keys = fill(db, 3000)
    for changed, commits in [(keys[2900], True), (keys[1], False)]:
        tr = db.create_transaction()
        rows = iter(tr.get_range(b"", b"\xff"))
        for _ in range(5):
            next(rows)
        db[changed] = b"changed"
        tr[b"other"] = b"1"
        if commits:
            tr.commit().wait()
        else:
            assert commit_code(tr) == 1020


@pytest.mark.parametrize(
    ("begin", "end", "reverse", "row", "changed"),
    [
        (KeySelector.first_greater_or_equal(b"a") + 1, b"z", True, b"c", b"a"),
        (b"a", KeySelector.last_less_than(b"c"), False, b"a", b"b"),
    ],
)
def test_a_limited_range_conflicts_with_keys_that_its_selectors_count(
    db: Database,
    begin: KeySelector | bytes,
    end: KeySelector | bytes,
    reverse: bool,
    row: bytes,
    changed: bytes,
) -> None:
    """Without the changed key, the selector beyond the only row is another one, and the row is not in the range."""
    for key in {b"a", b"c", changed}:
        db[key] = b"1"
    tr = db.create_transaction()
    assert [found.key for found in tr.get_range(begin, end, limit=1, reverse=reverse)] == [row]
    tr[b"other"] = b"1"
    del db[changed]

    assert commit_code(tr) == 1020


def test_a_large_range_does_not_fill_the_memory(db: Database) -> None:
    for part in range(8):
        db.transact(lambda tr, part=part: [tr.set(b"%d/%04d" % (part, i), bytes(9000)) for i in range(500)])  # type: ignore[misc]
    tr = db.create_transaction()
    tracemalloc.start()
    try:
        total = sum(len(row.value) for row in tr.get_range(b"", b"\xff"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert total == 8 * 500 * 9000
    assert peak < 3_000_000


def test_selectors_count_through_own_writes(db: Database) -> None:
    fill(db, 10)
    tr = db.create_transaction()
    tr.clear(b"000003")
    tr[b"000005x"] = b"1"
    select = KeySelector.first_greater_or_equal

    assert tr.get_key(select(b"000002") + 1).value == b"000004"
    assert tr.get_key(select(b"000002") + 3).value == b"000005x"
    assert tr.get_key(KeySelector.last_less_than(b"000006") - 2).value == b"000004"
    assert tr.get_key(KeySelector.last_less_or_equal(b"000003")).value == b"000002"
    assert tr.get_key(select(b"000000") - 1).value == b""
    assert tr.get_key(select(b"000009") + 1).value == b"\xff"


def test_a_range_may_be_given_by_selectors(db: Database) -> None:
    keys = fill(db, 20)
    tr = db.create_transaction()
    begin = KeySelector.first_greater_than(keys[3])
    end = KeySelector.first_greater_or_equal(keys[3]) + 5

    assert [row.key for row in tr.get_range(begin, end)] == keys[4:8]
    assert [row.key for row in tr.get_range(KeySelector.last_less_than(keys[5]), keys[7])] == keys[4:7]
    assert [row.key for row in tr[keys[2] : keys[5]]] == keys[2:5]
    assert [row.key for row in tr[keys[2] : keys[5] : -1]] == keys[2:5][::-1]
    assert list(tr.get_range(end, begin)) == []


def test_a_selector_may_start_after_the_end_of_the_key_space(db: Database) -> None:
    last = fill(db, 2)[-1]
    tr = db.create_transaction()
    end = KeySelector.last_less_or_equal(b"\xff")

    assert tr.get_key(end).value == last
    assert tr.get_key(KeySelector.first_greater_than(b"\xff")).value == b"\xff"
    assert [row.key for row in tr.get_range(end, end + 1)] == [last]
    with pytest.raises(FDBError) as refused:
        tr.get_key(KeySelector.first_greater_or_equal(b"\xff\x00")).wait()
    assert refused.value.code == 2004


def test_rows_unpack_and_prefixes_work(db: Database) -> None:
    db[b"a/1"], db[b"a/2"], db[b"b"] = b"x", b"y", b"z"
    tr = db.create_transaction()
    assert dict(tr.get_range_startswith(b"a/")) == {b"a/1": b"x", b"a/2": b"y"}
    assert [row.key for row in db.get_range_startswith(b"a/", limit=1)] == [b"a/1"]
    assert repr(db.get_range(b"b", b"c")[0]) == "b'b': b'z'"
    db.clear_range_startswith(b"a/")
    assert [row.key for row in db[:]] == [b"b"]


def test_sizes_are_exact_and_split_points_split(db: Database) -> None:
    keys = fill(db, 1000)
    tr = db.create_transaction()
    points = tr.get_range_split_points(keys[0], b"\xff", 10_600).wait()

    assert tr.get_estimated_range_size_bytes(keys[0], keys[500]).wait() == 500 * 106
    assert points == [*keys[::100], b"\xff"]
    assert tr.get_range_split_points(keys[0], b"\xff", 10_600, 2).wait() == [
        keys[0],
        keys[100],
        keys[200],
        b"\xff",
    ]


@pytest.mark.parametrize("written", ["nothing", "a value", "an operation", "a versionstamped value"])
@pytest.mark.parametrize("option", [None, "read_your_writes_disable", "read_system_keys"])
@pytest.mark.parametrize("key", CONFLICT_KEYS, ids=lambda key: f"{key[:20]!r} of {len(key)}")
def test_a_conflict_on_a_key_is_that_on_the_range_of_this_key(
    db: Database, key: bytes, option: str | None, written: str
) -> None:
    """Both are the same to the commit, to the size and to later calls, though only the range is split up."""
    outcomes = []
    for is_range in (True, False):
        tr = db.create_transaction()
        if option:
            getattr(tr.options, f"set_{option}")()
        if written == "a value":
            tr.set(b"a", b"1")
        elif written == "an operation":
            tr.add(b"a", b"1")
        elif written == "a versionstamped value":
            tr.set_versionstamped_value(b"a", bytes(14))
        if is_range:
            tr.add_read_conflict_range(key, key + b"\x00")
        else:
            tr.add_read_conflict_key(key)
        reads = tr._state.reads
        try:
            size = tr.get_approximate_size().wait()
        except FDBError as error:
            size = error.code
        outcomes.append((reads.keys, reads.ranges, size))
    assert outcomes[0] == outcomes[1]


def test_a_limit_that_is_no_int_is_refused_as_the_binding_does(db: Database) -> None:
    fill(db, 2)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        db.create_transaction().get_range(b"", b"\xff", limit=1.5)  # type: ignore[arg-type]


def test_an_exact_range_without_a_limit_is_refused_before_all_else(db: Database) -> None:
    """As by the binding, which looks at the arguments before it asks the transaction."""

    def code() -> int:
        with pytest.raises(FDBError) as caught:
            tr.get_range(b"", b"\xff", streaming_mode=EXACT).to_list()
        return caught.value.code

    tr = db.create_transaction()
    tr.cancel()
    assert code() == 2210

    tr = db.create_transaction()
    tr.clear_range(b"b", b"a")
    assert code() == 2210

    tr = db.create_transaction()
    tr.set(b"a", b"1")
    tr.commit().wait()
    assert code() == 2210
