"""Random interleaved transactions do what an independent model of FoundationDB's transactions does.

The model knows a dozen keys, and checks every read and every verdict. It shares nothing with the store: a transaction
is its snapshot and the list of its writes, a read replays that list, and what was read is a set of keys. The
transactions use two handles of the file, as two processes would.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq import runtime
from cq.store.embedded import Database, FDBError, Transaction
from tests.kit.clocks import Standing

KEYS = [b"a", b"a\x00", b"ab", b"b", b"b\xff", b"c", b"ca", b"d", b"e", b"f", b"f\x00\x00", b"g"]

Write = tuple[str, bytes, bytes]
State = dict[bytes, bytes]


def number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "little")


def within(begin: bytes, end: bytes) -> list[bytes]:
    """The keys of a range, and a point for each gap between them: ranges also meet where there is no key."""
    return [point for point in sorted({*KEYS, *(key + b"\x00" for key in KEYS)}) if begin <= point < end]


@dataclass
class ModelTransaction:
    store: Model
    snapshot: State | None = None
    read_commit: int = 0
    writes: list[Write] = field(default_factory=list)
    read: set[bytes] = field(default_factory=set)

    def see(self) -> State:
        """What it sees: its snapshot, if it has needed one yet, and its own writes."""
        state = dict(self.snapshot or {})
        for kind, first, second in self.writes:
            apply(state, kind, first, second)
        return state

    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        if not self._knows(key):
            self._note([key], snapshot)
        return self.see().get(key)

    def get_range(
        self, begin: bytes, end: bytes, limit: int, reverse: bool, snapshot: bool
    ) -> list[tuple[bytes, bytes]]:
        if not all(self._cleared(point) for point in within(begin, end)):
            self._begin()
        rows = sorted((k, v) for k, v in self.see().items() if begin <= k < end)
        rows = rows[::-1] if reverse else rows
        if limit and len(rows) >= limit:
            rows = rows[:limit]
            begin, end = (rows[-1][0], end) if reverse else (begin, rows[-1][0] + b"\x00")
        self._note([point for point in within(begin, end) if not self._knows(point)], snapshot)
        return rows

    def _begin(self) -> None:
        """Take the snapshot; what it knows from its own writes needs none."""
        if self.snapshot is None:
            self.snapshot, self.read_commit = dict(self.store.state), len(self.store.commits)

    def _note(self, keys: list[bytes], snapshot: bool) -> None:
        """Note what has been read of the snapshot."""
        if keys:
            self._begin()
        if not snapshot:
            self.read.update(keys)

    def _knows(self, key: bytes) -> bool:
        if any(kind in ("set", "clear") and first == key for kind, first, _ in self.writes):
            return True
        return self._cleared(key)

    def _cleared(self, key: bytes) -> bool:
        return any(kind == "clear_range" and first <= key < second for kind, first, second in self.writes)

    def commit(self) -> bool:
        """Whether it commits."""
        conflicting: set[bytes] = set().union(*self.store.commits[self.read_commit :])
        if self.writes and self.snapshot is not None and self.read & conflicting:
            return False
        written: set[bytes] = set()
        for kind, first, second in self.writes:
            apply(self.store.state, kind, first, second)
            written.update(within(first, second) if kind == "clear_range" else [first])
        if self.writes:
            self.store.commits.append(written)
        return True


@dataclass
class Model:
    state: State = field(default_factory=dict)
    commits: list[set[bytes]] = field(default_factory=list)

    def begin(self) -> ModelTransaction:
        return ModelTransaction(self)


def apply(state: State, kind: str, first: bytes, second: bytes) -> None:
    if kind == "set":
        state[first] = second
    elif kind == "clear":
        state.pop(first, None)
    elif kind == "clear_range":
        for key in within(first, second):
            state.pop(key, None)
    elif kind == "add":
        total = number(state.get(first, b"")[: len(second)]) + number(second)
        state[first] = (total % 256 ** len(second)).to_bytes(len(second), "little")
    elif kind == "byte_max":
        state[first] = max(state.get(first, second), second)
    elif kind == "append_if_fits":
        state[first] = state.get(first, b"") + second
    elif kind == "compare_and_clear" and state.get(first) == second:
        del state[first]


key = st.sampled_from(KEYS)
value = st.binary(max_size=3)
span = st.tuples(key, key).map(sorted)
write = st.one_of(
    st.tuples(st.just("set"), key, value),
    st.tuples(st.just("clear"), key),
    st.tuples(st.just("clear_range"), span),
    st.tuples(st.sampled_from(["add", "byte_max", "append_if_fits", "compare_and_clear"]), key, value),
)
read = st.one_of(
    st.tuples(st.just("get"), key, st.booleans()),
    st.tuples(st.just("get_range"), span, st.integers(0, 4), st.booleans(), st.booleans()),
)
step = st.tuples(st.integers(0, 2), st.one_of(write, read, read, st.tuples(st.just("commit"))))


class Pair:
    """One transaction of the store and its twin of the model."""

    def __init__(self, db: Database, model: Model) -> None:
        self.real: Transaction = db.create_transaction()
        self.twin: ModelTransaction = model.begin()

    def do(self, action: tuple[Any, ...]) -> bool:
        """Do one step in both; whether the transaction has ended."""
        kind, *arguments = action
        if kind == "commit":
            assert self._commits() == self.twin.commit()
            return True
        if kind == "get":
            self._get(*arguments)
        elif kind == "get_range":
            self._get_range(*arguments)
        else:
            self._write(kind, arguments)
        return False

    def _commits(self) -> bool:
        try:
            self.real.commit().wait()
        except FDBError as error:
            if error.code == 1020:
                return False
            raise
        return True

    def _get(self, key: bytes, snapshot: bool) -> None:
        reader = self.real.snapshot if snapshot else self.real
        assert reader.get(key).value == self.twin.get(key, snapshot)

    def _get_range(self, span: list[bytes], limit: int, reverse: bool, snapshot: bool) -> None:
        reader = self.real.snapshot if snapshot else self.real
        begin, end = span
        rows = [(row.key, row.value) for row in reader.get_range(begin, end, limit, reverse)]
        if begin < end:
            assert rows == self.twin.get_range(begin, end, limit, reverse, snapshot)
        else:
            assert rows == []

    def _write(self, kind: str, arguments: list[Any]) -> None:
        first, second = arguments[0] if kind == "clear_range" else [*arguments, b""][:2]
        if kind == "clear":
            self.real.clear(first)
        else:
            getattr(self.real, kind)(first, second)
        if kind != "clear_range" or first < second:
            self.twin.writes.append((kind, first, second))


_names = (f"{number}.db" for number in itertools.count())


@settings(max_examples=100, deadline=None)
@given(st.lists(step, max_size=40))
def test_interleaved_transactions_read_and_conflict_as_the_model_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, tuple[Any, ...]]]
) -> None:
    path = tmp_path_factory.getbasetemp() / next(_names)
    with (
        runtime.using(Standing()),
        Database(path, power_safe=False) as db,
        Database(path, power_safe=False) as other,
    ):
        model, handles = Model(), (db, other, db)
        pairs = [Pair(each, model) for each in handles]
        for number, action in steps:
            if pairs[number].do(action):
                pairs[number] = Pair(handles[number], model)
        for pair in pairs:
            pair.do(("commit",))
        assert [(row.key, row.value) for row in db.get_range(None, None)] == sorted(model.state.items())
