"""The fence: whatever is repeated, late, first twice at once or set back, nothing is lost, repeated or mixed up."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import cq
from cq.encoding.hashing import bucket_of
from cq.keys.export import ExportKeys, generation_of
from cq.observers.export.batch import CLOSED, CannotExport, ExportBatch, ExportStopped, OutdatedBatch
from cq.observers.export.keeper import Keeper
from cq.observers.export.queue import BUCKETS
from cq.observers.export.rows import encoded_key
from cq.observers.export.spec import export_spec
from cq.observers.export.task import ExportTask
from cq.observers.exporters import export_tasks
from cq.observers.monitoring.export_status import export_status
from cq.observers.scheduling.runner import DONE
from cq.observers.sql.check import init
from cq.observers.sql.configured import Export, find_export
from cq.observers.sql.exporter import SqlExporter
from cq.observers.sql.progress import ProgressTables
from cq.observers.sql.rebuild import rebase, rebuild
from cq.store.transact import transact
from tests.helpers import copy_store, stored
from tests.observers.export.exporthelpers import entries_aside, waits, with_settings
from tests.observers.sql.sqlhelpers import Compared, add, combine, configure, problems, sql, table_of, work

KEY = "a"
BUCKET = bucket_of(encoded_key(KEY), BUCKETS)
SECONDS = 60.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    database: Any = cq.open(f"embedded:{tmp_path / 'test.db'}")
    yield database
    database.close()


@pytest.fixture
def export(db: Any, name: str, reporting_url: str) -> Export:
    """A queue with one value exported."""
    export = configure(db, name)
    change(db, name, 1)
    work(db, name)
    return export


def change(db: Any, name: str, update: int, key: str = KEY) -> None:
    """Change a value, without exporting that."""
    add(db, name, {key: update})
    combine(db, name)


def moved(db: Any, name: str, table: str) -> Export:
    """Have the queue exported to another table, which is told of all values, without exporting that."""
    cq.configure(db, name, observers=[export_spec(table)])
    found = find_export(db, name)
    init(found.reporting, found.definition)
    combine(db, name)
    return found


def task(
    db: Any, export: Export, signal: Callable[[str], object] = lambda point: None, **limits: Any
) -> ExportTask:
    """The task of the key's bucket; `signal` is called with points of the task and of its exporter."""
    exporter = SqlExporter(export.reporting, export.definition, export.store)
    exporter.signal = signal
    return with_settings(ExportTask(db, export.queue, BUCKET, exporter), signal=signal, **limits)


