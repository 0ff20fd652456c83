"""Rows of tables in Arrow's columns, for Parquet, pandas, Polars and DuckDB. Needs the package pyarrow.

| type | in Arrow |
|---|---|
| str, bytes, bool, float | string, binary, bool, float64 |
| int | int64; a larger number raises `NotInColumn` |
| datetime | timestamp in microseconds, in UTC |
| decimal | string: the type has no fixed number of digits |
| list, dict, set, any | string with JSON |

This module imports pyarrow when a function is called.
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
