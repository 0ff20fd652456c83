"""The definition of an exported table: its columns, and the conversion of keys and values to rows.

By default a table has the columns `key` (`key_1`, `key_2` ... for tuples), `value`, `sequence` and `updated_at`. For a
queue of sketches, columns of numbers replace `value`. An application can declare its own columns for key and value; cq
adds `sequence` (of the entry that wrote the row) and `updated_at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

from cq.encoding.codec import KeyType, ValueType, brief
from cq.encoding.sketches import Sketch
from cq.errors import InvalidConfiguration, InvalidData
from cq.keys.link import SEQUENCE_BYTES
from cq.observers.links.log import LinkEntry
from cq.observers.links.spec import check_identifier
from cq.observers.links.sql.dialects.dialect import TABLES_REMEMBERED, CannotConvert, ColumnValues, Dialect

SEQUENCE: Final = "sequence"
UPDATED_AT: Final = "updated_at"

Types = Mapping[str, sa.types.TypeEngine[Any]]


class DefaultLayout:
    """The default columns for a queue's types, and their contents."""

    def __init__(self, key: KeyType, value: ValueType) -> None:
        self._key, self._value = key, value
        parts = range(1, len(key.parts) + 1)
        self._names = [f"key_{part}" for part in parts] if key.is_tuple else ["key"]

    def key_types(self, dialect: Dialect) -> Types:
        """{column: type} of the primary key."""
        parts = self._key.parts
        return {
            name: dialect.key_type(kind, len(parts)) for name, kind in zip(self._names, parts, strict=True)
        }

    def value_types(self, dialect: Dialect) -> Types:
        """{column: type} of the other columns, without `sequence` and `updated_at`."""
        if (sketch := self._value.sketch) is not None:
            return {name: dialect.value_type(kind) for name, kind in sketch.column_types().items()}
        return {"value": dialect.value_type(self._value.name)}

    def key_columns(self, dialect: Dialect, keys: Sequence[Any]) -> ColumnValues:
        """The columns of the primary key, for at least one key; raises `CannotConvert`."""
        parts = [keys]
        if self._key.is_tuple:
            for key in keys:
                if not isinstance(key, tuple) or len(key) != len(self._names):
                    raise CannotConvert(f"the key {key!r} is not of the type {self._key}")
            parts = list(zip(*keys, strict=True))
        columns = [dialect.to_sql(kind, part) for kind, part in zip(self._key.parts, parts, strict=True)]
        dialect.check_keys(columns)
        return dict(zip(self._names, columns, strict=True))

    def value_columns(self, dialect: Dialect, keys: Sequence[Any], values: Sequence[Any]) -> ColumnValues:
        """The other columns, without `sequence` and `updated_at`; raises `CannotConvert`."""
        sketch = self._value.sketch
        if sketch is None:
            return {"value": dialect.to_sql(self._value.name, values)}
        return _columns(dialect, map(_numbers, values), sketch.column_types())

    def key_of(self, row: Mapping[str, Any]) -> Any:
        """The key of a row, from the columns of its primary key; None if the layout cannot derive it."""
        parts = columns_of(row, self._names)
        return parts if self._key.is_tuple else parts[0]


def _numbers(value: Any) -> dict[str, Any]:
    """The columns of a sketch; raises `CannotConvert`."""
    if not isinstance(value, Sketch):
        raise CannotConvert(f"expected a sketch, got: {brief(value)}")
    try:
        return value.columns()
    except InvalidData as error:  # damaged
        raise CannotConvert(str(error)) from None


