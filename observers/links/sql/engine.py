"""The reporting database and its connections. Its URL comes from the environment; cq never stores or shows it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, quote_plus

import sqlalchemy as sa
from sqlalchemy import event, exc

from cq.distribution import install_command
from cq.errors import CqError, InvalidConfiguration, MissingDriver
from cq.observers.links.spec import TABLE_ENV, read_variable
from cq.observers.links.sql.dialects.dialect import ANSWER_SECONDS, Dialect
from cq.observers.links.sql.dialects.mysql import Mysql
from cq.observers.links.sql.dialects.postgresql import Postgresql, prepare_psycopg
from cq.observers.links.sql.dialects.sqlite import Sqlite
from cq.observers.links.target import CannotSend, LinkFailed

_MASK: Final = "***"
_SECRET: Final = re.compile("pass|pwd|secret|token", re.IGNORECASE)
_NO_SECRET: Final = frozenset({"passfile"})  # libpq's path to a password file
BUSY_SECONDS: Final = 30
CONNECT_SECONDS: Final = 10
_READ_ONLY: Final = "cq_read_only"
# A thread that waits for an answer notices that the server or the network has vanished: else it would wait for hours.
_POSTGRESQL: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_MYSQL: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "write_timeout": ANSWER_SECONDS,
    "charset": "utf8mb4",
}
_DRIVERS: Final = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_PACKAGES: Final = {"psycopg": "postgresql", "pymysql": "mysql"}
# The SQLSTATE classes of errors about data: invalid data, violated constraints, exceeded limits.
_DATA_STATES: Final = ("22", "23", "54")
_NO_TABLE: Final = ("42P01", 1146)  # the SQLSTATE of PostgreSQL, the number of MySQL
_VALUE_ERRORS: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
_PARAMETER_ERRORS: Final = (TypeError, ValueError, LookupError, OSError)  # OSError: for a certificate file
# The messages of the drivers of SQLite and PostgreSQL for a value of an unknown type.
_REFUSALS: Final = ("error binding parameter", "cannot adapt")


class Secrets:
    """The passwords in a URL: before the host, and in parameters such as `password` and `sslpassword`.

    Args:
        url: the URL of the reporting database.
    """

    def __init__(self, url: sa.URL) -> None:
        found = {str(url.password)} if url.password else set[str]()
        for name, value in url.query.items():
            if _SECRET.search(name) and name not in _NO_SECRET:
                found.update(filter(None, [value] if isinstance(value, str) else value))
        # Drivers show them decoded, or as the URL has them. The longest first: a shorter one may be part of it.
        encoded = {encode(each, safe="") for encode in (quote, quote_plus) for each in found}
        self._found = sorted(found | encoded, key=len, reverse=True)

    def redact(self, text: str) -> str:
        """The text with each password, plain or URL-encoded, replaced by three asterisks."""
        for secret in self._found:
            text = text.replace(secret, _MASK)
        return text


class ReportingDatabase:
    """A SQL database to export to; opened at first use, closed by `close`. Thread-safe.

    Args:
        url: a URL in SQLAlchemy's format; None: the value of the environment variable `env`.
        env: the name of the variable.
        noun: for error messages: what the database is to cq.
        init: the command that creates the tables, for messages about a missing one.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        env: str = TABLE_ENV,
        noun: str = "reporting database",
        init: str = "cq link init QUEUE",
    ) -> None:
        self._env = env
        self._noun = noun
        self._init = init
        self._given = url
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self._dialect: Dialect | None = None
        self._secrets: Secrets | None = None

    @property
    def engine(self) -> sa.Engine:
        """SQLAlchemy's engine; raises `InvalidConfiguration` if the URL is missing or wrong."""
        with self._lock:
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def check_url(self) -> None:
        """Raise `InvalidConfiguration` if the URL or its driver is missing or wrong; makes no connection."""
        _ = self.engine

    @property
    def serializes_writes(self) -> bool:
        """Whether all writing transactions of the database run one after the other, as in a SQLite file."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def transaction(self) -> Iterator[tuple[sa.Connection, Dialect]]:
        """A transaction that writes, and is durable when it ends; an exception rolls it back.

        Raises `CannotSend` for errors of the database about data, `LinkFailed` for all its other errors.
        """
        with self._mapped(), self._connected() as conn, conn.begin():
            dialect = self._dialect_of(conn)
            dialect.begin(conn)
            yield conn, dialect

    @contextmanager
    def reading(self) -> Iterator[tuple[sa.Connection, Dialect]]:
        """A transaction that only reads. Raises `LinkFailed`."""
        with self._mapped(), self._connected() as conn:
            reader = conn.execution_options(**{_READ_ONLY: True})
            yield reader, self._dialect_of(reader)

    def close(self) -> None:
        """Close the connections, those in use at the end of their transactions; the next one opens new ones."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def __str__(self) -> str:
        """Kind, host and name of the database, without user and password."""
        url = self.engine.url
        name = url.database or ""
        return f"{url.get_backend_name()} {f'{url.host}/{name}' if url.host else name}"

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """A connection.

        Raises `InvalidConfiguration` for parameters of the URL that the driver rejects, and `LinkFailed`, which names
        the variable of the URL, if the database cannot be connected to.
        """
        engine = self.engine
        try:
            conn = engine.connect()
        except _PARAMETER_ERRORS as error:
            raise self._wrong_parameters(engine.url, error) from None
        except exc.SQLAlchemyError as error:
            why = self._to_cq_error(error)
            raise LinkFailed(
                f"the {self._noun} cannot be used: start it, or correct its URL in ${self._env} ({why})"
            ) from None
        with conn:
            try:
                yield conn
            finally:
                if self._engine is not engine and not (conn.closed or conn.invalidated):
                    conn.detach()  # `close` was called: nobody would close it in the pool of the former engine

    def _wrong_parameters(self, url: sa.URL, error: Exception) -> InvalidConfiguration:
        # Without the driver's own message, which may show a value, and so a password.
        names = ", ".join(url.query) or "none"
        return InvalidConfiguration(
            f"the driver of the database in ${self._env} refuses the URL or its parameters ({names}) by a "
            f"{type(error).__name__}: correct them"
        )

    def _dialect_of(self, conn: sa.Connection) -> Dialect:
        if self._dialect is None:
            self._dialect = dialect_of(conn.engine)  # the first connection tells MySQL from MariaDB
        return self._dialect

    def _open(self) -> sa.Engine:
        url = self._url()
        self._secrets = Secrets(url)
        options: dict[str, Any] = {"hide_parameters": True, "pool_pre_ping": True, "pool_recycle": 60}
        match url.get_backend_name():
            case "sqlite":
                options["connect_args"] = {"timeout": BUSY_SECONDS}
            case "postgresql" | "mysql" | "mariadb" as kind:
                given = _POSTGRESQL if kind == "postgresql" else _MYSQL
                options["connect_args"] = {name: given[name] for name in given.keys() - url.query.keys()}
                options["isolation_level"] = "READ COMMITTED"
        try:
            engine = sa.create_engine(url, **options)
        except exc.NoSuchModuleError:
            raise InvalidConfiguration(
                f"${self._env} names a kind of database that cq does not support: {url.drivername}"
            ) from None
        except ImportError as error:
            extra = _PACKAGES.get(error.name or "")
            wanted = install_command(extra) if extra else f"pip install {error.name}"
            raise MissingDriver(
                f"the driver {error.name!r} for the database in ${self._env} is not installed: run `{wanted}`"
            ) from None
        except (exc.ArgumentError, *_PARAMETER_ERRORS) as error:
            raise self._wrong_parameters(url, error) from None
        dialect_of(engine)  # raises for a kind of database that cq cannot write to
        _listen(engine)
        return engine

    def _url(self) -> sa.URL:
        text = self._given or read_variable(self._env)
        if not text:
            raise InvalidConfiguration(
                f"${self._env} is not set: give the URL of the {self._noun} there, "
                "for example postgresql://user:password@host/database or sqlite:///report.db"
            )
        try:
            url = sa.make_url(text)
        except (exc.ArgumentError, ValueError):
            # Not chained: the original message may show the URL, and so its password.
            raise InvalidConfiguration(
                f"${self._env} is not a URL such as postgresql://user:password@host/database"
            ) from None
        if not url.database and url.get_backend_name() in ("mysql", "mariadb"):
            raise InvalidConfiguration(
                f"${self._env} names no database: give its name after the host and a slash"
            )
        return url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except exc.SQLAlchemyError as error:
            # Not chained: the driver's own message may show passwords and values.
            raise self._to_cq_error(error) from None

    def _to_cq_error(self, error: exc.SQLAlchemyError) -> CqError:
        """Convert an error of SQLAlchemy to `CannotSend` or `LinkFailed`, with a message of one line."""
        original = getattr(error, "orig", None)
        text = " ".join(str(original or error).split())
        message = f"{type(original or error).__name__}: {text}"
        if self._secrets is not None:
            message = self._secrets.redact(message)
        if _is_about_table(original):
            message += f": `{self._init}` creates it"
        return CannotSend(message) if _is_about_data(error) else LinkFailed(message)


