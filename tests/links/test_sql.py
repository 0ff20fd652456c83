"""Links to tables: rows are what the queue's values are, whatever they contain; checks, secrets and verification."""

from __future__ import annotations

import math
import re
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql

import cq
from cq import admin, links
from cq.encoding.codec import KeyType, ValueType
from cq.keys import ROOT, prefix_end
from cq.keys.link import LinkKeys, first_sequence, generation_of
from cq.links import CannotSend, LinkFailed
from cq.observers.links.operate import OpenLink
from cq.observers.links.sql import verify as sqlverify
from cq.observers.links.sql.dialects import postgresql
from cq.observers.links.sql.dialects.dialect import CannotConvert
from cq.observers.links.sql.dialects.mysql import Mysql
from cq.observers.links.sql.dialects.postgresql import Postgresql
from cq.observers.links.sql.engine import ReportingDatabase, Secrets, values_bound
from cq.observers.links.sql.table import (
    SEQUENCE,
    UPDATED_AT,
    Columns,
    DefaultLayout,
    TableDefinition,
)
from cq.observers.monitoring.link_status import link_status
from cq.observers.scheduling.runner import CAUGHT_UP
from tests.kit.queues import add, stored
from tests.kit.sketches import needs_sketches
from tests.kit.stores import db as db
from tests.links.linkhelpers import bucket, change, combine, entries_aside, link_tasks, problems, send, work
from tests.links.linkhelpers import found as link_of
from tests.links.sqlhelpers import Compared, configure, definition_of, reporting_of, sql, table_of

pytestmark = pytest.mark.sampled(2)


@pytest.fixture
def copied_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From how many rows COPY is used."""
    monkeypatch.setattr(postgresql, "_COPIED_ROWS", request.param)


COPIED = pytest.mark.parametrize("copied_rows", [1, 1_000], indirect=True)


@needs_sketches
@COPIED
@pytest.mark.usefixtures("reporting_url", "copied_rows")
def test_sketches_have_columns_of_numbers(db: Any, name: str) -> None:
    """Small and large sketches of each kind, with the extreme numbers and texts that databases store differently."""
    visitors = [f"visitor {number}" for number in range(3_000)]
    times = [number / 7 for number in range(1_000)]
    texts = ["é\U0001f600%s :a \\'\"", *map(str, range(300))]
    items: dict[str, dict[str, Any]] = {
        "distinct": {"few": [1, "1", 1.5], "many": visitors},
        "theta": {"few": [1, "1", 1.5], "many": visitors},
        "quantiles": {"few": [-1.7976931348623157e308, 5e-324, -0.0], "many": times},
        "frequent": {"few": "", "many": [*texts, texts[0], texts[0]], "long": "x" * 256},
    }
    for kind, updates in items.items():
        queue = f"{name}-{kind}"
        export = configure(db, queue, table=f"of_{kind}", combiner=kind)
        handle: cq.CombineQueue[str, Any] = cq.CombineQueue(queue)
        for added in (updates, {"few": updates["many"]}):
            send(db, queue, added)
            assert _rows(export) == {key: value.columns() for key, value in handle.scan(db)}
            assert Compared(export).differences == []
        sql(export, f"DELETE FROM of_{kind} WHERE of_{kind}.key = 'few'")  # noqa: S608
        assert len(Compared(export).differences) == 1
        export.rebuild()
        combine(db, queue)
        work(db, queue)
        assert _rows(export) == {key: value.columns() for key, value in handle.scan(db)}
        admin.purge(db, queue)
        combine(db, queue)
        work(db, queue)
        assert _rows(export) == {}


def _rows(export: OpenLink) -> dict[Any, dict[str, Any]]:
    """{key: {column: value}} of an exported table, without cq's own columns."""
    with reporting_of(export).reading() as (conn, dialect):
        found = conn.execute(sa.select(definition_of(export).table(dialect))).mappings().all()
    return {
        row["key"]: {column: row[column] for column in row if column not in ("key", SEQUENCE, UPDATED_AT)}
        for row in found
    }


