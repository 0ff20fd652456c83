"""What a reporting database has to offer: types, limits, locking, and how many rows go at once.

All statements are SQLAlchemy's: values are always parameters, and names quoted identifiers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import sqlalchemy as sa

from cq.encoding.codec import is_int64
from cq.encoding.json_values import to_json
from cq.errors import CqError

Row = Mapping[str, Any]

TABLES_REMEMBERED: Final = 64
"""How many tables of each kind are kept as they were described, by dialect: SQLAlchemy compiles anew for new ones."""

_PLAIN: Final = frozenset(("str", "int", "bytes", "bool", "float"))


class CannotConvert(CqError):
    """A key or a value that no column of this database can hold."""


class Dialect(ABC):
    """One kind of database.

    Attributes:
        name: SQLAlchemy's.
        locks_rows: whether `SELECT ... FOR UPDATE` is to be used; else a transaction locks the whole database.
        max_key_bytes: what an index takes of a primary key.
    """

    name: str
    locks_rows = True
    max_key_bytes: int | None = None

    # Types

    @abstractmethod
    def binary_text(self, length: int | None) -> sa.types.TypeEngine[Any]:
        """Text that is compared byte by byte; with a length, as a part of a primary key."""

    @abstractmethod
    def binary(self, length: int | None) -> sa.types.TypeEngine[Any]:
        """Bytes; with a length, as a part of a primary key."""

    @abstractmethod
    def value_types(self) -> Mapping[str, sa.types.TypeEngine[Any]]:
        """The column types of the types of values that are not those of keys."""

    @abstractmethod
    def time(self) -> sa.types.TypeEngine[Any]:
        """A moment, to the microsecond."""

    def key_length(self, parts: int) -> int | None:
        """How long a text or bytes can be that is one of so many parts of a primary key; None for no such limit."""
        return None

    def key_type(self, kind: str, parts: int) -> sa.types.TypeEngine[Any]:
        """The type of a column for a part of a key: of a str, an int or bytes."""
        if kind == "int":
            return sa.BigInteger()
        return (self.binary_text if kind == "str" else self.binary)(self.key_length(parts))

    def value_type(self, kind: str) -> sa.types.TypeEngine[Any]:
        """The type of a column for values of a queue's value type."""
        types: dict[str, sa.types.TypeEngine[Any]] = {
            "int": sa.BigInteger(),
            "bool": sa.Boolean(),
            "datetime": self.time(),
            **self.value_types(),
        }
        return types.get(kind, types["json"])

    # Values

    def to_sql(self, kind: str, value: Any) -> Any:
        """A part of a key, or a value, as a parameter; raises `CannotConvert`."""
        if kind in _PLAIN:
            return self.checked(value)
        match kind:
            case "decimal":
                return self.decimal(value)
            case "datetime":
                return self.moment(value)
            case _:
                return self.json(to_json(value))

    def checked(self, value: Any) -> Any:
        """The value itself, unless it is one that this database cannot hold."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int) and not is_int64(value):
            raise CannotConvert(f"an integer of {value.bit_length()} bits exceeds the 64 bits of a BIGINT")
        if isinstance(value, float):
            return self.number(value)
        return value

    def text(self, value: str) -> str:
        """A text, if it is one."""
        try:
            if not value.isascii():
                value.encode()
        except UnicodeEncodeError as error:
            raise CannotConvert(f"a text that is not Unicode: {error.reason}") from None
        return value

    def number(self, value: float) -> float:
        """A float, if the database can hold it."""
        if not isfinite(value):
            raise CannotConvert(f"{self.name} has no {value} among its numbers")
        return value

    def decimal(self, value: Decimal) -> Any:
        """A Decimal, if the database can hold it."""
        if not value.is_finite():
            raise CannotConvert(f"{self.name} has no {value} among its numbers")
        return value

    def moment(self, value: datetime) -> Any:
        """A moment in UTC."""
        return value.astimezone(UTC)

    def json(self, plain: Any) -> Any:
        """What JSON can carry."""
        self.text(json.dumps(plain, ensure_ascii=False))
        return plain

    def check_key(self, parts: Sequence[Any]) -> None:
        """Raises `CannotConvert` for a key that the primary key's index does not take."""
        most = self.max_key_bytes
        if most is None:
            return
        texts = [part for part in parts if isinstance(part, (str, bytes))]
        if 4 * sum(map(len, texts)) <= most:
            return  # a character has at most four bytes
        size = sum(len(text.encode() if isinstance(text, str) else text) for text in texts)
        if size > most:
            raise CannotConvert(f"a key of {size:,} bytes exceeds the {most:,} of {self.name}'s index")

    # Statements

    @abstractmethod
    def insert(self, table: sa.Table) -> Any:
        """The dialect's own INSERT."""

    @abstractmethod
    def insert_if_missing(self, table: sa.Table, row: Row) -> sa.Executable:
        """Insert a row unless one of its primary key is there; waits for whoever is inserting it."""

    @abstractmethod
    def upsert(self, conn: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
        """Insert rows, or update those that are there by their primary keys; each occurs once."""

    @abstractmethod
    def delete(self, conn: sa.Connection, table: sa.Table, keys: Sequence[Row]) -> None:
        """Delete the rows of these primary keys."""

    def collations(self, conn: sa.Connection, table: sa.Table) -> dict[str, str]:
        """{column: collation} of a table that is there, as far as the database says."""
        found = sa.inspect(conn).get_columns(table.name, schema=table.schema)
        types = {column["name"]: column["type"] for column in found}
        return {
            name: of.collation for name, of in types.items() if isinstance(of, sa.String) and of.collation
        }

    def is_same_collation(self, expected: str, found: str) -> bool:
        """Whether two names of collations compare in the same way."""
        return expected == found

    def hold_table(self, conn: sa.Connection, name: str, *, alone: bool) -> bool:
        """Hold a table of this name until the transaction ends, with others or alone; False where to lock its row.

        Whoever waits to hold it alone comes before those who ask later.
        """
        return False

    def begin(self, conn: sa.Connection) -> None:  # noqa: B027 - not every dialect has something to set
        """Set what a transaction that reports needs, as its first statement."""


def on_conflict_update(statement: Any, table: sa.Table) -> sa.Executable:
    """The INSERT of PostgreSQL or SQLite, made an upsert."""
    others = {
        column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key
    }
    upsert: sa.Executable = statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns), set_=others
    )
    return upsert