@contextmanager
def values_bound() -> Iterator[None]:
    """Context of a statement with values: converts a driver's Python errors, about values that it cannot send."""
    try:
        yield
    except _VALUE_ERRORS as error:
        raise CannotSend(f"{type(error).__name__}: {error}") from None


def _is_about_data(error: exc.SQLAlchemyError) -> bool:
    if isinstance(error, exc.DataError | exc.IntegrityError):
        return True
    original = getattr(error, "orig", None)
    if isinstance(original, _VALUE_ERRORS):
        return True  # raised by SQLAlchemy when it converts a value for its column
    state = getattr(original, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in _DATA_STATES
    return str(original).lower().startswith(_REFUSALS)


def _is_about_table(error: object) -> bool:
    """Whether a driver's error says that a table is missing."""
    code = getattr(error, "sqlstate", None) or next(iter(getattr(error, "args", ())), "")
    return code in _NO_TABLE or str(code).startswith("no such table")


def _listen(engine: sa.Engine) -> None:
    """Register the functions that prepare every connection of the engine."""
    match engine.dialect.name:
        case "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        case "mysql" | "mariadb":
            if "read_timeout" not in engine.url.query:
                event.listen(engine, "do_connect", _bound_first_answer)
                event.listen(engine, "connect", _wait_longer)
            event.listen(engine, "connect", _prepare_mysql)
        case "postgresql" if engine.driver == "psycopg":
            event.listen(engine, "connect", prepare_psycopg)


def _prepare_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions: `_begin_sqlite` does
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(conn: sa.Connection) -> None:
    # A writing transaction locks at its start: upgrading a read lock later fails if another process has written.
    read_only = conn.get_execution_options().get(_READ_ONLY)
    conn.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _prepare_mysql(connection: Any, record: object) -> None:
    with connection.cursor() as cursor:
        # Strict: a value that does not fit is an error, and is not truncated. Timeouts: the server waits 30 s for a
        # lock of a row or of a table, and ends an idle session, with its locks, after 120 s.
        cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {BUSY_SECONDS}")
        cursor.execute(f"SET SESSION lock_wait_timeout = {BUSY_SECONDS}")
        cursor.execute("SET SESSION wait_timeout = 120")
        cursor.execute("SET SESSION time_zone = '+00:00'")


def _bound_first_answer(dialect: object, record: object, args: object, parameters: dict[str, Any]) -> None:
    # A server that hangs still accepts connections. PyMySQL has one timeout for its greeting and all later answers.
    parameters["read_timeout"] = CONNECT_SECONDS


def _wait_longer(connection: Any, record: object) -> None:
    connection._read_timeout = ANSWER_SECONDS


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
