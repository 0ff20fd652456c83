"""The system of the exports: one queue that is exported to a SQL table, and either database is set back.

An operator makes backups of the store and of the reporting database and restores each without the other one. The
store is restored as the documentation says: all processes that use it end before, and others start afterwards. Its
clock may be set back with it, so that versions occur a second time. The model has the updates and the reported values
of each key. It is saved and restored together with the store. An export that goes on after it was set back leaves
rows of lost keys in the table, or lacks rows, which the comparison at the end finds: most keys are used for a short
time only, so that no later update repairs their rows.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

import sqlalchemy as sa

import cq
from cq.keys.export import ExportKeys
from cq.observers.export.failure_note import FailureNote, NotedTask
from cq.observers.export.queue import BUCKETS
from cq.observers.export.rows import ReadLimits, read_entries
from cq.observers.sql import rebuild
from cq.observers.sql.configured import Export
from cq.observers.worker.worker import Worker
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from tests.helpers import copy_store
from tests.simulation.actors import WorkerPool
from tests.simulation.application import SUMS
from tests.simulation.hub import Process
from tests.simulation.model import Table, Violation
from tests.simulation.outboxmodel import Trouble
from tests.simulation.plan import Plan
from tests.simulation.scenario import LANDING, STORE, Scenario, check_verified, first_row, ranges_of
from tests.simulation.sql import URL_ENV, Connections, TableCopy, found_export, make_table
from tests.simulation.store import CommitRequest

_HOT: Final = ("hot 0", "hot 1")


@dataclass(frozen=True)
class Summed:
    """A transaction has added these updates."""

    updates: dict[str, int]


@dataclass(frozen=True)
class Told:
    """A pass has reported a value."""

    key: str
    value: int | None


class Exports(Scenario):
    """One run.

    Attributes:
        sums: {key: sum} of all committed updates that the store has not lost.
        table: the reported values of each key, and how far the table is.
    """

    has_table = True
    _restores = _table_restores = 0
    change_seconds: ClassVar[float] = 2.0
    """How long the operator waits between two operations, on average."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.report_path = folder / "report.db"
        self.sums: Counter[str] = Counter()
        self.table = Table()
        self.table_copy = TableCopy(self)
        self.connections = Connections(self)
        self.pause = self.rng.choice((0.1, 0.3, 1.0))
        self.workers = WorkerPool(self, self._make_worker)
        self._saved: Counter[str] | None = None
        self._saved_clock = 0.0
        self._is_to_be_rebuilt = False
        self._numbers_added = 0
        self.trouble = Trouble(lambda: self.hub.clock)

    @contextmanager
    def around(self) -> Iterator[None]:
        """SQL as the simulated processes see it; and each stop of an export is checked."""
        run, stop = NotedTask.run, FailureNote.stop
        begun: dict[NotedTask, float] = {}

        def running(task: NotedTask) -> float:
            begun[task] = self.hub.clock
            return run(task)

        def stopping(note: FailureNote, what: Any, *args: Any) -> float:
            self._check_stop(begun[what], args[-1])
            return stop(note, what, *args)

        with (
            self.connections.simulated(),
            patch.object(NotedTask, "run", running),
            patch.object(FailureNote, "stop", stopping),
        ):
            yield

    def begin(self) -> None:
        """Make the queue and its table, and start everybody."""
        os.environ[URL_ENV] = f"sqlite:///{self.report_path}"
        self._app().configure(self.inner, SUMS, buckets=self.rng.randint(1, 3))
        make_table(self.inner)
        self._start_all(self.rng.randint(1, 2))

    def _start_all(self, adders: int) -> None:
        for _ in range(adders):
            self.start_process("adder", "add", self._add_all)
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self.start_process("operator", "change", self._change)

    def _app(self) -> cq.App:
        made = cq.App()
        made.queue(SUMS, observers=[cq.Observer("anchor", 1, _observe)])
        return made

    def _make_worker(self, process: Process, identity: str) -> Worker:
        return self.worker(process, identity, self._app(), concurrency=2, beat_seconds=1.0)

    # Adders

    def _add_all(self, process: Process) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.pause))
            self._numbers_added += 1
            self._try(lambda: self._add(process))

    def _add(self, process: Process) -> None:
        rng = self.hub.rng
        keys = {rng.choice(_HOT), f"key {self._numbers_added // 10 + rng.randrange(3)}"}
        updates = {key: rng.randint(1, 3) * rng.choice((1, 1, -1)) for key in sorted(keys)}

        def run(tr: Any) -> None:
            cq.CombineQueue(SUMS).add(tr, updates)
            tr.notes.append(Summed(updates))

        transact(self.db(process), run)

    def _try(self, act: Callable[[], object]) -> None:
        """Do something that one of the databases, or cq, may refuse."""
        self.attempt(act, cq.CqError, sa.exc.DBAPIError)

    # The operator

    def _change(self, process: Process) -> None:
        doing = self._doing(process)
        kinds = [what for what in doing if what in self.plan]
        while kinds and not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.change_seconds))
            what = self.hub.rng.choice(kinds)
            self.trace(what)
            self._try(doing[what])

    def _doing(self, process: Process) -> dict[str, Callable[[], object]]:
        """{kind of operation: what begins it}."""
        return {
            "store set back": lambda: self.hub.start(self.sky, "change", self._set_store_back),
            "table set back": self._set_table_back,
            "export again": lambda: self._export_again(process),
            "come and go": lambda: self.workers.come_and_go(3),
        }

    def _check_stop(self, since: float, error: object) -> None:
        """A step that began at this time has stopped the export."""
        try:
            self.trouble.check(since, error)
        except Violation as violation:
            self.violations.append(str(violation))

    def _export_again(self, process: Process) -> None:
        """Rebuild or rebase; a rebase leaves what the table lacks, so everything is exported again in the end."""
        with self._repairing(process) as found:
            if self.hub.rng.random() < 0.3:
                rebuild.rebuild(self.db(process), found)
            else:
                self._is_to_be_rebuilt |= self._may_differ
                rebuild.rebase(self.db(process), found)

    @contextmanager
    def _repairing(self, process: Process) -> Iterator[Export]:
        """Until a rebuild or rebase has ended the databases disagree; afterwards only if one is set back again."""
        with found_export(self.db(process)) as found:
            restores = self._restores, self._table_restores
            self.trouble.note(True)
            yield found
        if restores == (self._restores, self._table_restores):
            self.trouble.note(False)

    @property
    def _may_differ(self) -> bool:
        """Whether a database may have been set back."""
        return not self.plan.on.isdisjoint(("store set back", "table set back"))

    def _set_table_back(self) -> None:
        if self.table_copy.save_or_restore() == "restored":
            self._table_restores += 1
            self.trouble.note(True)

    def _set_store_back(self) -> None:
        """Make a backup of the store, or restore the latest one."""
        copy = self.folder / "store-copy.db"
        if self._saved is None or self.hub.rng.random() < 0.5:
            copy_store(self.path_of(STORE), copy)
            self._saved, self._saved_clock = self.sums.copy(), self.hub.clock + self.hub.jumped
            self.trace("the store is saved")
            return
        for process in list(self._databases):
            if process.is_alive:
                self._die(process)
        for task in [each for each in self.hub.tasks if each.name == LANDING]:
            self.hub.tasks.discard(task)  # the commits under way are lost with the store
        self.inner.close()
        self._restores += 1
        shutil.copy(copy, self.path_of(STORE))
        self._open_store()
        if (
            self.hub.rng.random() < 0.5
        ):  # the clock, too: to a time after the backup, when lost versions come again
            self.hub.jumped = max(self.hub.rng.uniform(0, 1), self._saved_clock - self.hub.clock)
        self.sums = self._saved.copy()
        self._report_restored()
        self.trouble.note(True)
        self.trace("the store is restored")

    def _report_restored(self) -> None:
        """The table may get the entries that were queued in the backup, and then its values."""
        stored = self._stored()
        for key, value in self._queued():
            self.table.reported[key].append(value)
        for key, values in self.table.reported.items():
            values.append(stored.get(key))

    def path_of(self, name: str) -> Path:
        # A restored store gets another file: threads of the one before may still close its connections.
        return self.folder / f"{name}-{self._restores}.db"

    def _open_store(self) -> None:
        self.inner = self.inners[STORE] = self.open_store(STORE)
        self._boards[STORE].by_key.clear()

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Note what is committed."""
        for note in tr.notes:
            if isinstance(note, Summed):
                self.sums.update(note.updates)
            else:
                self.table.reported[note.key].append(note.value)

    def look_at_table(self, rows: dict[str, Any]) -> None:
        """The reporting database has committed something: no key goes back to an earlier value."""
        try:
            self.table.look(rows, set())
        except Violation as violation:
            self.violations.append(str(violation))

    def died(self, process: Process) -> None:
        self.connections.drop(process)

    # The end

    def settle(self) -> None:
        """Let two workers do everything; export all again if the operator has accepted a difference."""
        self.workers.replace(least=2)
        process = self.process("ending")
        self.hub.start(process, "finish", lambda: self._finish(process))

    def _finish(self, process: Process) -> None:
        while True:
            if self._is_to_be_rebuilt:
                self._try(lambda: self._rebuild(process))  # again, while another transaction is open
            retry_aside(self.db(process), SUMS)
            self.hub.wait(5.0)

    def _rebuild(self, process: Process) -> None:
        with self._repairing(process) as found:
            rebuild.rebuild(self.db(process), found)
        self._is_to_be_rebuilt = False

    def left(self) -> str:
        if self._is_to_be_rebuilt:
            return "a rebuild"
        self.table_copy.rebuild_if_stopped()
        tr = self.inner.create_transaction().snapshot
        if found := first_row(tr, self._ranges()):
            return found
        stored, table = self._stored(), self.connections.rows()
        if stored == table:
            return ""
        return f"the table differs from the values: {sorted(table.items() ^ stored.items())}"

    def _ranges(self) -> dict[str, tuple[bytes, bytes]]:
        """{name: range of keys} in which nothing is left at the end."""
        keys = ExportKeys(SUMS)
        return {**ranges_of(SUMS), "entries": keys.all_rows(), "failures": keys.failures()}

    def _queued(self) -> list[tuple[str, Any]]:
        """The entries of the export queue, in order for each key."""
        limits = ReadLimits(read_version=1 << 62, size=1 << 62, entries=1 << 62)
        tr = self.inner.create_transaction().snapshot
        found = [read_entries(tr, ExportKeys(SUMS), bucket, limits) for bucket in range(BUCKETS)]
        return [(entry.key, entry.value) for bucket in found for entry in bucket.entries]

    def _stored(self) -> dict[str, Any]:
        return dict(cq.CombineQueue(SUMS).scan(self.inner))

    def check(self) -> None:
        """Raises `Violation` unless the values are the sums of the updates that the store has."""
        expected = {key: total for key, total in self.sums.items() if total}
        if (stored := self._stored()) != expected:
            raise Violation(f"the values are {stored}, expected {expected}")
        check_verified(self.inner, SUMS, app=self._app(), wait_seconds=0)

    def close(self) -> None:
        self.connections.close()
        super().close()


def _observe(tr: Any, changes: list[cq.Change]) -> None:
    tr.notes += [Told(change.key, change.new) for change in changes]