class Columns:
    """Columns declared by an application.

    Args:
        key: {column: SQLAlchemy type} of the primary key. Texts are compared byte by byte, unless the type names
            a collation.
        value: {column: SQLAlchemy type} of the other columns, not named `sequence` or `updated_at`.
        key_row: converts a key to {column: value} of the primary key. Different keys must give different primary keys.
        value_row: converts key and value to {column: value} of the other columns.
        key_of: converts {column: value} of the primary key back to the key. With it, `cq link verify` finds rows of
            keys without a value.

    If one of the functions raises an error, the entry is set aside with it.
    """

    def __init__(
        self,
        *,
        key: Types,
        value: Types,
        key_row: Callable[[Any], Mapping[str, Any]],
        value_row: Callable[[Any, Any], Mapping[str, Any]],
        key_of: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> None:
        taken = {SEQUENCE, UPDATED_AT} & (key.keys() | value.keys()) | key.keys() & value.keys()
        if not key or taken:
            raise InvalidConfiguration(
                f"expected columns for the key, and names that are not taken, got: {sorted(taken) or 'no key'}"
            )
        self._types = dict(key), dict(value)
        self._key_row, self._value_row, self._key_of = key_row, value_row, key_of

    def key_types(self, dialect: Dialect) -> Types:
        return {name: _compared_by_bytes(of, dialect) for name, of in self._types[0].items()}

    def value_types(self, dialect: Dialect) -> Types:
        return self._types[1]

    def key_columns(self, dialect: Dialect, keys: Sequence[Any]) -> ColumnValues:
        columns = _columns(dialect, _called(self._key_row, keys), self._types[0])
        dialect.check_keys(list(columns.values()))
        return columns

    def value_columns(self, dialect: Dialect, keys: Sequence[Any], values: Sequence[Any]) -> ColumnValues:
        return _columns(dialect, _called(self._value_row, keys, values), self._types[1])

    def key_of(self, row: Mapping[str, Any]) -> Any:
        return None if self._key_of is None else self._key_of(row)


Layout = DefaultLayout | Columns
"""The columns of a table for key and value, and their contents."""


@dataclass(frozen=True)
class TableDefinition:
    """A table to export to: its name, its columns, and its schema (None: the default one).

    Raises `InvalidConfiguration` for a name that some database does not accept.
    """

    name: str
    layout: Layout
    schema: str | None = None

    def __post_init__(self) -> None:
        for name in (self.name, self.schema):
            if name is not None:
                check_identifier(name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def table(self, dialect: Dialect) -> sa.Table:
        """The table in the types of a dialect; statements quote its names."""
        return _table(self, dialect)

    def columns(self, dialect: Dialect, entries: Sequence[LinkEntry]) -> tuple[ColumnValues, ColumnValues]:
        """The columns of the rows to upsert, without `updated_at`, and of the primary keys to delete.

        If several entries have the same primary key, the last one counts. Raises `CannotConvert`.
        """
        if not entries:
            return {}, {}
        keys = self.layout.key_columns(dialect, [entry.key for entry in entries])
        last = dict(zip(zip(*keys.values(), strict=True), entries, strict=True))
        deletes = [key for key, entry in last.items() if entry.value is None]
        columns = dict(keys)
        if deletes or len(last) < len(entries):  # else the columns of the keys are those of the rows
            upserts = {key: entry for key, entry in last.items() if entry.value is not None}
            columns, entries = _transposed(keys, upserts), list(upserts.values())
        if entries:
            columns |= self.layout.value_columns(
                dialect, [entry.key for entry in entries], [entry.value for entry in entries]
            )
            columns[SEQUENCE] = [entry.sequence for entry in entries]
        return columns, _transposed(keys, deletes)


@lru_cache(maxsize=TABLES_REMEMBERED)
def _table(definition: TableDefinition, dialect: Dialect) -> sa.Table:
    """The table, cached so that SQLAlchemy compiles statements about it once."""
    layout = definition.layout
    columns = [
        sa.Column(_quoted(name), of, primary_key=True, autoincrement=False)
        for name, of in layout.key_types(dialect).items()
    ]
    columns += [
        sa.Column(_quoted(name), of, nullable=isinstance(layout, Columns))
        for name, of in layout.value_types(dialect).items()
    ]
    columns += [
        sa.Column(_quoted(SEQUENCE), dialect.binary(SEQUENCE_BYTES), nullable=False),
        sa.Column(_quoted(UPDATED_AT), dialect.time(), nullable=False),
    ]
    schema = None if definition.schema is None else _quoted(definition.schema)
    return sa.Table(_quoted(definition.name), sa.MetaData(), *columns, schema=schema, **dialect.table_options)


def same(expected: Any, found: Any) -> bool:
    """Whether the value of a column, as a driver returns it, equals the expected one."""
    if isinstance(found, memoryview):
        found = bytes(found)
    match expected, found:
        case dict(), dict():
            return expected.keys() == found.keys() and all(
                same(value, found[key]) for key, value in expected.items()
            )
        case list(), list():
            return len(expected) == len(found) and all(map(same, expected, found))
        case (Decimal(), _) | (_, Decimal()):
            return bool(_decimal(expected) == _decimal(found))
        case float(), float() if math.isnan(expected):
            return math.isnan(found)
        case float(), int():
            return _as_float(found) == expected  # a JSON number without a fraction
    agrees: bool = expected == found
    return agrees


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _decimal(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) and value.is_nan() else value


def _quoted(name: str) -> Any:
    return sa.sql.quoted_name(name, quote=True)


def _compared_by_bytes(of: sa.types.TypeEngine[Any], dialect: Dialect) -> sa.types.TypeEngine[Any]:
    if isinstance(of, sa.String) and of.collation is None:
        binary = dialect.binary_text(of.length)
        collation = getattr(binary, "collation", None)
        return sa.String(of.length, collation=collation) if of.length else binary
    return of


def _called(function: Callable[..., Mapping[str, Any]], *args: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    try:
        yield from map(function, *args)
    except Exception as error:
        raise CannotConvert(f"{type(error).__name__}: {error}") from error


def _columns(
    dialect: Dialect, rows: Iterable[Mapping[str, Any]], names: Collection[str]
) -> dict[str, Sequence[Any]]:
    """The columns of rows, which must have these names; raises `CannotConvert`."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        if row.keys() != columns.keys():
            raise CannotConvert(f"expected the columns {', '.join(names)}, got: {', '.join(row)}")
        for name, value in row.items():
            columns[name].append(value)
    return {name: dialect.checked(values) for name, values in columns.items()}


def _transposed(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The columns of rows; empty if there are none."""
    return dict(zip(names, zip(*rows, strict=True), strict=False))


def columns_of(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """The values of some columns of a row, as a tuple, with the bytes of views that some drivers return."""
    values = (row[name] for name in names)
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in values)
