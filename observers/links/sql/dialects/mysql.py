"""MySQL and MariaDB as reporting databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from cq.encoding.codec import brief
from cq.observers.links.sql.dialects.dialect import CannotConvert, ColumnValues, Dialect, Row, rows_of

_ENGINE: Final = "InnoDB"
_MAX_DIGITS: Final = 1_000  # more than a DOUBLE has


class Mysql(Dialect):
    """MySQL 8.0.17, MariaDB 10.6 and newer.

    Args:
        is_mariadb: selects the name of the collation that compares bytes, including trailing spaces.
    """

    name = "mysql"
    max_key_bytes = 3_072
    # The server's default can be an engine without transactions. SQLAlchemy reads the option of the URL's dialect.
    table_options: Mapping[str, Any] = MappingProxyType({"mysql_engine": _ENGINE, "mariadb_engine": _ENGINE})
    _ROWS: Final = 1_000  # maximum for one statement

    def __init__(self, *, is_mariadb: bool = False) -> None:
        self._collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"

    def key_length(self, parts: int) -> int | None:
        return self.max_key_bytes // 4 // parts

    def binary_text(self, length: int | None) -> sa.types.TypeEngine[Any]:
        if length is None:
            return mysql.LONGTEXT(charset="utf8mb4", collation=self._collation)
        return mysql.VARCHAR(length, charset="utf8mb4", collation=self._collation)

    def binary(self, length: int | None) -> sa.types.TypeEngine[Any]:
        return mysql.LONGBLOB() if length is None else mysql.VARBINARY(length)

    def value_types(self) -> Mapping[str, sa.types.TypeEngine[Any]]:
        return {
            "str": self.binary_text(None),
            "bytes": mysql.LONGBLOB(),
            "float": mysql.DOUBLE(asdecimal=False),
            "decimal": mysql.DECIMAL(65, 30),
            "json": mysql.JSON(),
        }

    def time(self) -> sa.types.TypeEngine[Any]:
        return mysql.DATETIME(fsp=6)

    def decimal(self, value: Decimal) -> Any:
        value = _in_digits(super().decimal(value))
        if value.adjusted() >= 35 or value.as_tuple().exponent < -30:  # type: ignore[operator]
            raise CannotConvert(f"{brief(value)} exceeds the 35 and 30 digits of a DECIMAL(65, 30)")
        return value

    def checked(self, values: Sequence[Any]) -> Sequence[Any]:
        finite = super().decimal
        if any(isinstance(value, Decimal) for value in values):
            values = [_in_digits(finite(each)) if isinstance(each, Decimal) else each for each in values]
        return super().checked(values)

    def moment(self, value: datetime) -> Any:
        return super().moment(value).replace(tzinfo=None)

    def check_key(self, parts: Sequence[Any]) -> None:
        limit = self.key_length(len(parts)) or 0
        longest = max((len(part) for part in parts if isinstance(part, str | bytes)), default=0)
        if longest > limit:
            raise CannotConvert(f"a part of a key of length {longest:,} exceeds the {limit:,} of its column")

    def engine_without_transactions(self, conn: sa.Connection, table: sa.Table) -> str | None:
        options = sa.inspect(conn).get_table_options(table.name, schema=table.schema)
        engine: str | None = options.get(f"{conn.dialect.name}_engine")
        return None if engine == _ENGINE else engine

    def insert_if_missing(self, table: sa.Table, row: Row) -> sa.Executable:
        # Not INSERT IGNORE, which ignores errors of all kinds, also wrong values.
        column = next(iter(table.primary_key.columns))
        return mysql.insert(table).values(row).on_duplicate_key_update({column.name: column})

    def upsert(self, conn: sa.Connection, table: sa.Table, columns: ColumnValues, same: Row) -> None:
        rows = [{**row, **same} for row in rows_of(columns)]
        for start in range(0, len(rows), self._ROWS):
            statement = mysql.insert(table).values(rows[start : start + self._ROWS])
            others = {
                column.name: statement.inserted[column.name]
                for column in table.columns
                if not column.primary_key
            }
            conn.execute(statement.on_duplicate_key_update(others))

    def delete(self, conn: sa.Connection, table: sa.Table, keys: ColumnValues) -> None:
        columns = list(table.primary_key.columns)
        wanted = list(zip(*(keys[column.name] for column in columns), strict=True))
        for start in range(0, len(wanted), self._ROWS):
            given = sa.tuple_(*columns).in_(wanted[start : start + self._ROWS])
            conn.execute(sa.delete(table).where(given))


def _in_digits(value: Decimal) -> Decimal:
    """A number that the driver can write; raises `CannotConvert`.

    It writes all zeros for which an exponent stands: of 0E-999999999 a gigabyte.
    """
    if not value:
        return Decimal(0)
    if value.adjusted() >= _MAX_DIGITS or value.as_tuple().exponent < -_MAX_DIGITS:  # type: ignore[operator]
        raise CannotConvert(f"{brief(value)} has more than {_MAX_DIGITS:,} digits before or after the point")
    return value
