"""Values of queues and tops in Arrow's columns, for Parquet, pandas, Polars and DuckDB. Needs the package pyarrow.

A function imports pyarrow when it is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cq.distribution import install_command
from cq.encoding.codec import brief, shown
from cq.encoding.columns import Column, Field, Row, columns
from cq.encoding.json_values import to_json
from cq.errors import MissingPackage, NotInColumn
from cq.observers.top.ranking import Ranking
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database
from cq.tables.rows import TableRows, queue_rows, top_rows

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final[dict[str, Callable[[Any], Any]]] = {
    "str": lambda pa: pa.string(),
    "bytes": lambda pa: pa.binary(),
    "bool": lambda pa: pa.bool_(),
    "float": lambda pa: pa.float64(),
    "int": lambda pa: pa.int64(),
    "datetime": lambda pa: pa.timestamp("us", tz="UTC"),
}
# Scores of a top may be ints or Decimals in a column of floats.
_CELLS: Final[dict[str, Callable[[Any], Any]]] = {"float": float, "decimal": str}


def to_arrow(db: Database, queue: CombineQueue[Any, Any] | str, *, limit: int | None = None) -> pa.Table:
    """The keys and last reported values of a queue as a `pyarrow.Table`, in memory.

    It has the columns `key` and `value`. A key of several parts has the columns `key_1`, `key_2` and so on. The types
    are those of the queue's configuration:

    | type of the queue | in Arrow |
    |---|---|
    | str, bytes, bool, float | string, binary, bool, float64 |
    | int | int64 |
    | datetime | timestamp in microseconds, in UTC |
    | decimal | string, because the type has no fixed number of digits |
    | list, dict, set, any | string with JSON |
    | sketches | a column for each of their numbers, such as `value_estimate` |

    The table is not one consistent snapshot: like `CombineQueue.scan`, each batch has the values at the time when it
    was read. Tasks of asyncio call `await db.call(to_arrow, "words")`.

    Args:
        db: a database of either store.
        queue: a queue, or its name.
        limit: the maximum number of keys, in no particular order; None: all keys.

    Raises:
        QueueNotConfigured: the queue does not exist.
        MissingPackage: pyarrow is not installed; the extra `arrow` has it.
        NotInColumn: a value does not fit into the type of its column, such as an int of more than 64 bits.
    """
    return _table(queue_rows(db, _handle(queue), limit))


def arrow_reader(
    db: Database, queue: CombineQueue[Any, Any] | str, *, limit: int | None = None
) -> pa.RecordBatchReader:
    """The keys and values of a queue as a `pyarrow.RecordBatchReader`, for queues that do not fit into memory.

    It reads a batch of up to 10,000 keys, or about 1 MB, when its user asks for it, each in a transaction of its own.
    It can be read once. Columns, arguments and errors are those of `to_arrow`; errors of a batch are raised when it is
    read. It blocks its thread, also in asyncio.
    """
    rows = queue_rows(db, _handle(queue), limit)
    reader = require_pyarrow().RecordBatchReader
    return reader.from_batches(schema(rows.fields), batches(rows.fields, rows.pages))


def top_to_arrow(
    db: Database,
    queue: Ranking[Any, Any] | str,
    limit: int | None = None,
    *,
    group: str | None = None,
    bottom: bool = False,
) -> pa.Table:
    """The keys and scores of a queue's top as a `pyarrow.Table`, the highest score first.

    It has the columns `key` (or `key_1`, `key_2` ...) and `score`. A score has the type of the queue's values, as in
    `to_arrow`, or is float64 if the application has a function for scores.

    Args:
        db: a database of either store.
        queue: a queue with a top, as its name or as a `Ranking`.
        limit: the maximum number of keys; None: all keys.
        group: the group to read, for a queue with groups.
        bottom: read the lowest score first.

    Raises:
        NotReady: workers are still building the top.
        InvalidConfiguration: the queue has no top, or it has groups and no group is given, or the other way round.
        QueueNotConfigured, MissingPackage, NotInColumn: as for `to_arrow`.
    """
    ranking: Ranking[Any, Any] = Ranking(queue) if isinstance(queue, str) else queue
    return _table(top_rows(db, ranking, limit, group=group, bottom=bottom))


def _table(rows: TableRows) -> pa.Table:
    made = schema(rows.fields)
    return require_pyarrow().Table.from_batches(list(batches(rows.fields, rows.pages)), made)


def _handle(queue: CombineQueue[Any, Any] | str) -> CombineQueue[Any, Any]:
    return CombineQueue(queue) if isinstance(queue, str) else queue


def require_pyarrow(module: str = "pyarrow") -> Any:
    """Import pyarrow, or a module of it; raises `MissingPackage`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackage(
            f"Arrow and Parquet need the package pyarrow: run `{install_command('arrow')}`"
        ) from error


def schema(fields: Sequence[Field]) -> pa.Schema:
    """The Arrow schema of rows with these fields; raises `MissingPackage`."""
    pa = require_pyarrow()
    return pa.schema([(each.name, _arrow_type(pa, each)) for each in columns(fields)])


def batches(fields: Sequence[Field], pages: Iterable[Sequence[Row]]) -> Iterator[pa.RecordBatch]:
    """One Arrow record batch for each page of rows.

    Raises:
        MissingPackage: pyarrow is not installed.
        NotInColumn: a value does not fit into the type of its column.
    """
    pa = require_pyarrow()
    made, arrow_schema = columns(fields), schema(fields)
    for page in pages:
        arrays = [_array(pa, each, page) for each in made]
        yield pa.record_batch(arrays, schema=arrow_schema)


def _array(pa: Any, column: Column, page: Sequence[Row]) -> Any:
    kind = _arrow_type(pa, column)
    convert = _CELLS.get(column.type) or (_json if column.type not in _TYPES else None)
    cells = [column.cell(row) for row in page]
    try:
        if convert:
            cells = [None if cell is None else convert(cell) for cell in cells]
        return pa.array(cells, kind)
    except (
        ValueError,
        TypeError,
        ArithmeticError,
    ) as error:  # pyarrow's own errors are ValueErrors or TypeErrors
        raise _not_in_column(pa, column, page) or error from None


def _not_in_column(pa: Any, column: Column, page: Sequence[Row]) -> NotInColumn | None:
    """The error for the first row whose cell does not fit into a column of its Arrow type."""
    convert = _CELLS.get(column.type, lambda cell: cell)
    for row in page:
        cell = column.cell(row)
        try:
            pa.scalar(None if cell is None else convert(cell), _arrow_type(pa, column))
        except (ValueError, TypeError, ArithmeticError):
            return NotInColumn(
                f"{shown(cell)}, in the row of {brief(row[0])}, does not fit into the column {column.name!r} of type "
                f"{_arrow_type(pa, column)}: CSV and JSON lines have no such limit"
            )
    return None


def _arrow_type(pa: Any, column: Column) -> Any:
    return _TYPES.get(column.type, _TYPES["str"])(pa)


def _json(value: Any) -> str:
    return json.dumps(to_json(value), ensure_ascii=False)
