"""Which link feeds which table, and what only a table can tell after it was emptied, dropped or taken over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.keys.link import LinkKeys
from cq.links import CannotSend, Changes, LinkStopped
from cq.observers.links.operate import OpenLink
from cq.observers.links.sql.progress import ProgressTable
from cq.observers.links.target import OutdatedBatch
from cq.observers.links.task import LinkTask
from cq.observers.monitoring.link_status import link_status
from cq.observers.scheduling.runner import DONE
from tests.kit.queues import add, copy_store, stored
from tests.kit.stores import db as db
from tests.links.linkhelpers import (
    bucket,
    bucket_task,
    combine,
    entries_aside,
    link_tasks,
    problems,
    waits,
    work,
)
from tests.links.linkhelpers import found as link_of
from tests.links.sqlhelpers import configure, definition_of, reporting_of, sql, table_of, target_of

KEY = "a"
BUCKET = bucket(KEY)
LINK = "export"
SECONDS = 60.0


@pytest.fixture
def export(db: Any, name: str, reporting_url: str) -> OpenLink:
    """A queue with one value exported."""
    export = configure(db, name)
    change(db, name, 1)
    work(db, name)
    return export


def change(db: Any, name: str, update: int, key: str = KEY) -> None:
    """Change a value, without exporting that."""
    add(db, name, {key: update})
    combine(db, name)


def task_of(db: Any, name: str, signal: Any, batch_entries: int = 50) -> LinkTask:
    """The task of the key's bucket; `signal` is called with its points."""
    task = bucket_task(db, name, KEY, signal)
    task._target.batch_entries = batch_entries
    return task


class TestZombies:
    """A worker that stands still with a batch while others go on, then wakes up."""

    def test_it_notes_nothing_in_a_queue_that_was_deleted(self, db: Any, name: str, export: OpenLink) -> None:
        """Else one of its name would seem to have exported what it has not, and the first one's rows would stay."""
        change(db, name, 1)

        def deleted(reached: str) -> None:
            if reached == "sent" and not gone:
                gone.append(True)
                admin.delete(db, name)

        gone: list[bool] = []
        zombie = task_of(db, name, deleted)
        assert zombie.run() == 0.0
        assert zombie.run() == DONE
        below = LinkKeys(name, LINK).prefix
        assert stored(db, (below, below + b"\xff")) == []

        again = configure(db, name)
        change(db, name, 7)
        assert any("the store was set back" in problem for problem in problems(db, name))
        assert table_of(again) == [(KEY, 2)]

    def test_it_sets_nothing_aside_that_others_have_passed(
        self, db: Any, name: str, export: OpenLink
    ) -> None:
        change(db, name, 1)

        def late(changes: Changes) -> None:
            work(db, name)
            raise CannotSend("too late to say")

        zombie = task_of(db, name, lambda point: None)
        zombie._target.apply = late  # type: ignore[method-assign]
        assert zombie.run() == 0.0
        assert entries_aside(db, name, LINK) == []
        assert table_of(export) == [(KEY, 2)]


def copied(db: Any, folder: Path) -> Path:
    """A backup of the embedded store."""
    backup = folder / "backup.db"
    copy_store(folder / "test.db", backup)
    return backup