@pytest.mark.usefixtures("reporting_url")
class TestTable:
    """Rows are what the queue's values are."""

    def test_keys_that_collations_take_for_one_stay_apart(self, db: Any, name: str) -> None:
        export = configure(db, name)
        keys = ["a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "", "\U0001f600", "ﬁ", "İ"]
        send(db, name, dict.fromkeys(keys, 1))

        assert sorted(key for (key, _) in table_of(export)) == sorted(keys)
        assert Compared(export).differences == []

    @pytest.mark.parametrize(
        ("key_type", "keys"),
        [
            (int, [0, -1, 2**63 - 1, -(2**63)]),
            (bytes, [b"", b"\x00", b"\xff", b"a", b"A", b"a\x00"]),
            ("(str, int)", [("a", 1), ("A", 1), ("a", 2)]),
            ("(bytes, str, int)", [(b"\x00", "é", -5), (b"", "", 0)]),
        ],
    )
    @pytest.mark.usefixtures("copied_rows")
    @COPIED
    def test_keys_of_all_types(self, db: Any, name: str, key_type: Any, keys: list[Any]) -> None:
        export = configure(db, name, key=key_type)
        send(db, name, dict.fromkeys(keys, 7))
        assert len(table_of(export)) == len(keys)
        assert Compared(export).differences == []

        send(db, name, dict.fromkeys(keys[1:], -7))

        found = Compared(export)
        assert (found.totals["values"], found.totals["rows"], found.differences) == (1, 1, [])

    @pytest.mark.parametrize(
        ("value_type", "values"),
        [
            ("int", [1, -(2**63), 2**63 - 1]),
            ("float", [0.1, -1e300, 5e-324]),
            ("decimal", [Decimal("0.10"), Decimal("-12345678901234567890.123456789")]),
            ("str", ["", "é\U0001f600", "x" * 70_000, "'; DROP TABLE report; --", "%s :a \\"]),
            ("bytes", [b"", b"\x00\xff" * 999]),
            ("bool", [True, False]),
            ("datetime", [datetime(2024, 2, 29, 12, 0, 0, 123456, UTC), datetime.max.replace(tzinfo=UTC)]),
            ("list", [[1, "a", None, [b"x", Decimal("1.5")]], []]),
            ("dict", [{"a": {"b": 1.5}, "é": None}, {}, {"large": [1e23, -1e300], "text": "\\u0000"}]),
            ("set", [{1, 2}, {"a"}]),
            ("any", [1, "a", [1], b"x"]),
        ],
    )
    @pytest.mark.usefixtures("copied_rows")
    @COPIED
    def test_values_of_all_types(self, db: Any, name: str, value_type: str, values: list[Any]) -> None:
        export = configure(db, name, value=value_type, combiner="last")
        send(db, name, {str(number): value for number, value in enumerate(values)})

        assert entries_aside(db, name, "export") == []
        assert len(table_of(export)) == len(values)
        assert Compared(export).differences == []

    @pytest.mark.parametrize("method", ["_is_copied", "_has_any"])
    def test_new_rows_of_a_large_batch_are_written_though_one_is_inserted_meanwhile(
        self, db: Any, name: str, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a program beside cq, before a COPY, and after cq has looked which rows there are."""
        export = configure(db, name)
        call, inserted = getattr(Postgresql, method), list[str]()

        def inserting(*given: Any) -> Any:
            found = call(*given) if method == "_has_any" else None
            if not inserted:
                inserted.append(given[-1]["key"][-1])
                with reporting_of(export).transaction() as (other, dialect):
                    row = {"key": inserted[0], "value": 5, SEQUENCE: b"", UPDATED_AT: datetime.now(UTC)}
                    other.execute(sa.insert(definition_of(export).table(dialect)), row)
            return call(*given) if found is None else found

        monkeypatch.setattr(Postgresql, method, inserting)
        monkeypatch.setattr(Postgresql, "_is_looked_up", method == "_has_any")
        monkeypatch.setattr(postgresql, "_COPIED_ROWS", 100)
        for value in (1, 2):  # new rows, and then changes of them
            send(db, name, {f"key {number}": 1 for number in range(4_000)})
            assert (entries_aside(db, name, "export"), link_status(db, name)[0].error) == ([], "")
            assert len(inserted) == (reporting_of(export).engine.dialect.name == "postgresql")
            assert {row[1] for row in table_of(export)} == {value}
        assert Compared(export).differences == []

    @pytest.mark.usefixtures("copied_rows")
    @COPIED
    def test_names_are_identifiers_whatever_they_contain(self, db: Any, name: str) -> None:
        export = configure(db, name, table='sélect "x`; DROP %s :a')
        send(db, name, {"a": 1})

        assert table_of(export) == [("a", 1)]
        assert Compared(export).differences == []

    def test_transactions_that_take_turns_at_a_file_are_no_more_than_one(self, db: Any, name: str) -> None:
        """Several would wait for each other in threads that others could use."""
        configure(db, name)
        export = link_of(db, name)
        with link_tasks(db, name) as tasks:
            widths = {each.max_parallel for each in tasks}

        is_file = reporting_of(export).engine.dialect.name == "sqlite"
        assert widths == {1 if is_file else None}

    def test_a_batch_is_one_statement_to_write_and_one_to_delete(self, db: Any, name: str) -> None:
        export = configure(db, name)
        send(db, name, {str(number): 1 for number in range(800)})
        for _ in range(3):  # several entries of each key
            change(db, name, {str(number): 1 for number in range(1, 800, 2)})
        change(db, name, {str(number): -1 for number in range(0, 800, 2)})
        with link_tasks(db, name) as tasks, statements(tasks[1]) as seen:
            assert tasks[1].run() == CAUGHT_UP
        inserts = [each for each in seen if each[0].startswith("INSERT") and "report" in each[0]]
        deletes = [each for each in seen if each[0].startswith("DELETE") and "report" in each[0]]

        assert len(inserts) == 1
        assert len(deletes) == 1
        assert "VALUES (" in inserts[0][0] or 30 < inserts[0][1] < 70
        assert Compared(export, wait_seconds=0).differences == []

    def test_what_cannot_be_stored_is_set_aside_and_the_rest_goes_on(self, db: Any, name: str) -> None:
        export = configure(db, name)
        add(db, name, {"big": 2**63, "ok": 1, "other": 2})
        send(db, name, {"x" * 7000: 1})

        rows = {key for key, _ in table_of(export)}
        errors = {each.error for each in entries_aside(db, name, "export")}
        assert rows >= {"ok", "other"}
        assert "big" not in rows
        assert any("exceeds the 64 bits of a BIGINT" in error for error in errors)
        (difference,) = [each for each in Compared(export).differences if each.key == "big"]
        assert difference.details["reason"].startswith("set aside: ")
        # When it fits again, it is exported again.
        send(db, name, {"big": -(2**62)})
        assert ("big", 2**62) in table_of(export)

    def test_a_lost_row_of_a_value_with_nan_is_a_difference(self, db: Any, name: str) -> None:
        export = configure(db, name, value="any", combiner="last")
        send(db, name, {"set": {math.nan}, "dict": {math.nan: 1}, "list": [math.nan], "ok": 1})
        sql(export, "DELETE FROM report WHERE key <> 'ok'")

        found = Compared(export)
        assert {each.key for each in found.differences} == {"set", "dict", "list"}
        assert not found.undecided

    def test_a_time_in_no_year_of_utc_is_set_aside(self, db: Any, name: str) -> None:
        export = configure(db, name, value="datetime", combiner="last")
        last = datetime.max.replace(tzinfo=timezone(timedelta(hours=-8)))
        send(db, name, {"last": last, "ok": datetime(2024, 1, 1, tzinfo=UTC)})

        assert [key for key, _ in table_of(export)] == ["ok"]
        (aside,) = entries_aside(db, name, "export")
        assert "not in the years 1 to 9999 in UTC" in aside.error


def test_a_text_that_postgresql_cannot_hold_is_set_aside(db: Any, name: str, postgres_url: str) -> None:
    export = configure(db, name, value="str", combiner="last")
    send(db, name, {"nul": "a\x00b", "nul\x00key": "v", "ok": "v"})

    assert table_of(export) == [("ok", "v")]
    assert len(entries_aside(db, name, "export")) == 2
    assert all("U+0000" in each.error for each in entries_aside(db, name, "export"))


def test_times_are_compared_whatever_the_zone_of_the_server(
    db: Any, name: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own zone, the driver could not read the last time of UTC."""
    monkeypatch.setenv("CQ_REPORTING_URL", f"{postgres_url}%20-ctimezone%3DAsia/Tokyo")
    export = configure(db, name, value="datetime", combiner="last")
    send(db, name, {"last": datetime.max.replace(tzinfo=UTC)})

    assert Compared(export).differences == []


def test_a_number_that_is_none_is_compared_like_others(db: Any, name: str, sqlite_url: str) -> None:
    export = configure(db, name, value="float", combiner="last")
    send(db, name, {"nan": float("nan"), "ok": 1.0})

    found = Compared(export, wait_seconds=0)
    assert ([each.key for each in found.differences], found.undecided) == (["nan"], [])


def test_no_entry_is_set_aside_because_the_table_was_changed(db: Any, name: str, postgres_url: str) -> None:
    export = configure(db, name)
    send(db, name, {"a": 1})
    with link_tasks(db, name) as tasks:
        for each in tasks:
            each.run()  # it has checked the table
        sql(export, "ALTER TABLE report ALTER COLUMN value TYPE int")
        change(db, name, {"a": 2**40})
        tasks[1 + bucket("a")].run()
        problem = "the table 'report' is not as expected: column 'value' is INTEGER, expected BIGINT"
        assert problem in tasks[1 + bucket("a")].problem
    assert entries_aside(db, name, "export") == []
    sql(export, "ALTER TABLE report ALTER COLUMN value TYPE bigint")
    work(db, name)

    assert table_of(export) == [("a", 2**40 + 1)]


@contextmanager
def statements(task: Any) -> Iterator[list[tuple[str, int]]]:
    """(statement, number of rows) of all that a task executes."""
    seen: list[tuple[str, int]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        given = parameters.values() if isinstance(parameters, dict) else []
        arrays = [len(each) for each in given if isinstance(each, list)]
        rows = len(parameters) if isinstance(parameters, list) else max(arrays, default=1)
        seen.append((" ".join(statement.split()), rows))

    engine = task._target.reporting.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


class TestChecks:
    """What is there is compared with what is expected, and the difference is named."""

    @pytest.mark.usefixtures("reporting_url")
    def test_tables_are_made_once_and_then_found(self, db: Any, name: str) -> None:
        cq.configure(db, name, links=[links.table("report")])
        export = link_of(db, name)

        assert export.target.create() == ["cq_progress", "report"]
        assert export.target.create() == []

    @pytest.mark.usefixtures("reporting_url")
    def test_a_table_that_is_missing_is_said_with_what_to_do(self, db: Any, name: str) -> None:
        cq.configure(db, name, links=[links.table("report")])
        change(db, name, {"a": 1})

        assert any(
            f"no table 'cq_progress': run `cq link init {name} export`" in each for each in problems(db, name)
        )
        (status,) = link_status(db, name)
        assert (status.state, status.waiting_buckets) == ("failing", 1)
        assert "cq link init" in status.error
        export = link_of(db, name)
        export.target.create()
        work(db, name)
        assert table_of(export) == [("a", 1)]
        (status,) = link_status(db, name)
        assert (status.state, status.error, status.waiting_buckets) == ("active", "", 0)

    @pytest.mark.usefixtures("reporting_url")
    @pytest.mark.parametrize(
        ("columns", "difference"),
        [
            ({"value": sa.BigInteger()}, "it has no column 'sequence'"),
            ({"value": sa.Text(), "sequence": sa.LargeBinary(22)}, "column 'value' is TEXT, expected BIGINT"),
        ],
    )
    def test_a_table_of_other_columns_is_refused(
        self, db: Any, name: str, columns: dict[str, Any], difference: str
    ) -> None:
        cq.configure(db, name, links=[links.table("report")])
        export = link_of(db, name)
        with reporting_of(export).transaction() as (conn, dialect):
            columns = columns | {"updated_at": dialect.time()}
            made = [sa.Column(column, of) for column, of in columns.items()]
            key = sa.Column("key", dialect.key_type("str", 1), primary_key=True)
            sa.Table("report", sa.MetaData(), key, *made).create(conn)

        with pytest.raises(LinkFailed, match=difference):
            export.target.create()

    def test_a_key_that_is_not_compared_byte_by_byte_is_refused(
        self, db: Any, name: str, postgres_url: str
    ) -> None:
        cq.configure(db, name, links=[links.table("report")])
        export = link_of(db, name)
        sql(
            export,
            "CREATE TABLE report (key TEXT PRIMARY KEY, value BIGINT, sequence BYTEA, updated_at TIMESTAMPTZ)",
        )

        with pytest.raises(LinkFailed, match="column 'key' has the collation default, expected C"):
            export.target.create()

    def test_a_primary_key_of_other_columns_is_refused(self, db: Any, name: str, sqlite_url: str) -> None:
        cq.configure(db, name, links=[links.table("report")])
        export = link_of(db, name)
        sql(
            export,
            "CREATE TABLE report (key TEXT COLLATE NOCASE, value BIGINT, sequence BLOB, updated_at TEXT, "
            "extra TEXT NOT NULL, PRIMARY KEY (value))",
        )

        with pytest.raises(LinkFailed, match=r"its primary key is \(value\), expected \(key\)") as told:
            export.target.create()
        assert "column 'extra' is not cq's, is not nullable and has no default" in str(told.value)

    def test_a_key_without_case_is_refused_by_sqlite_too(self, db: Any, name: str, sqlite_url: str) -> None:
        cq.configure(db, name, links=[links.table("report")])
        export = link_of(db, name)
        sql(
            export,
            "CREATE TABLE report (key TEXT COLLATE NOCASE PRIMARY KEY, value BIGINT, sequence BLOB, updated_at TEXT)",
        )

        with pytest.raises(LinkFailed, match="has the collation NOCASE, expected BINARY"):
            export.target.create()


class TestColumns:
    """Columns of an application's own."""

    COLUMNS = Columns(
        key={"word": sa.String(50)},
        value={"count": sa.BigInteger(), "first": sa.String(1), "extra": sa.JSON()},
        key_row=lambda key: {"word": key},
        value_row=lambda key, value: {"count": value, "first": key[:1], "extra": {"n": value}},
        key_of=lambda row: row["word"],
    )

    @pytest.mark.usefixtures("reporting_url")
    def test_they_are_filled_by_its_functions(self, db: Any, name: str) -> None:
        app = cq.App()
        export = configure(db, name, app=app, columns=app.columns("by-letter", self.COLUMNS))
        send(db, name, {"ab": 1, "AB": 2, "c": 3}, app=app)
        send(db, name, {"c": -3}, app=app)

        assert table_of(export, "word", "count", "first") == [("AB", 2, "A"), ("ab", 1, "a")]
        assert [extra for (_, extra) in table_of(export, "word", "extra")] == [{"n": 2}, {"n": 1}]
        found = Compared(export)
        assert (found.differences, found.are_rows_checked) == ([], True)

    @pytest.mark.usefixtures("reporting_url")
    def test_what_the_database_refuses_is_found_and_set_aside(self, db: Any, name: str) -> None:
        """The functions cannot know that a column is too short: the database does."""
        columns = Columns(
            key={"word": sa.String(50)},
            value={"count": sa.BigInteger(), "label": sa.String(3)},
            key_row=lambda key: {"word": key},
            value_row=lambda key, value: {"count": value, "label": None if value == 2 else "x" * value},
        )
        app = cq.App()
        export = configure(db, name, app=app, columns=app.columns("short", columns))
        if "sqlite" in str(reporting_of(export)):
            sql(export, "DROP TABLE report")
            sql(
                export,
                "CREATE TABLE report (word VARCHAR(50) PRIMARY KEY, count BIGINT, label VARCHAR(3) "
                "CHECK (length(label) <= 3), sequence BLOB, updated_at TEXT)",
            )
        send(db, name, {f"k{number}": 1 for number in range(100)} | {"bad": 5, "null": 2}, app=app)

        (aside,) = entries_aside(db, name, "export")
        assert aside.value == 5
        assert len(table_of(export)) == 101
        found = Compared(export)
        assert ([each.key for each in found.differences], found.are_rows_checked) == (["bad"], False)

    @pytest.mark.usefixtures("reporting_url")
    def test_what_the_driver_cannot_send_is_found_and_set_aside(self, db: Any, name: str) -> None:
        """Neither the functions nor the database get to see it: the driver, or SQLAlchemy, refuses it."""
        given = {1: date(2026, 1, 1), 2: "no date", 3: object(), 4: 7}
        columns = Columns(
            key={"word": sa.String(50)},
            value={"day": sa.Date(), "count": sa.BigInteger()},
            key_row=lambda key: {"word": key},
            value_row=lambda key, value: {
                "day": given[value] if value < 3 else None,
                "count": given[value] if value >= 3 else 0,
            },
        )
        app = cq.App()
        export = configure(db, name, app=app, columns=app.columns("refused", columns))
        send(db, name, {f"k{number}": 1 for number in range(20)} | {"text": 2, "object": 3, "ok": 4}, app=app)

        assert sorted(each.value for each in entries_aside(db, name, "export")) == [2, 3]
        assert table_of(export, "word", "count")[-1] == ("ok", 7)
        assert len(table_of(export)) == 21

    def test_what_the_functions_raise_sets_the_entry_aside(self, db: Any, name: str, sqlite_url: str) -> None:
        columns = Columns(
            key={"word": sa.String(50)},
            value={"inverse": sa.Float()},
            key_row=lambda key: {"word": key},
            value_row=lambda key, value: {"inverse": 1 / (value - 1)},
        )
        app = cq.App()
        export = configure(db, name, app=app, columns=app.columns("inverse", columns))
        send(db, name, {"bad": 1, "ok": 2}, app=app)

        assert table_of(export) == [("ok", 1.0)]
        assert [each.error for each in entries_aside(db, name, "export")] == [
            "ZeroDivisionError: division by zero"
        ]

    def test_a_worker_without_the_application_sends_nothing(
        self, db: Any, name: str, sqlite_url: str
    ) -> None:
        cq.configure(db, name, links=[links.table("report", columns="not-declared@1")])

        with pytest.raises(LinkFailed, match="no columns 'not-declared@1': start it with --app"):
            link_of(db, name)
        with link_tasks(db, name) as tasks:
            assert tasks == []
        (status,) = link_status(db, name)
        assert "start it with --app" in status.error

    @pytest.mark.parametrize("key", [{}, {"sequence": sa.Text()}, {"a": sa.Text()}])
    def test_columns_that_are_taken_are_refused(self, key: dict[str, Any]) -> None:
        with pytest.raises(cq.errors.InvalidConfiguration, match="names that are not taken"):
            Columns(key=key, value={"a": sa.Text()}, key_row=lambda key: {}, value_row=lambda key, value: {})


class TestTls:
    """The URLs of the page on tables have drivers check the server."""

    def test_certificate_and_host_are_checked(self, tmp_path: Path) -> None:
        page = (Path(__file__).parents[2] / "docs" / "connect" / "tables.md").read_text()
        urls = re.findall(r'CQ_REPORTING_URL="(.+)"', page)
        on_postgresql, on_mysql = (ReportingDatabase(url).engine for url in urls)

        given = on_postgresql.dialect.create_connect_args(on_postgresql.url)[1]
        assert given["sslmode"] == "verify-full"
        given = on_mysql.dialect.create_connect_args(on_mysql.url)[1]
        assert given["ssl"] == {"ca": given["ssl"]["ca"]}
        given["ssl"] = {"capath": str(tmp_path)}  # in place of the file, which is not here
        context = pymysql.connect(**given, defer_connect=True).ctx
        assert context.check_hostname
        assert context.verify_mode == ssl.CERT_REQUIRED


class TestSecrets:
    """Passwords are in no message, and nowhere in the store."""

    SECRET = "s3cr3t/%40word"  # noqa: S105 - as it stands in a URL
    URL = f"postgresql://someone:{SECRET}@127.0.0.1:1/nothing"

    def test_an_outage_is_told_without_the_password(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("CQ_REPORTING_URL", self.URL)
        cq.configure(db, name, links=[links.table("report")])
        change(db, name, {"a": 1})

        told = [*problems(db, name), *(each.error for each in link_status(db, name)), *caplog.messages]
        whole = stored(db, (ROOT, prefix_end(ROOT)))

        assert any("refused" in each.lower() for each in told), told
        for secret in (self.SECRET, "s3cr3t/@word", "s3cr3t"):
            assert not any(secret in each for each in told)
            assert not any(secret.encode() in key + value for key, value in whole)
        assert "s3cr3t" not in str(reporting_of(link_of(db, name)))

    def test_who_cannot_connect_is_told_the_variable_with_the_url(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for url in (self.URL, f"sqlite:///{tmp_path / 'missing' / 'report.db'}"):
            monkeypatch.setenv("CQ_REPORTS", url)
            reporting = ReportingDatabase(env="CQ_REPORTS")
            for use in (reporting.transaction, reporting.reading):
                with pytest.raises(LinkFailed, match=r"start it, or correct its URL in \$CQ_REPORTS"), use():
                    pass

    def test_a_message_that_has_it_is_redacted(self) -> None:
        reporting = ReportingDatabase("postgresql://someone:hunter2@127.0.0.1:1/nothing")
        with pytest.raises(LinkFailed) as told, reporting.transaction():
            pass
        error = sa.exc.OperationalError("", {}, Exception("no user with password hunter2 here"))
        assert "hunter2" not in str(reporting._to_cq_error(error))
        assert "hunter2" not in str(told.value)

    @pytest.mark.parametrize(
        ("url", "message", "expected"),
        [
            ("postgresql://u:s3cr3t%2Fw@h/d", "xs3cr3t/wx s3cr3t%2Fw", "x***x ***"),
            ("postgresql://h/d?sslpassword=a%20%2Fb", "a /b, a+%2Fb, a%20%2Fb", "***, ***, ***"),
            ("mysql://h/d?passwd=hunter2&ssl_key_password=other", "hunter2 other", "*** ***"),
            ("postgresql://h/d?password=one&password=two", "one two", "*** ***"),
            ("postgresql://h/d?passfile=file&sslkey=key", "file key", "file key"),
            ("postgresql://u:@h/d?password=", "nothing", "nothing"),
        ],
    )
    def test_passwords_are_redacted_wherever_the_url_has_them(
        self, url: str, message: str, expected: str
    ) -> None:
        assert Secrets(sa.make_url(url)).redact(message) == expected

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://u:hunter2@127.0.0.1:1/d?zzz=1",
            "mysql://u:p@127.0.0.1:1/d?zzz=hunter2",
            "mysql://u:p@127.0.0.1:1/d?read_timeout=hunter2",
            "mysql://u:p@127.0.0.1:1/d?port=hunter2",
            "mysql://u:p@127.0.0.1:1/d?ssl_ca=/nonexistent/hunter2",
        ],
    )
    def test_parameters_that_a_driver_refuses_are_named_without_their_values(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CQ_REPORTS", url)
        reporting = ReportingDatabase(env="CQ_REPORTS")
        for use in (reporting.transaction, reporting.reading):
            with (
                pytest.raises(
                    cq.errors.InvalidConfiguration, match=r"in \$CQ_REPORTS refuses the URL"
                ) as told,
                use(),
            ):
                pass
            assert "hunter2" not in str(told.value)
            assert f"({sa.make_url(url).query and next(iter(sa.make_url(url).query))})" in str(told.value)

    @pytest.mark.parametrize(
        "url", ["postgres//u:hunter2@h/d", "hunter2", "://u:hunter2@h", "oracle://u:hunter2@h/d"]
    )
    def test_a_url_that_is_none_is_not_shown(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CQ_REPORTS", url)
        with pytest.raises(cq.errors.InvalidConfiguration, match=r"REPORTS|oracle") as told:
            _ = ReportingDatabase(env="CQ_REPORTS").engine
        assert "hunter2" not in str(told.value)

    @pytest.mark.parametrize("url", ["mysql://u@h", "mariadb://u@h/?unix_socket=/s"])
    def test_a_url_of_mysql_names_a_database(self, url: str) -> None:
        with pytest.raises(cq.errors.InvalidConfiguration, match=r"\$CQ_REPORTING_URL names no database"):
            ReportingDatabase(url).check_url()

    def test_a_url_that_is_missing_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CQ_REPORTING_URL", raising=False)
        with pytest.raises(cq.errors.InvalidConfiguration, match=r"\$CQ_REPORTING_URL is not set"):
            _ = ReportingDatabase().engine


@pytest.mark.parametrize("table", ["", "x" * 64, "a\nb", " a", 5])
def test_names_that_not_every_database_takes_are_refused(table: Any) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration, match="expected a name"):
        links.table(table)


class TestVerify:
    """What differs is named, and what is on its way is not called different."""

    @pytest.fixture
    def export(self, db: Any, name: str, reporting_url: str) -> OpenLink:
        export = configure(db, name)
        send(db, name, {"a": 1, "b": 2, "c": 3})
        return export

    def test_rows_changed_missing_and_too_many_are_named(self, db: Any, name: str, export: OpenLink) -> None:
        quote = "`" if "mysql" in str(reporting_of(export)) or "mariadb" in str(reporting_of(export)) else '"'
        sql(export, "UPDATE report SET value = 9 WHERE KEY = 'a'".replace("KEY", f"{quote}key{quote}"))
        sql(export, "UPDATE report SET KEY = 'z' WHERE KEY = 'b'".replace("KEY", f"{quote}key{quote}"))

        found = Compared(export)

        assert sorted(
            (each.key, each.details["value"], each.details["row"]) for each in found.differences
        ) == [
            ("a", 1, {"key": "a", "value": 9}),
            ("b", 2, None),
            ("z", None, {"key": "z", "value": 2}),
        ]
        assert found.totals == {"values": 3, "rows": 3, "waiting": 0, "whole": True}

    def test_what_waits_is_not_a_difference(self, db: Any, name: str, export: OpenLink) -> None:
        change(db, name, {"a": 1, "d": 1, "b": -2})

        found = Compared(export, wait_seconds=0)
        assert found.differences == []
        assert sorted(found.undecided) == ["a", "b", "d"]
        work(db, name)
        found = Compared(export, wait_seconds=0)
        assert (found.differences, found.undecided) == ([], [])

    def test_it_ends_early_when_all_differs(
        self, db: Any, name: str, export: OpenLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlverify, "PAGE", 1)
        monkeypatch.setattr(sqlverify, "MAX_DIFFERENCES", 2)
        sql(export, "DELETE FROM report")

        found = Compared(export)
        assert (len(found.differences), found.totals["whole"]) == (2, False)

    def test_a_link_that_is_not_complete_cannot_be_verified(
        self, db: Any, name: str, export: OpenLink
    ) -> None:
        cq.configure(db, name, links=[links.table("other")])
        export = link_of(db, name)
        export.target.create()

        with pytest.raises(cq.CqError, match="is still being filled with all values"):
            Compared(export)
        combine(db, name)
        work(db, name)
        assert Compared(export).differences == []


class TestMysqlStatements:
    """What is sent to MySQL and MariaDB, for where there is none to run it."""

    @pytest.fixture(params=[False, True], ids=["mysql", "mariadb"])
    def dialect(self, request: pytest.FixtureRequest) -> Any:
        return Mysql(is_mariadb=request.param)

    def compiled(self, statement: Any) -> str:
        text = statement.compile(dialect=mysql.dialect(), compile_kwargs={"render_postcompile": True})
        return " ".join(str(text).split())

    def test_keys_are_compared_by_bytes_trailing_spaces_included(self, dialect: Any) -> None:
        layout = DefaultLayout(KeyType.parse((str, bytes)), ValueType.parse("int"))
        table = TableDefinition("t", layout).table(dialect)
        text = self.compiled(sa.schema.CreateTable(table))

        collation = "utf8mb4_nopad_bin" if "nopad" in text else "utf8mb4_0900_bin"
        assert f"`key_1` VARCHAR(384) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL" in text
        assert "`key_2` VARBINARY(384) NOT NULL" in text
        assert "`sequence` VARBINARY(22) NOT NULL" in text
        assert "PRIMARY KEY (`key_1`, `key_2`)" in text

    def test_limits_are_checked_before_the_database_is_asked(self, dialect: Any) -> None:
        for kind, value in [("int", 2**63), ("float", float("nan")), ("decimal", Decimal(10) ** 40)]:
            with pytest.raises(CannotConvert):
                dialect.to_sql(kind, [value])
        with pytest.raises(CannotConvert, match="exceeds the 768"):
            dialect.check_keys([["x" * 769, "y"]])
        assert str(*dialect.to_sql("decimal", [Decimal("0E-999999999999")])) == "0"
        assert str(dialect.checked([1, Decimal("0E999999999999")])[1]) == "0"
        for value in ("1E999999999999", "1E-999999999999", "NaN"):
            with pytest.raises(CannotConvert):
                dialect.checked([1, Decimal(value)])
        (moment,) = dialect.to_sql("datetime", [datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))])
        assert moment.isoformat() == "2024-01-01T00:00:00"


def test_a_decimal_that_postgresql_cannot_hold_is_refused_before() -> None:
    dialect = Postgresql()
    for fits in ("9e131071", "1e-16383", "0e-16383"):
        assert dialect.to_sql("decimal", [Decimal(fits)]) == [Decimal(fits)]
    for zero in ("0e-16384", "0e-999999999999", "0e999999999999"):
        assert str(*dialect.to_sql("decimal", [Decimal(zero)])) == "0"
    for exceeds in ("1e131072", "1e-16384", "1e-20000"):
        with pytest.raises(CannotConvert, match="digits of a NUMERIC"):
            dialect.to_sql("decimal", [Decimal(exceeds)])


def test_a_target_says_what_is_wrong_with_data_and_what_with_the_database(sqlite_url: str) -> None:
    reporting = ReportingDatabase()
    with pytest.raises(LinkFailed, match="no such table"), reporting.transaction() as (conn, _):
        conn.execute(sa.text("SELECT * FROM missing"))
    with reporting.transaction() as (conn, _):
        conn.execute(sa.text("CREATE TABLE t (a INTEGER NOT NULL)"))
    with pytest.raises(CannotSend, match="NOT NULL"), reporting.transaction() as (conn, _):
        conn.execute(sa.text("INSERT INTO t VALUES (NULL)"))
    with (
        pytest.raises(CannotSend, match="too large"),
        reporting.transaction() as (conn, _),
        values_bound(),
    ):
        conn.execute(sa.text("INSERT INTO t VALUES (:a)"), {"a": 2**70})
    reporting.close()


def test_a_connection_whose_server_is_gone_ends(postgres_url: str) -> None:
    """The defaults of the system are hours; those in a URL count."""
    for url, idle in ((postgres_url, "20"), (f"{postgres_url}&keepalives_idle=7", "7")):
        reporting = ReportingDatabase(url)
        with reporting.reading() as (conn, _):
            found: Any = conn.connection.driver_connection
            given = found.info.get_parameters()
            assert (given["keepalives_idle"], given["tcp_user_timeout"]) == (idle, "60000")
        reporting.close()


def test_a_connection_in_use_is_closed_after_its_transaction(postgres_url: str) -> None:
    """A keeper ends while another thread sends a bucket."""
    reporting = ReportingDatabase(postgres_url)
    for used in (reporting.transaction, reporting.reading):
        with used() as (conn, _):
            driver = conn.connection.driver_connection
            reporting.close()
            assert conn.execute(sa.text("SELECT 1")).scalar_one() == 1
        assert driver is not None
        assert driver.closed
    with reporting.reading() as (conn, _):
        kept = conn.connection.driver_connection
    assert kept is not None
    assert not kept.closed
    reporting.close()
    assert kept.closed


def test_the_layout_of_keys_is_the_documented_one() -> None:
    keys = LinkKeys("words", "own")
    assert keys.control == b"cq/q/words/eown/c"
    assert (generation_of(first_sequence(7)), generation_of(b"\0\1"), generation_of(b"")) == (7, 1 << 16, 0)
    assert (
        keys.new_row(1, 2, 3)[:-4]
        == b"cq/q/words/eown/q" + b"\0\0\0\1" + b"\0\0\0\2" + b"\0" * 10 + b"\0" * 7 + b"\3"
    )


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.UndefinedTable('relation "words" does not exist'),
        pymysql.err.ProgrammingError(1146, "Table 'shop.words' doesn't exist"),
        sqlite3.OperationalError("no such table: words"),
    ],
)
def test_a_missing_table_is_named_with_the_command_that_creates_it(error: Exception) -> None:
    reporting = ReportingDatabase("sqlite://")

    assert str(reporting._to_cq_error(sa.exc.DBAPIError("", None, error))).endswith(
        ": `cq link init QUEUE` creates it"
    )

    locked = sa.exc.DBAPIError("", None, sqlite3.OperationalError("database is locked"))
    assert "cq link init" not in str(reporting._to_cq_error(locked))
