"""Everything at once: workers killed, stopped and woken, PostgreSQL restarted, connections cut; nothing is lost."""

from __future__ import annotations

import fcntl
import itertools
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cq.keys.link import LinkKeys
from cq.observers.links.log import BUCKETS
from cq.observers.links.operate import OpenLink
from cq.observers.links.state import read_failures
from cq.observers.scheduling.runner import CAUGHT_UP
from cq.store.transact import transact
from tests.kit.postgres import PostgresServer
from tests.kit.processes import stop
from tests.kit.stores import db as db
from tests.links.linkhelpers import (
    Workers,
    bucket,
    bucket_task,
    change,
    entries_aside,
    notified,
    waits,
    work,
)
from tests.links.linkhelpers import found as link_of
from tests.links.sqlhelpers import Compared, configure, reporting_of, sql, table_of

SECONDS = 60.0
LINK = "export"
AUDIT = """
CREATE TABLE audit (id BIGSERIAL PRIMARY KEY, what TEXT, key TEXT, bucket BIGINT, sequence BYTEA);
CREATE FUNCTION audit_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO audit (what, key, sequence) VALUES ('delete', OLD.key, OLD.sequence);
    ELSE
        INSERT INTO audit (what, key, sequence) VALUES ('write', NEW.key, NEW.sequence);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION audit_progress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audit (what, bucket, sequence)
        VALUES ('progress', NEW.bucket, decode(split_part(NEW.position, '-', 2), 'hex'));
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON report FOR EACH ROW EXECUTE FUNCTION audit_row();
CREATE TRIGGER audit AFTER UPDATE ON cq_progress FOR EACH ROW EXECUTE FUNCTION audit_progress();
"""


def audited(export: OpenLink) -> int:
    """Check the history of the table, as its triggers have written it down; returns how much of it there is.

    Each row written is newer than all that its bucket had been exported up to: nothing was repeated or reordered, and
    no row came back.
    """
    with reporting_of(export).reading() as (conn, _):
        rows = conn.execute(sa.text("SELECT what, key, bucket, sequence FROM audit ORDER BY id")).all()
    progress = [b""] * BUCKETS
    written: dict[str, bytes] = {}
    for what, key, number, sequence in rows:
        if what == "progress":
            assert bytes(sequence) > progress[number]
            progress[number] = bytes(sequence)
        elif what == "write":
            assert bytes(sequence) > progress[bucket(key)]
            assert bytes(sequence) > written.get(key, b"")
            written[key] = bytes(sequence)
    return len(rows)