class TestSetBack:
    """One of the databases was set back: noticed at start, at each batch, and said with what to do."""

    def expect(self, db: Any, name: str, words: str) -> None:
        """The export is stopped for this reason, at start and when there is something to export."""
        assert any(words in problem for problem in problems(db, name)), problems(db, name)
        (status,) = link_status(db, name)
        assert status.state == "stopped"
        assert f"cq link rebuild {name}" in status.error
        assert f"cq link rebase {name}" in status.error
        change(db, name, 1, "later")
        problems(db, name)
        assert waits(db, name, LINK) > 0

    def test_the_reporting_database_is_another_one(
        self, db: Any, name: str, export: OpenLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = str(reporting_of(export).engine.url.render_as_string(hide_password=False))
        monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{tmp_path / 'other.db'}")
        other = link_of(db, name)
        other.target.create()
        self.expect(db, name, "is not the one sent to before")

        # When that was a mistake, it is enough to mend it.
        monkeypatch.setenv("CQ_REPORTING_URL", before)
        work(db, name)
        assert link_status(db, name)[0].state == "active"
        assert table_of(export) == [(KEY, 1), ("later", 1)]

    @pytest.fixture
    def restored(self, db: Any, name: str, export: OpenLink, tmp_path: Path) -> Iterator[Any]:
        """The store as it was before the latest changes, which the table has."""
        backup = copied(db, tmp_path)
        change(db, name, 1)
        change(db, name, 7, "lost")
        work(db, name)
        database: Any = cq.open(f"embedded:{backup}")
        yield database
        database.close()

    def test_the_worker_of_the_lost_store_is_kept_out(
        self, db: Any, name: str, export: OpenLink, restored: Any
    ) -> None:
        change(db, name, 100)
        link_of(restored, name).rebuild()
        combine(restored, name)
        work(restored, name)

        assert any("that this store does not have" in problem for problem in problems(db, name))
        assert table_of(export) == [(KEY, 1)]

    def test_a_store_that_was_made_anew_does_not_mix_its_values(
        self, name: str, export: OpenLink, tmp_path: Path
    ) -> None:
        anew: Any = cq.open(f"embedded:{tmp_path / 'anew.db'}")
        cq.configure(anew, name, links=[links.table("report")])
        change(anew, name, 50, "new")

        assert any(
            "is fed by the link" in each and "of another store" in each for each in problems(anew, name)
        )
        assert table_of(export) == [(KEY, 1)]
        link_of(anew, name).rebuild()
        combine(anew, name)
        work(anew, name)
        assert table_of(export) == [("new", 50)]
        anew.close()


class TestTables:
    """Which queue feeds which table."""

    def test_a_table_with_rows_of_somebody_else_is_refused_until_taken_over(
        self, db: Any, name: str, export: OpenLink
    ) -> None:
        sql(export, "DELETE FROM cq_progress")
        other = f"{name}-2"
        report = configure(db, other)
        change(db, other, 4, "z")

        assert any("has rows already" in problem for problem in problems(db, other))
        assert table_of(report) == [(KEY, 1)]
        link_of(db, other).rebuild()
        combine(db, other)
        work(db, other)
        assert table_of(report) == [("z", 4)]
        change(db, name, 1)
        words = f"the table 'report' is fed by the link 'export' of queue {other!r} of this store"
        assert any(words in problem for problem in problems(db, name))
        assert table_of(report) == [("z", 4)]

    def test_a_table_has_one_feeder_whether_its_schema_is_named_or_not(
        self, db: Any, name: str, export: OpenLink
    ) -> None:
        other = f"{name}-2"
        with reporting_of(export).reading() as (conn, dialect):
            schema = "main" if dialect.name == "sqlite" else conn.dialect.default_schema_name
        cq.configure(db, other, links=[links.table("report", schema=schema)])
        change(db, other, 4, "z")

        assert any("is fed by the link 'export'" in problem for problem in problems(db, other))
        assert table_of(export) == [(KEY, 1)]

    @pytest.mark.parametrize("step", ["rows", "insert_missing"])
    @pytest.mark.parametrize("is_same", [True, False], ids=["another worker", "another link"])
    @pytest.mark.parametrize("reporting_url", ["postgresql", "mariadb"], indirect=True)
    def test_a_table_is_claimed_once_by_those_who_begin_at_the_same_time(
        self,
        db: Any,
        name: str,
        reporting_url: str,
        is_same: bool,
        step: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Another one claims it after this one has looked for its feeder, or before this one inserts its rows."""
        target, first = target_of(configure(db, name)), name if is_same else f"{name}-2"
        configure(db, first)
        change(db, first, 4)
        steps = {each: getattr(ProgressTable, each) for each in ("rows", "insert_missing")}

        def outrun(*given: Any, **how: Any) -> Any:
            monkeypatch.setattr(ProgressTable, step, steps[step])
            before = steps["rows"](*given, **how) if step == "rows" else None
            work(db, first)
            return before if step == "rows" else steps[step](*given, **how)

        monkeypatch.setattr(ProgressTable, step, outrun)
        with nullcontext() if is_same else pytest.raises(LinkStopped, match="is fed by the link"):
            target.apply(Changes(name, BUCKET, "", "", []))
        assert table_of(link_of(db, first)) == [(KEY, 4)]

    def test_a_sweep_that_comes_late_deletes_nothing_of_others(
        self, db: Any, name: str, export: OpenLink
    ) -> None:
        target, everything = target_of(export), b"\xff" * 22
        assert target.sweep(0, b"") == 0
        epoch = export.rebase()
        work(db, name)
        with pytest.raises(OutdatedBatch):
            target.sweep(0, everything)
        other = f"{name}-2"
        cq.configure(db, other, links=[links.table("report")])
        change(db, other, 4, "z")
        link_of(db, other).rebuild()
        with pytest.raises(LinkStopped, match="is fed by the link"):
            target.sweep(epoch, everything)
        assert table_of(export) == [(KEY, 1)]


def test_the_keeper_is_content_while_buckets_move(db: Any, name: str, export: OpenLink) -> None:
    """What is exported while it looks is in order: it must not begin again and again."""
    change(db, name, 1)
    with link_tasks(db, name) as tasks:
        keeper, task = tasks[0], tasks[1 + BUCKET]
        look = keeper._read

        def overtaken(tr: Any) -> Any:
            read = look(tr)
            task.run()
            return read

        keeper._read = overtaken
        assert keeper.run() == DONE


def test_a_table_made_anew_stops_its_export(db: Any, export: OpenLink) -> None:
    sql(export, f"DROP TABLE {definition_of(export).name}")
    export.target.create()
    change(db, export.queue, 1, key="b")

    with pytest.raises(AssertionError, match="cq link rebuild"):
        work(db, export.queue)
    export.rebuild()
    combine(db, export.queue)
    work(db, export.queue)
    assert dict(table_of(export)) == {KEY: 1, "b": 1}


def test_a_rebase_waits_for_the_batches_under_way_and_not_for_later_ones(
    db: Any, name: str, postgres_url: str
) -> None:
    """While there are always some under way."""
    export = configure(db, name)
    over = threading.Event()

    def batches() -> None:
        while not over.is_set():
            with reporting_of(export).transaction() as (conn, dialect):
                ProgressTable.of(dialect, None).rows(conn, definition_of(export).name, lock=True)
                over.wait(0.05)

    threads = [threading.Thread(target=batches) for _ in range(4)]
    for thread in threads:
        thread.start()
    done = threading.Thread(target=export.rebase)
    done.start()
    done.join(SECONDS)
    is_done = not done.is_alive()
    over.set()
    for thread in [*threads, done]:
        thread.join()
    assert is_done
