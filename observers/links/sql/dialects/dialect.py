"""The interface of a kind of reporting database: types, limits, locking, and statements for many rows.

SQLAlchemy makes all statements: values are always parameters, and names are quoted identifiers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa

from cq.encoding.codec import brief, is_int64
from cq.encoding.json_values import to_json
from cq.errors import CqError

Row = Mapping[str, Any]
ColumnValues = Mapping[str, Sequence[Any]]
"""{column: its values in all rows of a statement}."""

ANSWER_SECONDS: Final = 300
"""How long a driver waits for the next bytes of a server that hangs."""
TABLES_REMEMBERED: Final = 64
"""Size of each cache of tables. SQLAlchemy compiles the statements of a new table object again."""

_PLAIN: Final = frozenset(("str", "int", "bytes", "bool", "float"))


class CannotConvert(CqError):
    """A key or a value that this database cannot store."""


class Dialect(ABC):
    """One kind of database.

    Attributes:
        name: the name of SQLAlchemy's dialect.
        locks_rows: whether to use `SELECT ... FOR UPDATE`; if not, a transaction locks the whole database.
        max_key_bytes: maximum size of a primary key in an index; None: no limit.
        table_options: further arguments of every `sa.Table` that cq creates.
    """

    name: str
    locks_rows = True
    max_key_bytes: int | None = None
    table_options: Mapping[str, Any] = MappingProxyType({})

    # Types

    @abstractmethod
    def binary_text(self, length: int | None) -> sa.types.TypeEngine[Any]:
        """The type of text compared byte by byte; with a length, for a part of a primary key."""

    @abstractmethod
    def binary(self, length: int | None) -> sa.types.TypeEngine[Any]:
        """The type of bytes; with a length, for a part of a primary key."""

    @abstractmethod
    def value_types(self) -> Mapping[str, sa.types.TypeEngine[Any]]:
        """{value type of a queue: column type}, for the types that differ between databases."""

    @abstractmethod
    def time(self) -> sa.types.TypeEngine[Any]:
        """The type of a time, to the microsecond."""

    def key_length(self, parts: int) -> int | None:
        """Maximum length of a text or bytes in a primary key of `parts` parts; None: no limit."""
        return None

    def key_type(self, kind: str, parts: int) -> sa.types.TypeEngine[Any]:
        """The column type of a part of a key: `kind` is str, int or bytes."""
        if kind == "int":
            return sa.BigInteger()
        return (self.binary_text if kind == "str" else self.binary)(self.key_length(parts))

    def value_type(self, kind: str) -> sa.types.TypeEngine[Any]:
        """The column type of a queue's value type."""
        types: dict[str, sa.types.TypeEngine[Any]] = {
            "int": sa.BigInteger(),
            "bool": sa.Boolean(),
            "datetime": self.time(),
            **self.value_types(),
        }
        return types.get(kind, types["json"])

    # Values

    def to_sql(self, kind: str, values: Sequence[Any]) -> Sequence[Any]:
        """Convert parts of keys, or values, of a kind to the parameters of a column; raises `CannotConvert`."""
        match kind:
            case "decimal":
                return list(map(self.decimal, values))
            case "datetime":
                return list(map(self.moment, values))
            case kind if kind in _PLAIN:
                return self.checked(values)
            case _:
                return [self.json(to_json(value)) for value in values]

    def checked(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of a column; raises `CannotConvert` if this database cannot store one of them."""
        types = set(map(type, values))
        if types == {str}:
            self.text(
                "".join(values)
            )  # one search in C for all of them: no text becomes valid by the next one
        elif types == {int}:
            self._check((min(values), max(values)))
        else:
            self._check(values)
        return values

    def _check(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, str):
                self.text(value)
            elif isinstance(value, int) and not is_int64(value):
                raise CannotConvert(f"the integer {brief(value)} exceeds the 64 bits of a BIGINT")
            elif isinstance(value, float):
                self.number(value)

    def text(self, value: str) -> str:
        """Return a text; raises `CannotConvert` if the database cannot store it."""
        try:
            if not value.isascii():
                value.encode()
        except UnicodeEncodeError as error:
            raise CannotConvert(f"a text that is not Unicode: {error.reason}") from None
        return value

    def number(self, value: float) -> float:
        """Return a float; raises `CannotConvert` if the database cannot store it."""
        if not isfinite(value):
            raise CannotConvert(f"{self.name} cannot store the number {value}")
        return value

    def decimal(self, value: Decimal) -> Any:
        """Convert a Decimal; raises `CannotConvert` if the database cannot store it."""
        if not value.is_finite():
            raise CannotConvert(f"{self.name} cannot store the number {value}")
        return value

    def moment(self, value: datetime) -> Any:
        """Convert a time to UTC, in the type of `time`; raises `CannotConvert` if it has no year there."""
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise CannotConvert(f"the time {value} is not in the years 1 to 9999 in UTC") from None

    def json(self, plain: Any) -> Any:
        """Convert a value that JSON can encode."""
        self.text(json.dumps(plain, ensure_ascii=False))
        return plain

    def check_keys(self, columns: Sequence[Sequence[Any]]) -> None:
        """Raise `CannotConvert` if one of the keys, given by columns, is too large for the primary key's index."""
        most = self.max_key_bytes
        if most is None:
            return
        texts = (part for column in columns for part in column if isinstance(part, (str, bytes)))
        # UTF-8 has at most four bytes for a character: short keys need no encoding.
        if 4 * len(columns) * max(map(len, texts), default=0) > most:
            for parts in zip(*columns, strict=True):
                self.check_key(parts)

    def check_key(self, parts: Sequence[Any]) -> None:
        """Raise `CannotConvert` for a key that is too large for the primary key's index."""
        most = self.max_key_bytes
        if most is None:
            return
        texts = [part for part in parts if isinstance(part, (str, bytes))]
        size = sum(len(text.encode() if isinstance(text, str) else text) for text in texts)
        if size > most:
            raise CannotConvert(f"a key of {size:,} bytes exceeds the {most:,} of {self.name}'s index")

    # Statements

    @abstractmethod
    def insert_if_missing(self, table: sa.Table, row: Row) -> sa.Executable:
        """The statement that inserts a row unless its primary key exists; it waits for another insert of that key."""

    @abstractmethod
    def upsert(self, conn: sa.Connection, table: sa.Table, columns: ColumnValues, same: Row) -> None:
        """Insert rows, or update existing ones by primary key.

        Args:
            columns: the columns of the rows; the primary keys must be distinct.
            same: the other columns, which have the same value in all rows.
        """

    @abstractmethod
    def delete(self, conn: sa.Connection, table: sa.Table, keys: ColumnValues) -> None:
        """Delete the rows with these primary keys, given by columns."""

    def collations(self, conn: sa.Connection, table: sa.Table) -> dict[str, str]:
        """Read {column: collation} of an existing table, for the columns whose collation the database reports."""
        found = sa.inspect(conn).get_columns(table.name, schema=table.schema)
        collations = {column["name"]: getattr(column["type"], "collation", None) for column in found}
        return {name: collation for name, collation in collations.items() if collation}

    def engine_without_transactions(self, conn: sa.Connection, table: sa.Table) -> str | None:
        """Read the storage engine of an existing table if it has no transactions; None: it has."""
        return None

    def begin(self, conn: sa.Connection) -> None:  # noqa: B027 - not every dialect has options to set
        """Set the options of an exporting transaction, in its first statement."""


def rows_of(columns: ColumnValues) -> list[dict[str, Any]]:
    """The rows with these columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def on_conflict_update(statement: Any, table: sa.Table) -> sa.Executable:
    """Make an upsert of an INSERT of PostgreSQL or SQLite."""
    others = {
        column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key
    }
    upsert: sa.Executable = statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns), set_=others
    )
    return upsert
