"""Every SQL statement of outboxes and links runs on a MariaDB server, which is also killed."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

import cq
from cq.links import LinkFailed
from cq.observers.links.sql import engine
from cq.observers.links.sql import target as sqltarget
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.scheduling.runner import CAUGHT_UP, DONE
from tests.kit.mariadb import MariadbServer
from tests.kit.stores import db as db
from tests.links.linkhelpers import bucket_task, change, send, waits
from tests.links.sqlhelpers import Compared, configure, reporting_of, sql, table_of
from tests.links.test_sql import copied_rows as copied_rows
from tests.links.test_sql import test_sketches_have_columns_of_numbers
from tests.observers.outbox import outboxhelpers as outbox
from tests.observers.outbox.test_outbox import (
    test_a_database_that_is_set_back_stops_the_outbox_until_the_operator_decides,
    test_bad_rows_stay_in_the_table_with_their_errors_and_delay_no_others,
    test_init_again_and_with_other_settings,
    test_remove_and_begin_again,
    test_rows_that_vanish_before_they_are_deleted_stop_the_outbox,
)

pytestmark = [
    pytest.mark.parametrize("reporting_url", ["mariadb"], indirect=True),
    pytest.mark.sampled(3),
]

# pytest collects the imported tests here, too: with this module's databases.
__all__ = [
    "test_a_database_that_is_set_back_stops_the_outbox_until_the_operator_decides",
    "test_bad_rows_stay_in_the_table_with_their_errors_and_delay_no_others",
    "test_init_again_and_with_other_settings",
    "test_remove_and_begin_again",
    "test_rows_that_vanish_before_they_are_deleted_stop_the_outbox",
    "test_sketches_have_columns_of_numbers",
]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "decimal",
            [Decimal("0.10"), Decimal("-12345678901234567890.123456789"), Decimal("0E-999999999999")],
        ),
        ("datetime", [datetime(2024, 2, 29, 12, 0, 0, 123456, UTC)]),
        ("any", [{"a": [1.5, None, "é\U0001f600"]}, b"\x00\xff", "%s :a \\"]),
    ],
)
@pytest.mark.usefixtures("reporting_url")
def test_rows_are_written_read_and_deleted(
    db: Any, name: str, kind: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqltarget, "PAGE", 1)  # the condition of the second page compares tuples
    keys = [(b"", "a", 0), (b"\x00", "A", -(2**63)), (b"\x00", "a ", 2**63 - 1)]
    given = dict(zip(keys, values, strict=False))
    export = configure(db, name, key=(bytes, str, int), value=kind, combiner="last")
    send(db, name, given)
    assert len(table_of(export)) == len(values)
    assert Compared(export).differences == []

    send(db, name, {keys[0]: cq.DELETE})
    assert len(table_of(export)) == len(values) - 1
    assert Compared(export).differences == []


@pytest.mark.usefixtures("reporting_url")
def test_a_table_with_another_collation_or_engine_is_refused(db: Any, name: str) -> None:
    export = configure(db, name)
    sql(export, "ALTER TABLE report MODIFY `key` VARCHAR(768) COLLATE utf8mb4_bin")
    with pytest.raises(cq.CqError, match="has the collation utf8mb4_bin, expected utf8mb4_nopad_bin"):
        export.target.create()
    sql(export, "ALTER TABLE cq_progress ENGINE = MyISAM")
    with pytest.raises(cq.CqError, match="its engine is MyISAM, which has no transactions"):
        export.target.create()


@pytest.mark.usefixtures("reporting_url")
def test_tables_have_transactions_whatever_the_server_s_default_engine_is(
    db: Any, name: str, mariadb: MariadbServer
) -> None:
    set_default = "SET GLOBAL default_storage_engine = {}"
    outbox.sql(set_default.format("MyISAM"))
    try:
        export = configure(db, name)
        outbox.configure(db, f"{name}-2")
    finally:
        outbox.sql(set_default.format("InnoDB"))
    engines = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
    with reporting_of(export).reading() as (conn, _):
        found = dict(list(map(tuple, conn.execute(sa.text(engines)))))

    assert found == dict.fromkeys(["cq_outbox", "cq_outbox_progress", "cq_progress", "report"], "InnoDB")


@pytest.mark.usefixtures("reporting_url")
def test_locks_of_tables_are_waited_for_as_long_as_those_of_rows(db: Any, name: str) -> None:
    limits = "SELECT @@SESSION.lock_wait_timeout, @@SESSION.innodb_lock_wait_timeout"
    with reporting_of(configure(db, name)).reading() as (conn, _):
        assert tuple(conn.execute(sa.text(limits)).one()) == (30, 30)


@pytest.mark.usefixtures("reporting_url")
def test_only_the_first_answer_of_a_connection_must_come_soon(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.2)
    with reporting_of(configure(db, name)).reading() as (conn, _):
        conn.execute(sa.text("SELECT SLEEP(0.4)"))
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        database = ReportingDatabase(f"mysql://root@127.0.0.1:{hanging.getsockname()[1]}/report")
        with pytest.raises(LinkFailed, match=r"cannot be used: start it, .*timed out"), database.reading():
            pass


@pytest.mark.parametrize("point", ["locked", "applied", "committed"])
@pytest.mark.usefixtures("reporting_url")
def test_a_link_whose_server_is_killed_loses_nothing(
    db: Any, name: str, mariadb: MariadbServer, point: str
) -> None:
    export = configure(db, name)
    change(db, name, {"a": 1})
    task = bucket_task(db, name, "a", killing_at(mariadb, point))
    pauses = [task.run()]
    while pauses[-1] >= 0.0 and len(pauses) < 5:
        pauses.append(task.run())

    assert pauses[-1] == CAUGHT_UP
    assert table_of(export) == [("a", 1)]
    assert waits(db, name, "export") == 0


@pytest.mark.parametrize("point", ["moved", "deleting", "deleted"])
@pytest.mark.usefixtures("reporting_url")
def test_an_outbox_whose_server_is_killed_loses_nothing(
    db: Any, name: str, mariadb: MariadbServer, point: str
) -> None:
    outbox.configure(db, name)
    outbox.insert(name, {"a": 1, "b": 2})
    task = outbox.outbox_task(db, name, killing_at(mariadb, point))
    pauses = [task.run()]
    while pauses[-1] >= 0.0 and len(pauses) < 5:
        pauses.append(task.run())
    task.end()

    assert pauses[-1] == DONE
    assert outbox.values(db, name) == {"a": 1, "b": 2}
    assert outbox.table() == []


def killing_at(server: MariadbServer, point: str) -> Any:
    """Kill the server, and start it again, once a task has reached this point."""
    killed: list[str] = []

    def at(reached: str) -> None:
        if reached == point and not killed:
            killed.append(reached)
            server.kill()
            server.start()

    return at