def stop_at(point: str) -> Callable[[str], None]:
    """A process that dies there."""

    def signal(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    return signal


def progress(export: Export) -> list[tuple[int, int, bytes]]:
    """(epoch, bucket, sequence) of all rows of progress."""
    with export.reporting.reading() as (conn, _):
        rows = conn.execute(sa.text("SELECT epoch, bucket, sequence FROM cq_progress"))
        return sorted((epoch, bucket, bytes(sequence)) for epoch, bucket, sequence in rows)


class TestCrashes:
    """A worker that dies anywhere between the two databases."""

    @pytest.mark.parametrize("point", ["read", "locked", "applied", "committed", "exported", "cleared"])
    def test_the_next_one_goes_on(self, db: Any, name: str, export: Export, point: str) -> None:
        change(db, name, 1)
        with pytest.raises(KeyboardInterrupt):
            task(db, export, stop_at(point)).run()
        change(db, name, 5, "b")
        work(db, name)

        assert table_of(export) == [(KEY, 2), ("b", 5)]
        assert waits(db, name) == 0

    @pytest.mark.parametrize("entries", [1, 2, 3, 10])
    def test_also_with_batches_of_other_sizes(self, db: Any, name: str, export: Export, entries: int) -> None:
        """What was applied as one batch is read again as several, and the other way round."""
        for number in range(5):
            change(db, name, 1)
            if number == 2:
                with pytest.raises(KeyboardInterrupt):
                    task(db, export, stop_at("committed"), batch_entries=2).run()
        rows: list[Any] = []
        other = task(
            db,
            export,
            lambda point: rows.append(table_of(export)) if point == "exported" else None,
            batch_entries=entries,
        )
        while other.run() == 0.0:
            pass

        values = [value for row in rows for _, value in row]
        assert values == sorted(values)
        assert table_of(export) == [(KEY, 6)]
        assert waits(db, name) == 0


class TestZombies:
    """A worker that stands still with a batch while others go on, then wakes up."""

    @pytest.mark.parametrize("point", ["read", "committed", "exported"])
    def test_its_batch_changes_nothing(self, db: Any, name: str, export: Export, point: str) -> None:
        change(db, name, 1)

        def overtaken(reached: str) -> None:
            if reached == point and not went_on:
                went_on.append(True)
                change(db, name, 10)
                work(db, name)
                change(db, name, -12)  # the value is 0: deleted
                work(db, name)
                assert table_of(export) == []

        went_on: list[bool] = []
        zombie = task(db, export, overtaken)
        while zombie.run() == 0.0:
            pass

        assert went_on
        assert table_of(export) == []
        assert waits(db, name) == 0
        assert zombie.problem == ""
        change(db, name, 3)
        work(db, name)
        assert table_of(export) == [(KEY, 3)]

    def test_it_is_kept_out_by_a_rebase_too(self, db: Any, name: str, export: Export) -> None:
        change(db, name, 1)

        def rebased(reached: str) -> None:
            if reached == "read" and not went_on:
                went_on.append(True)
                rebase(db, export)
                change(db, name, -2)
                work(db, name)

        went_on: list[bool] = []
        zombie = task(db, export, rebased)
        assert zombie.run() == 0.0
        assert zombie.run() == DONE

        assert table_of(export) == []

    def test_it_notes_nothing_in_a_queue_that_was_deleted(self, db: Any, name: str, export: Export) -> None:
        """Else one of its name would seem to have exported what it has not, and the first one's rows would stay."""
        change(db, name, 1)

        def deleted(reached: str) -> None:
            if reached == "exported" and not gone:
                gone.append(True)
                cq.delete(db, name)

        gone: list[bool] = []
        zombie = task(db, export, deleted)
        assert zombie.run() == 0.0
        assert zombie.run() == DONE
        below = ExportKeys(name).prefix
        assert stored(db, (below, below + b"\xff")) == []

        again = configure(db, name)
        change(db, name, 7)
        assert any("the store was set back" in problem for problem in problems(db, name))
        assert table_of(again) == [(KEY, 2)]

    def test_it_sets_nothing_aside_that_others_have_passed(self, db: Any, name: str, export: Export) -> None:
        change(db, name, 1)

        def late(batch: ExportBatch) -> None:
            work(db, name)
            raise CannotExport("too late to say")

        assert ExportTask(db, name, BUCKET, late).run() == 0.0
        assert entries_aside(db, name) == []
        assert table_of(export) == [(KEY, 2)]


class TestFirstUse:
    """The first row of progress, made by two at once."""

    def test_two_workers_on_one_bucket(self, db: Any, name: str, reporting_url: str) -> None:
        export = configure(db, name)
        for number in range(6):
            change(db, name, number + 1)
        reached = threading.Barrier(2)

        def together(point: str) -> None:
            if point == "read" and not reached.broken:
                try:
                    reached.wait(5)
                except threading.BrokenBarrierError:
                    return
                reached.abort()

        def run(entries: int) -> None:
            mine = task(db, find_export(db, name), together, batch_entries=entries)
            while (pause := mine.run()) != DONE:
                if pause > 0:
                    failed.append(mine.problem)
                    return

        failed: list[str] = []
        threads = [threading.Thread(target=run, args=[entries]) for entries in (1, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)

        assert failed == []
        assert table_of(export) == [(KEY, 21)]
        assert [bucket for _, bucket, _ in progress(export)] == [BUCKET]
        assert waits(db, name) == 0


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
        (status,) = export_status(db, name)
        assert status.state == "stopped"
        assert f"cq export rebuild {name}" in status.error
        assert f"cq export rebase {name}" in status.error
        change(db, name, 1, "later")
        work_stopped(db, name)

    def test_the_reporting_database_was_restored(
        self, db: Any, name: str, tmp_path: Path, sqlite_url: str
    ) -> None:
        export = configure(db, name)
        change(db, name, 1)
        work(db, name)
        export.reporting.close()
        shutil.copy(tmp_path / "report.db", tmp_path / "report.backup")
        change(db, name, 1)
        work(db, name)
        export.reporting.close()
        shutil.copy(tmp_path / "report.backup", tmp_path / "report.db")

        self.expect(db, name, "lacks changes that queue")
        assert table_of(export) == [(KEY, 1)]
        rebuild(db, find_export(db, name))
        combine(db, name)
        work(db, name)
        assert table_of(export) == [(KEY, 2), ("later", 1)]
        assert Compared(db, find_export(db, name)).differences == []

    def test_the_reporting_database_is_another_one(
        self, db: Any, name: str, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = str(export.reporting.engine.url.render_as_string(hide_password=False))
        monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{tmp_path / 'other.db'}")
        other = find_export(db, name)
        init(other.reporting, other.definition)
        self.expect(db, name, "is not the one exported to before")

        # When that was a mistake, it is enough to mend it.
        monkeypatch.setenv("CQ_REPORTING_URL", before)
        work(db, name)
        assert export_status(db, name)[0].state == "active"
        assert table_of(export) == [(KEY, 1), ("later", 1)]

    def test_the_progress_was_emptied(self, db: Any, name: str, export: Export) -> None:
        sql(export, "DELETE FROM cq_progress")
        sql(export, "DELETE FROM report")
        self.expect(db, name, "lacks changes that queue")

        rebuild(db, find_export(db, name))
        combine(db, name)
        work(db, name)
        assert table_of(export) == [(KEY, 1), ("later", 1)]

    def test_a_rebase_goes_on_from_here(self, db: Any, name: str, export: Export) -> None:
        sql(export, "DELETE FROM cq_progress")
        sql(export, "DELETE FROM report")
        self.expect(db, name, "lacks changes that queue")

        rebase(db, find_export(db, name))
        work(db, name)
        assert table_of(export) == [("later", 1)]
        (difference,) = Compared(db, find_export(db, name)).differences
        assert (difference.key, difference.details["row"]) == (KEY, None)

    @pytest.fixture
    def restored(self, db: Any, name: str, export: Export, tmp_path: Path) -> Iterator[Any]:
        """The store as it was before the latest changes, which the table has."""
        backup = copied(db, tmp_path)
        change(db, name, 1)
        change(db, name, 7, "lost")
        work(db, name)
        database: Any = cq.open(f"embedded:{backup}")
        yield database
        database.close()

    def test_the_store_was_restored(self, name: str, export: Export, restored: Any) -> None:
        assert table_of(export) == [(KEY, 2), ("lost", 7)]
        self.expect(restored, name, "the store was set back")

        rebuild(restored, find_export(restored, name))
        combine(restored, name)
        work(restored, name)
        assert table_of(export) == [(KEY, 1), ("later", 1)]
        assert Compared(restored, find_export(restored, name)).differences == []

    def test_the_store_was_restored_and_a_rebase_goes_on(
        self, name: str, export: Export, restored: Any
    ) -> None:
        self.expect(restored, name, "the store was set back")

        rebase(restored, find_export(restored, name))
        work(restored, name)
        assert table_of(export) == [(KEY, 2), ("later", 1), ("lost", 7)]
        change(restored, name, 10)
        work(restored, name)
        assert table_of(export) == [(KEY, 11), ("later", 1), ("lost", 7)]

    def test_the_worker_of_the_lost_store_is_kept_out(
        self, db: Any, name: str, export: Export, restored: Any
    ) -> None:
        change(db, name, 100)
        rebuild(restored, find_export(restored, name))
        combine(restored, name)
        work(restored, name)

        assert any("this store has no record of" in problem for problem in problems(db, name))
        assert table_of(export) == [(KEY, 1)]

    def test_a_rebuild_in_a_restored_store_has_a_generation_that_the_table_has_not(
        self, db: Any, name: str, export: Export, restored: Any
    ) -> None:
        for _ in range(3):
            rebuild(db, find_export(db, name))
        combine(db, name)
        work(db, name)
        highest = max(generation_of(bytes(row[0])) for row in table_of(export, "sequence"))

        generation = rebuild(restored, find_export(restored, name))
        combine(restored, name)
        work(restored, name)
        assert generation > highest
        assert table_of(export) == [(KEY, 1)]

    def test_a_store_that_was_made_anew_does_not_mix_its_values(
        self, name: str, export: Export, tmp_path: Path
    ) -> None:
        anew: Any = cq.open(f"embedded:{tmp_path / 'anew.db'}")
        cq.configure(anew, name, observers=[export_spec("report")])
        change(anew, name, 50, "new")

        assert any("is fed by queue" in each and "of another store" in each for each in problems(anew, name))
        assert table_of(export) == [(KEY, 1)]
        rebuild(anew, find_export(anew, name))
        combine(anew, name)
        work(anew, name)
        assert table_of(export) == [("new", 50)]
        anew.close()


def work_stopped(db: Any, name: str) -> None:
    """Run all tasks: nothing may be exported."""
    found = find_export(db, name)
    before = table_of(found)
    for each in export_tasks(db, found.config, found.observer):
        assert each.run() > 0 or each.run() == DONE or isinstance(each, Keeper)
        each.end()
    assert table_of(found) == before
    assert waits(db, name) > 0


class TestEpochs:
    """Rebuilds and rebases, and what a crash in the middle of one leaves."""

    def test_a_rebuild_without_need_changes_nothing(self, db: Any, name: str, export: Export) -> None:
        change(db, name, 1, "b")
        change(db, name, 1, "c")
        work(db, name)
        sql(export, "DELETE FROM report WHERE value = 1")
        generation = rebuild(db, export)
        assert export_status(db, name)[0].state == "filling"
        combine(db, name)
        work(db, name)

        assert export_status(db, name)[0].state == "active"
        assert table_of(export) == [(KEY, 1), ("b", 1), ("c", 1)]
        assert {generation_of(bytes(row[0])) for row in table_of(export, "sequence")} == {generation}

    def test_rows_that_no_value_has_written_are_swept(self, db: Any, name: str, export: Export) -> None:
        sql(export, "UPDATE report SET value = 8")
        with export.reporting.transaction() as (conn, dialect):
            sequence, now = b"\0\0\0\1" + b"\1" * 18, dialect.moment(datetime.now(UTC))
            stale: dict[str, list[Any]] = {"key": ["stale"], "value": [1], "sequence": [sequence]}
            dialect.upsert(conn, export.definition.table(dialect), stale, {"updated_at": now})
        rebuild(db, export)
        combine(db, name)
        work(db, name)

        assert table_of(export) == [(KEY, 1)]

    def test_a_rebuild_goes_on_while_values_change(self, db: Any, name: str, export: Export) -> None:
        add(db, name, {f"k{number}": 1 for number in range(300)})
        combine(db, name)
        work(db, name)
        rebuild(db, export)
        for number in range(300):
            if number % 3 == 0:
                add(db, name, {f"k{number}": -1})
            elif number % 3 == 1:
                add(db, name, {f"k{number}": 5})
            if number % 50 == 0:
                combine(db, name)
        combine(db, name)
        work(db, name)

        assert len(table_of(export)) == 201
        assert Compared(db, find_export(db, name)).differences == []

    def test_what_was_applied_and_waits_to_be_cleared_is_not_applied_again(
        self, db: Any, name: str, export: Export
    ) -> None:
        change(db, name, 1)
        change(db, name, 1)
        with pytest.raises(KeyboardInterrupt):
            task(db, export, stop_at("committed")).run()
        rebase(db, export)
        seen: list[Any] = []
        other = task(
            db,
            export,
            lambda point: seen.append(table_of(export)) if point == "exported" else None,
            batch_entries=1,
        )
        while other.run() == 0.0:
            pass

        assert seen == [[(KEY, 3)], [(KEY, 3)]]
        assert waits(db, name) == 0

    def test_a_crash_between_the_databases_leaves_the_export_standing_still(
        self, db: Any, name: str, export: Export, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change(db, name, 1)
        change(db, name, -2)
        change(db, name, 2)
        with pytest.raises(KeyboardInterrupt):  # applied, and not cleared
            task(db, export, stop_at("committed")).run()
        with monkeypatch.context() as patched:
            patched.setattr("cq.observers.sql.rebuild._begin_epoch", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                rebase(db, export)

        assert any("ended by a rebuild or rebase" in problem for problem in problems(db, name))
        assert table_of(export) == [(KEY, 2)]
        rebase(db, export)
        seen: list[Any] = []
        again = task(
            db,
            export,
            lambda point: seen.append(table_of(export)) if point == "exported" else None,
            batch_entries=1,
        )
        while again.run() == 0.0:
            pass
        assert seen == [[(KEY, 2)]] * 3  # nothing was applied again
        assert waits(db, name) == 0

    def test_closed_progress_stays(self, db: Any, name: str, export: Export) -> None:
        rebase(db, export)
        rebase(db, export)

        closed = [(epoch, sequence) for epoch, bucket, sequence in progress(export) if bucket == BUCKET]
        assert [epoch for epoch, _ in closed] == [0, 1, 2]
        assert [sequence == CLOSED for _, sequence in closed] == [True, True, False]


class TestTables:
    """Which queue feeds which table."""

    def test_a_table_of_another_queue_is_refused(self, db: Any, name: str, export: Export) -> None:
        other = f"{name}-2"
        cq.configure(db, other, observers=[export_spec("report")])
        change(db, other, 9)

        words = f"the table 'report' is fed by queue {name!r} of this store"
        assert any(words in problem for problem in problems(db, other))
        assert table_of(export) == [(KEY, 1)]

    def test_another_table_is_filled_and_the_first_one_left(self, db: Any, name: str, export: Export) -> None:
        change(db, name, 1, "b")
        second = moved(db, name, "second")
        work(db, name)

        assert table_of(second) == [(KEY, 1), ("b", 1)]
        assert table_of(export) == [(KEY, 1)]

    def test_a_table_with_rows_of_somebody_else_is_refused_until_taken_over(
        self, db: Any, name: str, export: Export
    ) -> None:
        sql(export, "DELETE FROM cq_tables")
        other = f"{name}-2"
        report = configure(db, other)
        change(db, other, 4, "z")

        assert any("has rows already" in problem for problem in problems(db, other))
        assert table_of(report) == [(KEY, 1)]
        rebuild(db, find_export(db, other))
        combine(db, other)
        work(db, other)
        assert table_of(report) == [("z", 4)]
        change(db, name, 1)
        words = f"the table 'report' is fed by queue {other!r} of this store"
        assert any(words in problem for problem in problems(db, name))
        assert table_of(report) == [("z", 4)]

    def test_there_and_back_again(self, db: Any, name: str, export: Export) -> None:
        """A worker that has not heard of it takes nothing away from the others, and a first table is swept."""
        change(db, name, 1, "gone")
        work(db, name)
        old = export_tasks(db, export.config, export.observer)
        second = moved(db, name, "second")
        change(db, name, -1, "gone")
        work(db, name)
        for each in old:
            each.run()
            each.end()
        change(db, name, 1)
        work(db, name)
        assert table_of(second) == [(KEY, 2)]
        assert table_of(export) == [(KEY, 1), ("gone", 1)]

        moved(db, name, "report")
        work(db, name)
        assert table_of(export) == [(KEY, 2)]
        assert problems(db, name) == []

    def test_a_sweep_that_comes_late_deletes_nothing_of_others(
        self, db: Any, name: str, export: Export
    ) -> None:
        exporter = SqlExporter(export.reporting, export.definition, export.store)
        assert exporter.sweep(name, 0, b"") == 0
        rebase(db, export)
        with pytest.raises(OutdatedBatch):
            exporter.sweep(name, 0, CLOSED)
        other = f"{name}-2"
        cq.configure(db, other, observers=[export_spec("report")])
        change(db, other, 4, "z")
        rebuild(db, find_export(db, other))
        with pytest.raises(ExportStopped, match="is fed by queue"):
            exporter.sweep(name, 1, CLOSED)
        assert table_of(export) == [(KEY, 1)]

    def test_a_worker_that_knows_of_the_first_table_only_leaves_what_is_for_the_second(
        self, db: Any, name: str, export: Export
    ) -> None:
        old = export_tasks(db, export.config, export.observer)
        second = moved(db, name, "second")
        change(db, name, 5)
        assert [each.run() for each in old if isinstance(each, ExportTask)].count(DONE) == BUCKETS - 1
        for each in old:
            each.end()
        assert table_of(export) == [(KEY, 1)]
        work(db, name)

        assert table_of(second) == [(KEY, 6)]

    def test_enabling_again_sweeps_what_was_deleted_meanwhile(
        self, db: Any, name: str, export: Export
    ) -> None:
        change(db, name, 1, "b")
        work(db, name)
        cq.configure(db, name, observers=[])
        change(db, name, -1)
        cq.configure(db, name, observers=[export_spec("report")])
        combine(db, name)
        work(db, name)

        assert table_of(export) == [("b", 1)]


def test_the_keys_of_an_export_are_all_below_its_queue(db: Any, name: str, export: Export) -> None:
    rebuild(db, export)
    stored = transact(db, lambda tr: [row.key for row in tr.get_range(b"cq/q/", b"cq/q0")])

    assert all(key.startswith(b"cq/q/" + name.encode() + b"/") for key in stored)
    assert any(key.startswith(ExportKeys(name).prefix) for key in stored)


def test_the_keeper_is_content_while_buckets_move(db: Any, name: str, export: Export) -> None:
    """What is exported while it looks is in order: it must not begin again and again."""
    change(db, name, 1)
    found = find_export(db, name)
    tasks = export_tasks(db, found.config, found.observer)
    keeper, bucket = tasks[0], tasks[1 + BUCKET]
    assert isinstance(keeper, Keeper)
    look = keeper._read

    def overtaken(tr: Any) -> Any:
        read = look(tr)
        bucket.run()
        return read

    keeper._read = overtaken  # type: ignore[method-assign]
    assert keeper.run() == DONE
    for each in tasks:
        each.end()


def test_a_first_batch_read_before_a_rebase_is_not_applied_after_it(
    db: Any, name: str, reporting_url: str
) -> None:
    """There is no row of progress yet that could have been closed."""
    export = configure(db, name)
    change(db, name, 1)
    others: list[object] = []

    def overtake(batch: ExportBatch) -> None:
        """The worker has read its batch; while it stands still, others rebase, export and go on."""
        if not others:
            others.append(rebase(db, export))
            work(db, name)
            change(db, name, 41)
            work(db, name)
        exporter(batch)

    exporter = SqlExporter(export.reporting, export.definition, export.store)
    late = ExportTask(db, name, BUCKET, overtake)
    for _ in range(3):
        late.run()

    assert table_of(export) == [(KEY, 42)]
    assert late.problem == ""


def test_a_table_made_anew_stops_its_export(db: Any, export: Export) -> None:
    sql(export, f"DROP TABLE {export.definition.name}")
    init(export.reporting, export.definition)
    change(db, export.queue, 1, key="b")

    with pytest.raises(AssertionError, match="cq export rebuild"):
        work(db, export.queue)
    rebuild(db, export)
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
            with export.reporting.transaction() as (conn, dialect):
                own = ProgressTables.of(dialect, None)
                own.owner(conn, str(export.definition), hold=True)
                over.wait(0.05)

    threads = [threading.Thread(target=batches) for _ in range(4)]
    for thread in threads:
        thread.start()
    done = threading.Thread(target=rebase, args=[db, export])
    done.start()
    done.join(SECONDS)
    is_done = not done.is_alive()
    over.set()
    for thread in [*threads, done]:
        thread.join()
    assert is_done
