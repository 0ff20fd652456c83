"""Random interleaved transactions do what an independent model of FoundationDB's transactions does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cq import runtime
from cq.store.embedded import Database, FDBError, Transaction
from tests.kit.clocks import Standing
from tests.store.embedded.model import KEYS, Model, ModelTransaction

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
    with runtime.using(Standing()), Database(path, power_safe=False) as db:
        model = Model()
        pairs = [Pair(db, model) for _ in range(3)]
        for number, action in steps:
            if pairs[number].do(action):
                pairs[number] = Pair(db, model)
        for pair in pairs:
            pair.do(("commit",))
        assert [(row.key, row.value) for row in db.get_range(None, None)] == sorted(model.state.items())
