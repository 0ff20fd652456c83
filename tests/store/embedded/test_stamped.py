"""Versionstamped writes that are only noted do what they do when each finds its place at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq.store.embedded import Database, FDBError, KeySelector, Transaction

_STAMP = bytes(10)
_METADATA = b"\xff/metadataVersion"
KEYS = [b"a", b"a" + _STAMP, b"b", b"b\xff" * 6]

key = st.sampled_from(KEYS)
param = st.builds(
    lambda before, after: before + _STAMP + after + len(before).to_bytes(4, "little"),
    st.sampled_from([b"", b"a", b"b\xff"]),
    st.sampled_from([b"", b"x"]),
)
malformed = st.sampled_from([b"", b"abc", b"a" + _STAMP + b"\x02\0\0\0"])
span = st.tuples(key, key).map(sorted)
value = st.sampled_from([b"", b"1", b"22"])
stamped = st.one_of(
    st.tuples(st.just("set_versionstamped_key"), param, value),
    st.tuples(st.just("set_versionstamped_value"), key, param),
    st.tuples(st.just("set_versionstamped_value"), st.just(_METADATA), st.just(bytes(14))),
    st.tuples(st.just("set_versionstamped_key"), malformed, value),
)
other = st.one_of(
    st.tuples(st.sampled_from(["set", "add", "byte_max", "compare_and_clear"]), key, value),
    st.tuples(st.just("clear"), key),
    st.tuples(st.just("clear_range"), span),
    st.tuples(st.just("add_read_conflict_range"), span),
    st.tuples(st.just("add_write_conflict_range"), span),
    st.tuples(st.just("get"), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just("read_metadata"), st.booleans()),
    st.tuples(st.just("get_range"), span, st.integers(0, 3), st.booleans(), st.booleans()),
    st.tuples(st.just("get_key"), key, st.integers(-2, 2), st.booleans()),
    st.tuples(st.just("get_read_version")),
    st.tuples(
        st.just("option"),
        st.sampled_from(
            [
                "next_write_no_write_conflict_range",
                "snapshot_ryw_disable",
                "read_your_writes_disable",
                "bypass_unreadable",
                "access_system_keys",
            ]
        ),
    ),
)


class Twin:
    """One of two stores to which the same is done; the eager one places each versionstamped write at once."""

    def __init__(self, db: Database, eager: bool) -> None:
        self.db = db
        self.eager = eager
        db.transact(self._begin)
        # Has read everything before, each key and gap by itself, so it conflicts with whatever is written.
        self.readers = [db.create_transaction() for _ in range(2 * len(KEYS) + 1)]
        points = [b"", *(point for key in KEYS for point in (key, key + b"\0")), b"\xff"]
        for reader, bounds in zip(self.readers, itertools.pairwise(points), strict=True):
            list(reader.get_range(*bounds))
            reader.set(b"z", b"")
        self.tr = db.create_transaction()
        self.stamp = self.tr.get_versionstamp()

    def _begin(self, tr: Transaction) -> None:
        tr.clear_range(b"", b"\xff")
        for key in KEYS[::2]:
            tr.set(key, b"old")
        tr.set_versionstamped_value(_METADATA, bytes(14))

    def do(self, action: tuple[Any, ...]) -> Any:
        """Do one step; what came of it."""
        try:
            return self._do(self.tr, *action)
        except FDBError as error:
            return error.code
        finally:
            if self.eager:
                self.tr._state.writes.place_stamped()

    def _do(self, tr: Transaction, kind: str, *arguments: Any) -> Any:
        if kind == "option":
            return getattr(tr.options, f"set_{arguments[0]}")()
        if kind == "get":
            return (tr.snapshot if arguments[1] else tr).get(arguments[0]).value
        if kind == "read_metadata":
            return len((tr.snapshot if arguments[0] else tr).get(_METADATA).value or b"")
        if kind == "get_range":
            (begin, end), limit, reverse, snapshot = arguments
            found = (tr.snapshot if snapshot else tr).get_range(begin, end, limit, reverse)
            return [(row.key, row.value) for row in found]
        if kind == "get_key":
            first, offset, snapshot = arguments
            return (tr.snapshot if snapshot else tr).get_key(KeySelector(first, True, offset)).value
        if kind == "get_read_version":
            return tr.get_read_version().wait() > 0
        if kind == "get_approximate_size":
            return tr.get_approximate_size().wait()
        first, *rest = arguments[0] if isinstance(arguments[0], list) else arguments
        return getattr(tr, kind)(first, *rest)

    def commit(self) -> list[Any]:
        """Everything that shows after the commit, with nothing left of the stamp itself."""
        codes = [_outcome(tr.commit()) for tr in (self.tr, *self.readers)]
        stamp = self.stamp.value if self.tr.get_committed_version() > 0 else b""
        rows = [(row.key, row.value) for row in self.db.get_range(b"", b"\xff")]
        rows.append((_METADATA, b"<stamp>" if self.db.get(_METADATA) == stamp else b"as before"))
        if stamp:
            rows = [(key.replace(stamp, b"<stamp>"), value.replace(stamp, b"<stamp>")) for key, value in rows]
        return [codes, rows]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Database]]:
    folder = tmp_path_factory.mktemp("stamped")
    with (
        Database(folder / "noted.db", power_safe=False) as noted,
        Database(folder / "placed.db", power_safe=False) as placed,
    ):
        yield noted, placed


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(stamped, stamped, other), max_size=12))
def test_a_write_that_is_noted_is_one_that_found_its_place(
    stores: tuple[Database, Database], steps: list[tuple[Any, ...]]
) -> None:
    noted, placed = Twin(stores[0], eager=False), Twin(stores[1], eager=True)
    for step in steps:
        assert noted.do(step) == placed.do(step), step

    assert noted.do(("get_approximate_size",)) == placed.do(("get_approximate_size",))
    assert noted.commit() == placed.commit()


def _outcome(future: Any) -> Any:
    try:
        return future.wait()
    except FDBError as error:
        return error.code


def _break(tr: Transaction) -> None:
    tr.set(b"k" * 20_000, b"")


def test_a_stamp_of_a_transaction_that_cannot_commit_raises_its_error(db: Database) -> None:
    """Whether it was asked for before or after the write with the error; a watch as well."""
    tr = db.create_transaction()
    before, watch = tr.get_versionstamp(), tr.watch(b"a")
    _break(tr)
    futures: list[Any] = [before, watch, tr.get_versionstamp(), tr.commit()]

    assert all(future.is_ready() for future in futures)  # else the waits would not return
    assert [_outcome(future) for future in futures] == [2102] * 4
    tr.reset()
    tr.set(b"a", b"1")
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    assert len(stamp.value) == 10


def test_a_wrong_call_after_the_commit_leaves_its_stamp_alone(db: Database) -> None:
    tr = db.create_transaction()
    tr.options.set_used_during_commit_protection_disable()
    tr.set(b"a", b"1")
    stamp, commit = tr.get_versionstamp(), tr.commit()
    _break(tr)

    commit.wait()
    assert len(stamp.value) == 10
