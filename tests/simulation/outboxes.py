"""The system of the outboxes: applications add rows in SQL transactions, and either database is set back.

Every row has a number, which is its update. The combiner concatenates, so the value of a key shows which rows were
added, how often, and in which order. A row's id is drawn some time before its transaction commits, as from a sequence:
rows with lower ids become visible later. The application's database is restored with its sequence, so ids occur again.

The model knows the rows that are due: committed, and not lost with a database that was set back. Where the databases
disagree the workers must stop. The operator then deletes the rows that the queue has already, and rebases.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import sqlalchemy as sa

import cq
from cq.keys import QueueKeys
from cq.keys.outbox import OutboxKeys
from cq.observers.outbox.batch import OutboxBatch
from cq.observers.outbox.configured import find_outbox
from cq.observers.outbox.operate import init, rebase
from cq.observers.outbox.state import OutboxSettings
from cq.observers.verify.queue import verification
from cq.queue.set_aside import retry_aside
from tests.simulation.application import SUMS
from tests.simulation.exports import URL_ENV, Exports
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import MAY_SET_ASIDE, Plan
from tests.simulation.sql import Connections
from tests.simulation.store import CommitRequest

_HOT: Final = ("hot 0", "hot 1")
_INSERT: Final = sa.text(
    "INSERT INTO cq_outbox (id, queue, key_json, update_json, added_at) VALUES (:id, :queue, :key, :update, :at)"
)


@dataclass(frozen=True)
class Moved:
    """A transaction of the store has added these rows: (key, number)."""

    rows: list[tuple[str, int]]


@dataclass(frozen=True)
class Committed:
    """A row of the application: its key, and when its id was drawn and its transaction was seen committed."""

    key: str
    drawn: int
    seen: int


class OutboxConnections(Connections):
    """Connections that tell the scenario of each commit."""

    world: Outboxes

    def rows(self) -> dict[str, Any]:
        """{number: key} of the rows in the table."""
        if self._reader is None:
            self._reader = sqlite3.connect(self.world.report_path)
        rows = self._reader.execute("SELECT update_json, key_json FROM cq_outbox").fetchall()
        return dict(rows)

    def latest_id(self) -> int:
        """The highest id in the table; 0 if it is empty."""
        self.rows()
        assert self._reader is not None
        return int(self._reader.execute("SELECT coalesce(max(id), 0) FROM cq_outbox").fetchone()[0])


class Outboxes(Exports):
    """One run.

    Attributes:
        due: the numbers of the committed rows that no restore has lost. They must be in the queue at the end.
        moved: {key: numbers of its rows, in the order of their moves}.
    """

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.connections: OutboxConnections = OutboxConnections(self)
        self.table: Any = self  # `TableCopy` reports a restored table to it
        self.due: set[int] = set()
        self.moved: dict[str, list[int]] = defaultdict(list)
        self.drawn: dict[int, tuple[str, int]] = {}
        self.committed: dict[int, Committed] = {}
        self._ticks = self._next_id = self._restores = 0
        self._saved_rows: set[int] = set()
        self._saved_moves: dict[str, list[int]] = {}

    @contextmanager
    def _noting(self) -> Iterator[None]:
        add_to = OutboxBatch.add_to

        def noted(batch: OutboxBatch, tr: Any, queue: Any) -> None:
            add_to(batch, tr, queue)
            pairs = [pair for updates, _ in batch.adds for pair in updates]
            tr.notes.append(Moved([(key, int(text.rstrip(","))) for key, text in pairs]))

        with patch.object(OutboxBatch, "add_to", noted), self.connections.simulated():
            yield

    def around(self) -> AbstractContextManager[object]:
        return self._noting()

    def _app(self) -> cq.App:
        made = cq.App()
        made.queue(SUMS, combiner=cq.Combiner("concat", 1, _concatenated))
        return made

    def begin(self) -> None:
        """Make the queue and its outbox, and start everybody."""
        os.environ[URL_ENV] = f"sqlite:///{self.report_path}"
        self._app().configure(self.inner, SUMS, buckets=self.rng.randint(1, 3), key=str, value=str)
        init(self.inner, SUMS, OutboxSettings(URL_ENV, None))
        for _ in range(self.rng.randint(2, 3)):
            self._start_adder()
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self._start_operator()

    # Applications

    def _add(self, process: Process) -> None:
        rng = self.hub.rng
        number, restores = self._numbers_added, self._restores
        key = rng.choice((*_HOT, f"key {number // 10}"))
        self._next_id += 1
        row_id = self._next_id
        self.drawn[number] = key, self._tick()
        if rng.random() < 0.3:
            self.hub.wait(rng.expovariate(1 / 1.0))  # others commit rows with higher ids before
        database = find_outbox(self.inner, SUMS).database
        moment = datetime.fromtimestamp(1_700_000_000 + self.hub.clock, UTC)
        at = moment.isoformat(sep=" ", timespec="microseconds")
        row = {"id": row_id, "queue": SUMS, "key": f'"{key}"', "update": f'"{number},"', "at": at}
        try:
            with database.transaction() as (conn, _):
                if self._restores == restores:  # else its connection was lost
                    conn.execute(_INSERT, row)
        finally:
            database.close()

    def look_at_table(self, rows: dict[str, Any]) -> None:
        """The application's database has committed something: new rows are due."""
        for text in rows:
            number = _number(text)
            if number not in self.committed:
                key, drawn = self.drawn[number]
                self.committed[number] = Committed(key, drawn, self._tick())
                self.due.add(number)

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    # Databases that are set back, and what the operator does

    def set_back(self, rows: dict[str, Any]) -> None:
        """The application's database is restored: transactions since the backup are lost, with their rows."""
        self._restores += 1
        self._next_id = self.connections.latest_id()
        self.due &= self._saved_rows

    def _set_table_back(self) -> None:
        committed = set(self.due)
        if self.table_copy.save_or_restore() == "saved":
            self._saved_rows = committed

    def _set_store_back(self) -> None:
        inner, saved = self.inner, self._saved
        super()._set_store_back()
        if self.inner is not inner:
            self.moved = defaultdict(list, {key: each.copy() for key, each in self._saved_moves.items()})
        elif self._saved is not saved:
            self._saved_moves = {key: each.copy() for key, each in self.moved.items()}

    def _report_restored(self) -> None:
        """No table holds values of the queue."""

    def _export_again(self, process: Process) -> None:
        """Accept what is lost, if the workers have stopped, and continue."""
        self._rebase(process)

    def _rebase(self, process: Process) -> None:
        if self.inner.get(OutboxKeys(SUMS).stopped) is None:
            return
        source = find_outbox(self.db(process), SUMS)
        try:
            times = self._times()
            with source.database.transaction() as (conn, _):
                rows = conn.execute(sa.text("SELECT id, update_json FROM cq_outbox")).all()
                for row in rows:
                    if times[_number(row.update_json)]:
                        conn.execute(sa.text("DELETE FROM cq_outbox WHERE id = :id"), {"id": row.id})
            here = set(map(_number, self.connections.rows()))
            lost = {each for each in self.due if each not in here and not self._times()[each]}
            self.trace("the operator rebases; lost:", sorted(lost))
            if rebase(self.db(process), SUMS, source):
                self.due -= lost
        finally:
            source.database.close()

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Rows are added once, and not before rows that were committed before their ids were drawn."""
        for note in tr.notes:
            if isinstance(note, Moved):
                for key, number in note.rows:
                    if self._times()[number]:
                        raise Violation(f"row {number} of {key!r} is added twice")
                    row = self.committed[number]
                    late = [each for each in self.moved[key] if self.committed[each].drawn > row.seen]
                    if late:
                        raise Violation(f"row {number} of {key!r} is added after {late}, which are later")
                    self.moved[key].append(number)

    def _times(self) -> Counter[int]:
        return Counter(number for numbers in self.moved.values() for number in numbers)

    # The end

    def _finish(self, process: Process) -> None:
        while True:
            self._attempt(lambda: self._rebase(process))
            retry_aside(self.db(process), SUMS)
            self.hub.wait(5.0)

    def left(self) -> str:
        tr = self.inner.create_transaction().snapshot
        ranges = {
            "rows": QueueKeys(SUMS).all_rows(),
            "notifications": QueueKeys(SUMS).notifications(),
            "set aside": QueueKeys(SUMS).aside(),
            "failures": OutboxKeys(SUMS).failures(),
        }
        for what, bounds in ranges.items():
            if found := tr.get_range(*bounds, limit=1).to_list():
                return f"{what}: {found}"
        if stopped := tr.get(OutboxKeys(SUMS).stopped).value:
            return f"stopped: {stopped!r}"
        if rows := self.connections.rows():
            return f"rows in the table: {sorted(rows)}"
        if missing := {each for each in self.due if not self._times()[each]}:
            return f"rows that are not added: {sorted(missing)}"
        return ""

    def check(self) -> None:
        """Raises `Violation` unless the values are the rows moved, in the order of their moves."""
        stored = {key: [int(each) for each in value.split(",")[:-1]] for key, value in self._stored().items()}
        expected = {key: numbers for key, numbers in self.moved.items() if numbers}
        if not self.plan.on.isdisjoint(MAY_SET_ASIDE):  # updates that are retried come later in the order
            stored, expected = ({key: sorted(each) for key, each in of.items()} for of in (stored, expected))
        if stored != expected:
            raise Violation(f"the values are {stored}, expected {expected}")
        found = verification(self.inner, SUMS, app=self._app(), wait_seconds=0).run()
        if differences := [f"{each.kind}: {each.what}" for each in found]:
            raise Violation(f"cq verify finds: {differences}")


def _number(update_json: str) -> int:
    return int(update_json.strip('",'))


def _concatenated(key: Any, updates: Sequence[str]) -> str:
    return "".join(updates)