def test_nothing_is_lost_repeated_or_back_whatever_is_killed(
    db: Any, name: str, tmp_path: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    export = configure(db, name, buckets=2)
    sql(export, AUDIT)
    draw = random.Random(1)
    expected: dict[str, int] = {}
    frozen: subprocess.Popen[bytes] | None = None
    with Workers(f"embedded:{tmp_path / 'test.db'}", name, seed=1) as workers:
        for _ in range(3):
            workers.start(0.01)
        workers.wait_ready()
        for step in steps_with_deaths(workers):
            updates = {f"k{draw.randrange(12)}": draw.choice([1, -1, 2]) for _ in range(4)}
            for key, update in updates.items():
                expected[key] = expected.get(key, 0) + update
            change(db, name, updates)
            workers.replace_dead(0.01)
            if draw.random() < 0.7:
                wait_until_some_are_sent(db, name)
            if step % 20 == 7:
                frozen = draw.choice(workers.running)
                freeze(frozen, tmp_path / "test.db-lock")
            elif step % 20 == 15 and frozen is not None:
                frozen.send_signal(signal.SIGCONT)
            if step in (25, 45):
                reporting_of(export).close()
                postgres.restart()
            elif step % 10 == 3:
                cut_connections(export)
    work(db, name)

    assert dict(table_of(export)) == {key: value for key, value in expected.items() if value}
    assert waits(db, name, LINK) == 0
    assert entries_aside(db, name, LINK) == []
    assert Compared(export).differences == []
    assert audited(export) > 100


def steps_with_deaths(workers: Workers) -> Iterator[int]:
    """The numbers of 60 steps, and more until a worker has died."""
    for step in itertools.count():
        if step >= 60 and workers.died:
            return
        yield step


def freeze(process: subprocess.Popen[bytes], lock: Path) -> None:
    """Stop a process, but not within a commit to the store: all others would wait for it to go on."""
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stop(process)


def wait_until_some_are_sent(db: Any, name: str, seconds: float = 1.0) -> None:
    """Wait until any bucket is exported, for so long at most: all who would do it may be dead or frozen."""
    waiting = notified(db, name, LINK)
    if not waiting:
        return
    fired = threading.Event()
    key = LinkKeys(name, LINK).state(waiting[0])
    watch = transact(db, lambda tr: tr.watch(key))
    watch.on_ready(lambda _: fired.set())
    fired.wait(seconds)
    watch.cancel()


def cut_connections(export: OpenLink) -> None:
    """Cut all connections to the database but this one, in whatever transaction they are."""
    sql(
        export,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND usename = current_user",
    )


@pytest.mark.parametrize("point", ["locked", "applied"])
def test_a_connection_that_is_cut_in_the_transaction_loses_nothing(
    db: Any, name: str, postgres_url: str, point: str
) -> None:
    export = configure(db, name)
    change(db, name, {"a": 1})
    cut: list[str] = []

    def cut_once(reached: str) -> None:
        if reached == point and not cut:
            cut.append(reached)
            cut_connections(link_of(db, name))

    task = bucket_task(db, name, "a", cut_once)
    assert task.run() > 0
    assert "terminat" in task.problem or "closed" in task.problem
    assert failing(db, name)
    assert task.run() == CAUGHT_UP
    assert failing(db, name) == []
    assert table_of(export) == [("a", 1)]


@pytest.mark.parametrize("point", ["applied", "committed"])
def test_a_server_that_is_restarted_in_the_transaction_loses_nothing(
    db: Any, name: str, postgres: PostgresServer, postgres_url: str, point: str
) -> None:
    export = configure(db, name)
    change(db, name, {"a": 1})
    restarted: list[str] = []

    def restart_once(reached: str) -> None:
        if reached == point and not restarted:
            restarted.append(reached)
            postgres.restart()

    task = bucket_task(db, name, "a", restart_once)
    pauses = [task.run()]
    while pauses[-1] >= 0.0 and len(pauses) < 5:
        pauses.append(task.run())

    assert pauses[-1] == CAUGHT_UP
    assert table_of(export) == [("a", 1)]
    assert waits(db, name, LINK) == 0


def test_a_worker_that_stands_still_in_its_transaction_holds_its_bucket_only(
    db: Any, name: str, postgres_url: str
) -> None:
    """The others wait for it for as long as the database lets them, and then go on with other buckets."""
    export = configure(db, name)
    first, second = keys_of_two_buckets()
    change(db, name, {first: 1, second: 2})

    def others(reached: str) -> None:
        if reached == "applied":
            assert bucket_task(db, name, second).run() == CAUGHT_UP

    assert bucket_task(db, name, first, others).run() == CAUGHT_UP
    assert table_of(export) == sorted([(first, 1), (second, 2)])


def test_commits_are_durable_where_the_server_is_set_to_promise_less(
    db: Any, name: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sa.make_url(postgres_url)
    options = f"{url.query['options']} -csynchronous_commit=off"
    less = url.update_query_dict({"options": options})
    monkeypatch.setenv("CQ_REPORTING_URL", less.render_as_string(hide_password=False))
    export = configure(db, name)
    with reporting_of(export).transaction() as (conn, _):
        inside = conn.execute(sa.text("SHOW synchronous_commit")).scalar_one()
        timeout = conn.execute(sa.text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    with reporting_of(export).reading() as (conn, _):
        outside = conn.execute(sa.text("SHOW synchronous_commit")).scalar_one()

    assert (inside, outside, timeout) == ("on", "off", "1min")


def failing(db: Any, name: str) -> list[Any]:
    return [*transact(db, lambda tr: read_failures(tr.snapshot, LinkKeys(name, LINK))).values()]


def keys_of_two_buckets() -> tuple[str, str]:
    """Two keys that are in different buckets."""
    keys = [f"k{number}" for number in range(20)]
    first = keys[0]
    other = next(key for key in keys if bucket(key) != bucket(first))
    return first, other
