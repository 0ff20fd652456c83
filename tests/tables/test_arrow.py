"""Queues and tops in Arrow's columns."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pyarrow as pa
import pytest

import cq
import cq.aio
from cq.encoding import columns
from cq.encoding.codec import ValueType
from cq.encoding.columns import Column, Field
from cq.errors import MissingPackage, NotInColumn
from cq.observers.top.index import top
from cq.tables import arrow_reader, rows, to_arrow, top_to_arrow
from cq.tables.arrow import batches
from cq.testing import drain
from tests.kit.processes import run_code


@pytest.fixture
def words(db: Any, name: str) -> Any:
    """A queue with a top and five values."""
    queue = cq.configure(db, name, observers=[top()])
    queue.add_now(db, {f"word {number}": number for number in range(1, 6)})
    drain(db, name)
    return queue


def test_a_queue_is_a_table(db: Any, name: str, words: Any) -> None:
    table = to_arrow(db, words)

    assert table.schema == pa.schema([("key", pa.string()), ("value", pa.int64())])
    assert dict(zip(*table.to_pydict().values(), strict=True)) == dict(words.scan(db))
    assert to_arrow(db, name, limit=2).num_rows == 2
    assert to_arrow(db, name, limit=0).schema == table.schema


def test_a_reader_reads_page_by_page(db: Any, name: str, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PAGE_ROWS", 2)

    reader = arrow_reader(db, words)
    first = reader.read_next_batch()
    words.add_now(db, {f"word {number}": 10 for number in range(1, 6)})
    drain(db, name)
    rest = list(reader)

    assert [batch.num_rows for batch in (first, *rest)] == [2, 2, 1]
    assert max(first.column("value").to_pylist()) < 10
    assert min(value for batch in rest for value in batch.column("value").to_pylist()) > 10


@pytest.mark.usefixtures("words")
def test_a_top_is_a_table(db: Any, name: str) -> None:
    assert top_to_arrow(db, name, 2).to_pylist() == [
        {"key": "word 5", "score": 5},
        {"key": "word 4", "score": 4},
    ]
    assert top_to_arrow(db, name, 1, bottom=True).to_pylist() == [{"key": "word 1", "score": 1}]


def test_an_int_of_more_than_64_bits_is_an_error(db: Any, name: str, words: Any) -> None:
    words.add_now(db, {"large": -1 - (1 << 63)})
    drain(db, name)

    with pytest.raises(
        NotInColumn, match="in the row of 'large', does not fit into the column 'value' of type int64"
    ):
        to_arrow(db, words)
    with pytest.raises(NotInColumn):
        arrow_reader(db, words).read_all()


def test_a_type_of_values_can_have_several_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Column("low", "int", min), Column("high", "float", max)
    monkeypatch.setitem(columns.PARTS, "list", parts)

    (batch,) = batches([Field("value", ValueType("list"))], [[([1, 2],), (None,)]])

    assert batch.schema == pa.schema([("value_low", pa.int64()), ("value_high", pa.float64())])
    assert batch.to_pylist() == [{"value_low": 1, "value_high": 2.0}, {"value_low": None, "value_high": None}]


@pytest.mark.usefixtures("words")
def test_a_task_gets_a_table(db: Any, name: str) -> None:
    table = asyncio.run(cq.aio.AsyncDatabase(db).call(to_arrow, name))

    assert table.num_rows == 5


@pytest.mark.usefixtures("words")
def test_without_pyarrow_the_error_names_the_extra(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    for read in (to_arrow, arrow_reader, top_to_arrow):
        with pytest.raises(MissingPackage, match=r"pip install 'combine-queue\[arrow\]'"):
            read(db, name)


def test_the_import_of_tables_imports_no_pyarrow() -> None:
    program = "import sys, cq.tables; sys.exit('pyarrow' in sys.modules)"

    assert run_code(program).status == 0
