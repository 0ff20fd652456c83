"""The choice of a dialect by the kind of the reporting database."""

from __future__ import annotations

import sqlalchemy as sa

from cq.errors import InvalidConfiguration
from cq.observers.sql.dialects.dialect import Dialect
from cq.observers.sql.dialects.mysql import Mysql
from cq.observers.sql.dialects.postgresql import Postgresql
from cq.observers.sql.dialects.sqlite import Sqlite


def dialect_of(engine: sa.Engine) -> Dialect:
    """The dialect of a database; raises `InvalidConfiguration` for a kind that cq does not support."""
    match engine.dialect.name:
        case "postgresql":
            return Postgresql()
        case "sqlite":
            return Sqlite()
        case "mysql" | "mariadb":
            return Mysql(is_mariadb=bool(getattr(engine.dialect, "is_mariadb", False)))
        case other:
            raise InvalidConfiguration(
                f"expected a URL of postgresql, sqlite, mysql or mariadb for the reporting database, got: {other}"
            )
