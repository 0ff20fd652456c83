"""Reporting databases for tests: SQLite, servers of the session's own, and whichever URLs are given."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from cq.observers.links.sql.engine import ReportingDatabase
from tests.kit.mariadb import MariadbServer
from tests.kit.postgres import PostgresServer

_VARIABLES: Final = {"postgresql-url": "CQ_TEST_POSTGRES_URL", "mysql-url": "CQ_TEST_MYSQL_URL"}
_GIVEN: Final = {kind: name for kind, name in _VARIABLES.items() if os.environ.get(name)}
"""The kinds of databases whose URLs this run is given, each with its environment variable."""


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the reporting databases that a test has opened."""
    opened: list[ReportingDatabase] = []
    open_engine = ReportingDatabase._open

    def noted(self: ReportingDatabase) -> sa.Engine:
        opened.append(self)
        return open_engine(self)

    monkeypatch.setattr(ReportingDatabase, "_open", noted)
    yield
    for reporting in opened:
        reporting.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that tests may restart."""
    folder = Path(tempfile.mkdtemp(prefix="cq-pg-"))
    server = PostgresServer(folder)
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """A MariaDB server that tests may kill."""
    folder = Path(tempfile.mkdtemp(prefix="cq-my-"))
    server = MariadbServer(folder)
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql", *_GIVEN])
def reporting_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty reporting database of each kind, also in $CQ_REPORTING_URL."""
    url = _url(request, tmp_path)
    monkeypatch.setenv("CQ_REPORTING_URL", url)
    return url


@pytest.fixture
def postgres_url(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty schema of the PostgreSQL server, also in $CQ_REPORTING_URL."""
    url = new_schema(postgres.url)
    monkeypatch.setenv("CQ_REPORTING_URL", url)
    return url


@pytest.fixture
def mariadb_url(mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database of the MariaDB server, also in $CQ_REPORTING_URL."""
    url = _database(mariadb.url)
    monkeypatch.setenv("CQ_REPORTING_URL", url)
    return url


@pytest.fixture
def sqlite_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a SQLite file that does not exist yet, also in $CQ_REPORTING_URL."""
    url = f"sqlite:///{tmp_path / 'report.db'}"
    monkeypatch.setenv("CQ_REPORTING_URL", url)
    return url


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: Any = request.param
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'report.db'}"
    if kind == "postgresql":
        return new_schema(request.getfixturevalue("postgres").url)
    if kind == "mariadb":  # in tests/links/test_mariadb.py alone, because all tests would take too long
        return _database(request.getfixturevalue("mariadb").url)
    given = os.environ[_GIVEN[kind]]
    return new_schema(given) if kind == "postgresql-url" else _database(given)


def new_schema(given: str) -> str:
    """The URL of a new schema of a PostgreSQL database."""
    name = f"cq_test_{secrets.token_hex(6)}"
    url = sa.make_url(given).set(drivername="postgresql+psycopg")
    _execute(url, f"CREATE SCHEMA {name}")
    return url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)


def _database(given: str) -> str:
    """The URL of a new database of a MySQL or MariaDB server."""
    name = f"cq_test_{secrets.token_hex(6)}"
    url = sa.make_url(given)
    url = url.set(drivername=f"{url.get_backend_name()}+pymysql")
    _execute(url, f"CREATE DATABASE {name}")
    return url.set(database=name).render_as_string(hide_password=False)


def _execute(url: sa.URL, statement: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn, warnings.catch_warnings():
        conn.execute(sa.text(statement))
    engine.dispose()
