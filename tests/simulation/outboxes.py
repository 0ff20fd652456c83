"""The system of the outboxes: applications add rows in SQL transactions, and either database is set back.

Every row has a number, which is its update. The combiner concatenates, so the value of a key shows which rows were
added, how often, and in which order. A row's id is drawn some time before its transaction commits, as from a sequence:
rows with lower ids become visible later. The application's database is restored with its sequence, so ids occur again.
Some rows have an operation id, and are inserted again. Some are refused until an operator repairs them: they cannot be
read, or only the add refuses them.

Operators rebase, remove the outbox, and give the queue an outbox again. After a restore they first delete the rows that
the queue has already, or they do not. `outboxmodel` has what must be true.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import sqlalchemy as sa

import cq
from cq.errors import InvalidData
from cq.keys.link import OutboxKeys
from cq.observers.links.outbox import operate
from cq.observers.links.outbox.operate import OpenOutbox
from cq.observers.links.outbox.state import OutboxSettings, number_of, parse_state, read_settings
from cq.observers.links.outbox.task import OutboxBatch
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.target import LinkFailed, LinkStopped
from cq.queue.set_aside import retry_aside
from tests.simulation.application import SUMS
from tests.simulation.hub import Process
from tests.simulation.links import Links
from tests.simulation.model import Violation
from tests.simulation.outboxmodel import Began, Moved, OutboxModel
from tests.simulation.plan import MAY_SET_ASIDE, Plan
from tests.simulation.scenario import check_verified, first_row
from tests.simulation.sql import URL_ENV, Connections
from tests.simulation.store import CommitRequest

_HOT: Final = ("hot 0", "hot 1")
_SETTINGS: Final = OutboxSettings(URL_ENV, None)
_INSERT: Final = sa.text(
    "INSERT INTO cq_outbox (id, queue, key_json, update_json, operation, added_at) "
    "VALUES (:id, :queue, :key, :update, :operation, :at)"
)
_DELETE: Final = sa.text("DELETE FROM cq_outbox WHERE id = :id")
_REPAIR: Final = sa.text(
    "UPDATE cq_outbox SET update_json = rtrim(update_json, '\"?') || '\"' WHERE error IS NOT NULL"
)
_UNREADABLE: Final = ""  # in place of the quote at the end of an update
_REFUSED: Final = '?"'  # what follows an update that only the add refuses


class OutboxConnections(Connections):
    """Connections that tell the scenario of each commit."""

    world: Outboxes

    def rows(self) -> dict[str, Any]:
        """{update: key} of the rows in the table."""
        return dict(self.read("SELECT update_json, key_json FROM cq_outbox"))

    def fences(self) -> list[bytes]:
        """The batch in the fence; an empty list without a fence."""
        return [bytes(batch) for (batch,) in self.read("SELECT batch FROM cq_outbox_progress")]

    def read(self, query: str) -> list[Any]:
        """What is committed, read by a connection that nothing happens to."""
        if self._reader is None:
            self._reader = sqlite3.connect(self.world.report_path)
        return self._reader.execute(query).fetchall()


class Outboxes(Links):
    """One run."""

    change_seconds = 0.7

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.connections: OutboxConnections = OutboxConnections(self)
        self.table: Any = self  # `TableCopy` reports a restored table to it
        self.model = OutboxModel(self.trouble)
        self._next_id = 0
        self._is_suspect = False

    @contextmanager
    def around(self) -> Iterator[None]:
        """As for links; and each transaction notes what it does."""
        add_to, restart, configure = OutboxBatch.add_to, OpenOutbox._restart, operate._configure

        def added(batch: OutboxBatch, tr: Any, queue: Any) -> None:
            add_to(batch, tr, queue)
            pairs = [pair for updates, _ in batch.adds for pair in updates]
            if any(text.endswith("?") for _, text in pairs):
                raise InvalidData("the add refuses a row")
            tr.notes.append(Moved([(key, int(text.rstrip(","))) for key, text in pairs]))

        def restarted(opened: OpenOutbox, tr: Any, *args: Any) -> None:
            restart(opened, tr, *args)
            tr.notes.append(Began(is_new=False))

        def configured(tr: Any, *args: Any) -> None:
            is_new = read_settings(tr, SUMS) is None
            configure(tr, *args)
            if is_new and self.hub.current is not None:
                tr.notes.append(Began(is_new=True))

        with (
            super().around(),
            patch.object(OutboxBatch, "add_to", added),
            patch.object(OpenOutbox, "_restart", restarted),
            patch.object(operate, "_configure", configured),
        ):
            yield

    def _app(self) -> cq.App:
        made = cq.App()
        made.queue(SUMS, combiner=cq.Combiner("concat", 1, _concatenated))
        return made

    def begin(self) -> None:
        """Make the queue and its outbox, and start everybody."""
        os.environ[URL_ENV] = f"sqlite:///{self.report_path}"
        self._app().configure(self.inner, SUMS, buckets=self.rng.randint(1, 3), key=str, value=str)
        operate.init(self.inner, SUMS, _SETTINGS)
        self._start_all(self.rng.randint(2, 3))

    # Applications

    def _add(self, process: Process) -> None:
        """Insert a row; with an operation id, now and then again, also after a transaction without a known result."""
        rng, number = self.hub.rng, self._numbers_added
        key = rng.choice((*_HOT, f"key {number // 10}"))
        is_once = "once" in self.plan and rng.random() < 0.3
        if is_once:
            self.model.once.add(number)
        elif "refused rows" in self.plan and rng.random() < 0.1:
            self.model.refused.add(number)
        for _ in range(rng.randint(1, 3) if is_once else 1):
            self._try(lambda: self._insert(number, key))

    def _insert(self, number: int, key: str) -> None:
        rng, restores = self.hub.rng, self.to_table.restores
        self._next_id += 1
        row_id = self._next_id
        self.model.draw(number, key)
        if rng.random() < 0.3:
            self.hub.wait(rng.expovariate(1 / 1.0))  # others commit rows with higher ids before
        moment = datetime.fromtimestamp(1_700_000_000 + self.hub.clock, UTC)
        ending = '"'
        if number in self.model.refused:
            ending = _UNREADABLE if number % 2 else _REFUSED
        row = {
            "id": row_id,
            "queue": SUMS,
            "key": f'"{key}"',
            "update": f'"{number},{ending}',
            "operation": f"operation {number}" if number in self.model.once else None,
            "at": moment.isoformat(sep=" ", timespec="microseconds"),
        }
        with _transaction() as conn:
            if self.to_table.restores == restores:  # else its connection was lost
                conn.execute(_INSERT, row)

    def look_at_table(self, rows: dict[str, Any]) -> None:
        """The application's database has committed something: new rows are due."""
        self.model.look(set(map(_number, rows)))
        self._judge()

    # Databases that are set back

    def set_back(self, rows: dict[str, Any]) -> None:
        """The application's database is restored, with its sequence."""
        self._next_id = int(self.connections.read("SELECT coalesce(max(id), 0) FROM cq_outbox")[0][0])
        self.model.restore_table(set(map(_number, rows)))
        self._judge()

    def _set_table_back(self) -> None:
        match self.table_copy.save_or_restore():
            case "saved":
                self.model.save_table()
            case "restored":
                self.to_table.restores += 1
                self._is_suspect = (
                    True  # a worker that has deleted the batch before stops, and others delete it again
                )
                self._judge()

    def _set_store_back(self) -> None:
        inner, saved = self.inner, self._saved
        super()._set_store_back()
        if self.inner is not inner:
            self.model.restore_store()
            self._judge()
        elif self._saved is not saved:
            self.model.save_store()

    def _report_restored(self) -> None:
        """No table holds values of the queue."""

    # What the operator does

    def _doing(self, process: Process) -> dict[str, Callable[[], object]]:
        return super()._doing(process) | {
            "remove": lambda: self._remove_or_init(process),
            "refused rows": lambda: self._repair(process),
        }

    @property
    def _is_careful(self) -> bool:
        """Whether the operator first deletes the rows that the queue has."""
        return "careless" not in self.plan or self.hub.rng.random() < 0.5

    def _send_again(self, process: Process) -> None:
        """Rebase; a careless operator does it whether the workers have stopped or not."""
        self._rebase(process, is_careful=self._is_careful)

    def _rebase(self, process: Process, *, is_careful: bool) -> None:
        if is_careful and self.inner.get(OutboxKeys(SUMS).stopped) is None:
            return
        with self._opened(process) as opened:
            if is_careful:
                with opened.source.database.transaction() as (conn, _):
                    self._delete_added(conn)
            self.trace("the operator rebases", "with care" if is_careful else "without care")
            opened.rebase()

    def _remove_or_init(self, process: Process) -> None:
        if not self._has_outbox:
            self._init(process)
            return
        began = self.hub.clock
        with self._opened(process) as opened:
            try:
                opened.remove()
            except LinkStopped as error:
                self._check_stop(began, error, self.trouble)

    def _init(self, process: Process) -> None:
        """Give the queue an outbox again; if it is refused, give up what is lost, and delete the former position."""
        if all(number_of(fence) == 1 for fence in self.connections.fences()):
            self.model.forgive(self.model.lost())  # no database knows that an earlier outbox has moved rows
        try:
            operate.init(self.db(process), SUMS, _SETTINGS)
        except LinkFailed as error:
            if "earlier outbox" not in str(error):
                raise
            self._give_up_former(error)

    def _give_up_former(self, error: LinkFailed) -> None:
        is_careful = self._is_careful
        self.trace("the operator deletes the former position:", error)
        with _transaction() as conn:
            if is_careful:
                self._delete_added(conn)
            self.model.forgive(self.model.lost())
            conn.execute(sa.text("DELETE FROM cq_outbox_progress"))

    def _delete_added(self, conn: sa.Connection) -> None:
        times = self.model.times()
        for row in conn.execute(sa.text("SELECT id, update_json FROM cq_outbox")).all():
            if times[number := _number(row.update_json)]:
                conn.execute(_DELETE, {"id": row.id})
                self.model.forgive([number])

    def _repair(self, process: Process) -> None:
        """Correct the rows that were refused, and have them added."""
        if not self._has_outbox:
            return
        with self._opened(process) as opened:
            with opened.source.database.transaction() as (conn, _):
                conn.execute(_REPAIR)
            opened.retry()

    @contextmanager
    def _opened(self, process: Process) -> Iterator[OpenOutbox]:
        found = operate.opened(self.db(process), SUMS)
        with closing(found.source.database):
            yield found

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        for note in tr.notes:
            if isinstance(note, Began):
                self.model.begin(note.is_new)
            elif isinstance(note, Moved):
                self.model.move(note.rows)
        self._judge()

    @property
    def _has_outbox(self) -> bool:
        return self.inner.get(OutboxKeys(SUMS).settings) is not None

    def _judge(self) -> None:
        """Note whether the databases agree: whether the fence has the latest batch, or its rows are to be deleted."""
        self.trouble.note(not self._agree)

    @property
    def _agree(self) -> bool:
        stored = self.inner.get(OutboxKeys(SUMS).state)
        if stored is None:
            return True
        state = parse_state(bytes(stored))
        fences = self.connections.fences()
        if fences == [state.batch]:
            self._is_suspect = False
            return True
        if not state.ids or fences != [state.previous] or self._is_suspect:
            return False
        until = datetime.fromisoformat(state.until)
        rows = self.connections.read("SELECT id, added_at FROM cq_outbox")
        there = {each for each, at in rows if datetime.fromisoformat(at).replace(tzinfo=UTC) <= until}
        return there.issuperset(state.ids)

    # The end

    def _finish(self, process: Process) -> None:
        while True:
            if self._has_outbox:
                self._try(lambda: self._rebase(process, is_careful=True))
                self._try(lambda: self._repair(process))
            else:
                self._try(lambda: self._init(process))
            retry_aside(self.db(process), SUMS)
            self.hub.wait(5.0)

    def _ranges(self) -> dict[str, tuple[bytes, bytes]]:
        return super()._ranges() | {"failures": OutboxKeys(SUMS).failures()}

    def left(self) -> str:
        tr = self.inner.create_transaction().snapshot
        if found := first_row(tr, self._ranges()):
            return found
        if not self._has_outbox:
            return "no outbox"
        if stopped := tr.get(OutboxKeys(SUMS).stopped).value:
            return f"stopped: {stopped!r}"
        if rows := self.connections.rows():
            return f"rows in the table: {sorted(rows)}"
        if missing := self.model.lost():
            return f"rows that are not added: {sorted(missing)}"
        return ""

    def check(self) -> None:
        """Raises `Violation` unless the values are the rows moved, in the order of their moves."""
        stored = {key: [int(each) for each in value.split(",")[:-1]] for key, value in self._stored().items()}
        expected = {key: numbers for key, numbers in self.model.moved.items() if numbers}
        if not self.plan.on.isdisjoint(MAY_SET_ASIDE):  # updates that are retried come later in the order
            stored, expected = ({key: sorted(each) for key, each in of.items()} for of in (stored, expected))
        if stored != expected:
            raise Violation(f"the values are {stored}, expected {expected}")
        check_verified(self.inner, SUMS, app=self._app(), wait=0)


@contextmanager
def _transaction() -> Iterator[sa.Connection]:
    """A transaction of the application's database, by a connection of its own."""
    with closing(ReportingDatabase(env=URL_ENV)) as database, database.transaction() as (conn, _):
        yield conn


def _number(update_json: str) -> int:
    return int(update_json.strip('",?'))


def _concatenated(key: Any, updates: Sequence[str]) -> str:
    return "".join(updates)
