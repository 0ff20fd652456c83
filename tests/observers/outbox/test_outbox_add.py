"""`cq.outbox.add` with each kind of connection, and what it refuses."""

from __future__ import annotations

import math
import sqlite3
from decimal import Decimal
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
        ({"a": {1: 2, "1": 3}}, {}, r"parts that JSON has.* within a dict: 1 \(int\)"),
        ({"a": [[b"x"]]}, {}, "within a list: b'x'"),
        ({"a": {"x": Decimal(1)}}, {}, "within a dict: Decimal"),
        ({"a": {("x", math.nan)}}, {}, "within a tuple: nan"),
        ({"a": {frozenset({1})}}, {}, "within a set: frozenset"),
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


@pytest.mark.parametrize(
    ("value", "update"),
    [
        ("set", {1, ("x", (2.5, None))}),
        ("dict", {"x": [1, {"y": True}]}),
        ("list", ["x", []]),
        ("bytes", b"\xff"),
        ("float", math.inf),
    ],
)
def test_an_update_comes_back_as_it_was(db: Any, name: str, sqlite_url: str, value: str, update: Any) -> None:
    configure(db, name, value=value, combiner="last")
    engine = sa.create_engine(sqlite_url)
    with engine.begin() as connection:
        cq.outbox.add(connection, name, {"a": update})
    engine.dispose()
    move(db, name)

    assert values(db, name) == {"a": update}


def test_no_updates_are_no_rows() -> None:
    cq.outbox.add(None, "words", {})
