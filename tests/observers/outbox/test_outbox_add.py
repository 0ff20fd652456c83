"""`cq.outbox.add` with each kind of connection, and what it refuses."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import cq
from tests.observers.outbox.outboxhelpers import configure, move, values


@pytest.mark.parametrize("driver", ["sqlite3", "psycopg"])
def test_plain_drivers_add_rows(
    db: Any, name: str, driver: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if driver == "sqlite3":
        request.getfixturevalue("sqlite_url")
        configure(db, name)
        connection: Any = sqlite3.connect(tmp_path / "report.db")
    else:
        given = sa.make_url(request.getfixturevalue("postgres_url"))
        configure(db, name)
        plain = given.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(plain)
    cq.outbox.add(connection, name, {"a": 1})
    connection.rollback()
    cq.outbox.add(connection, name, {"b": 1, "c": 1})
    cq.outbox.add(connection.cursor(), name, [("b", 1)])
    connection.commit()
    connection.close()
    move(db, name)

    assert values(db, name) == {"b": 2, "c": 1}


def test_django_s_connection_and_cursor_add_rows(db: Any, name: str, sqlite_url: str, tmp_path: Path) -> None:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure()
        django.setup()
    configure(db, name)
    connections.databases["outbox"] = connections.configure_settings(
        {"default": {}, "outbox": {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "report.db"}}
    )["outbox"]
    connection = connections["outbox"]
    cq.outbox.add(connection, name, {"a": 1})
    with connection.cursor() as cursor:
        cq.outbox.add(cursor, name, {"a": 1, "b": 1})
    connection.close()
    move(db, name)

    assert values(db, name) == {"a": 2, "b": 1}


def test_a_session_of_sqlalchemy_adds_rows_in_its_transaction(db: Any, name: str, sqlite_url: str) -> None:
    configure(db, name)
    engine = sa.create_engine(sqlite_url)
    with Session(engine) as session:
        cq.outbox.add(session, name, {"a": 1})
        session.rollback()
        cq.outbox.add(session, name, {"b": 1})
        session.commit()
    engine.dispose()
    move(db, name)

    assert values(db, name) == {"b": 1}


@pytest.mark.parametrize(
    ("updates", "options", "match"),
    [
        ({1.5: 1}, {}, "expected a key"),
        ({"a": object()}, {}, "CBOR"),
        ({"a": "x" * 100_000}, {}, "exceeds"),
        (zip("a", [1], strict=True), {}, "iterator"),
        ([("a",)], {}, "pair"),
        (7, {}, "expected a dict"),
        ([("a", 1), ("a", 2)], {"once": "x"}, "each key once"),
        ({"a": 1}, {"once": ""}, "operation id"),
        ({"a": 1}, {"once": b"x"}, "operation id"),
        ({"a": 1}, {"schema": 'x"; --'}, "schema"),
    ],
)
def test_updates_that_no_queue_takes_are_refused_before_a_row_is_inserted(
    updates: Any, options: Any, match: str
) -> None:
    with pytest.raises(cq.CqError, match=match):
        cq.outbox.add(None, "words", updates, **options)


def test_no_updates_are_no_rows() -> None:
    cq.outbox.add(None, "words", {})
