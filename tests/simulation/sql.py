"""The reporting database of a simulated process: SQLite, whose calls take time, fail, and are the last of a process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.default import DefaultDialect

import cq
import cq.links
from cq import admin
from cq.keys.link import LinkKeys
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import opened_link
from cq.observers.links.target import LinkFailed
from tests.simulation.application import SUMS, TABLE

if TYPE_CHECKING:
    from tests.simulation.hub import Process
    from tests.simulation.links import Links
    from tests.simulation.world import World


URL_ENV: Final = "CQ_SIMULATED_URL"
LATE_SECONDS: Final = 3.0
"""How long another system needs when it is slow, on average."""
LINK: Final = LinkKeys(SUMS, "export")
"""The link of the sums to the table."""


class Connections:
    """All connections to reporting databases, by process."""

    def __init__(self, world: World | Links) -> None:
        self.world = world
        self._of: dict[Process | None, list[Any]] = {}
        self._reader: sqlite3.Connection | None = None

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """While it lasts, all calls of SQLAlchemy are this world's."""
        commit: Any = DefaultDialect.do_commit

        def do_commit(dialect: DefaultDialect, connection: Any) -> None:
            self._call("before the commit")
            commit(dialect, connection)
            self._look()
            self._freeze(0.05)
            self._be_slow()
            self._call("after the commit")

        event.listen(sa.Engine, "connect", self._opened)
        event.listen(sa.Engine, "begin", self._begun)
        event.listen(sa.Engine, "before_cursor_execute", self._executed)
        DefaultDialect.do_commit = do_commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            DefaultDialect.do_commit = commit  # type: ignore[method-assign]
            event.remove(sa.Engine, "connect", self._opened)
            event.remove(sa.Engine, "begin", self._begun)
            event.remove(sa.Engine, "before_cursor_execute", self._executed)

    def drop(self, process: Process | None) -> None:
        """A process is dead: the database rolls back what it has not committed."""
        for connection in self._of.pop(process, ()):
            connection.close()

    def close(self) -> None:
        """The world ends."""
        for process in list(self._of):
            self.drop(process)
        if self._reader is not None:
            self._reader.close()

    def _opened(self, connection: Any, record: object) -> None:
        task = self.world.hub.current
        self._of.setdefault(task.process if task else None, []).append(connection)
        # Whoever would wait for a lock here would wait for ever: nobody else has a turn meanwhile.
        connection.execute("PRAGMA busy_timeout = 0")

    def rows(self) -> dict[str, Any]:
        """The rows of the table, read by a connection that nothing happens to."""
        if self._reader is None:
            self._reader = sqlite3.connect(self.world.report_path)
        return dict(self._reader.execute(f'SELECT "key", "value" FROM "{TABLE}"').fetchall())  # noqa: S608

    def _look(self) -> None:
        """Have the table checked, by a connection that nothing happens to."""
        if self.world.has_table and self.world.hub.current is not None and not self.world.hub.is_over:
            self.world.look_at_table(self.rows())

    def _begun(self, connection: object) -> None:
        self._be_slow()
        if self._freeze(0.1):
            self._call("begins")

    def _be_slow(self) -> None:
        """Have the process wait now and then, but not stand still."""
        if self.world.happens("targets are slow", 0.2):
            self.world.hub.wait(self.world.hub.rng.expovariate(1 / LATE_SECONDS))

    def _freeze(self, most: float) -> bool:
        """Whether the process stands still now: before its first statement, or after the commit."""
        task = self.world.hub.current
        strikes = task is not None and self.world.happens("freezes", most)
        if task is not None and strikes:
            self.world.freeze(task.process)
        return strikes

    def _executed(self, connection: Any, cursor: object, statement: str, *rest: object) -> None:
        self._call(statement)

    def _call(self, what: str) -> None:
        if self.world.hub.current is None or self.world.hub.is_over:
            return
        self.world.hub.wait(self.world.hub.rng.expovariate(1 / 0.002))
        if self.world.happens("the table's database fails", 0.02):
            self.world.trace("the table's database fails:", what.split("\n")[0])
            raise sa.exc.OperationalError(what, {}, sqlite3.OperationalError("the server is gone"))


def opened_table(db: Any) -> AbstractContextManager[OpenLink]:
    """The link of the sums to the table."""
    return opened_link(db, SUMS, LINK.link)


def make_table(db: Any) -> None:
    """Link the sums to a table."""
    admin.put_observer(db, SUMS, cq.links.table(TABLE, url_env=URL_ENV))
    with opened_table(db) as link:
        link.target.create()


def _refuse_to_wait(status: int, remaining: int, total: int) -> None:
    """Raise while a transaction is open in either database: its owner has no turn before the backup ends."""
    if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        raise sqlite3.OperationalError("a transaction is open")


class TableCopy:
    """A backup of the reporting database, which is restored now and then."""

    def __init__(self, world: World | Links) -> None:
        self.world = world
        self._path = world.folder / "report-copy.db"

    def save_or_restore(self) -> str:
        """Make the backup, or restore it; returns as `copy`."""
        return self.copy(restore=self._path.exists() and self.world.hub.rng.random() < 0.5)

    def copy(self, *, restore: bool) -> str:
        """Make the backup, or restore it; returns "saved" or "restored", or "" while a transaction is open."""
        source, target = self.world.report_path, self._path
        if restore:
            source, target = target, source
        with (
            closing(sqlite3.connect(source)) as reader,
            closing(sqlite3.connect(target, timeout=0)) as writer,
        ):
            try:
                reader.backup(writer, progress=_refuse_to_wait)
            except sqlite3.OperationalError as error:  # a transaction is open
                self.world.trace("no backup:", error)
                return ""
        self.world.trace("the table is restored" if restore else "the table is saved")
        if restore:
            self.world.table.set_back(self.world.connections.rows())
        return "restored" if restore else "saved"

    def rebuild_if_stopped(self) -> None:
        """What the operator does about a link that has stopped.

        It stops when its database was set back, and when a rebuild or rebase has died between the two databases.
        """
        may_stop = not self.world.plan.on.isdisjoint(("table set back", "store set back", "send again"))
        if may_stop and self.world.inner.get(LINK.stopped) is not None:
            try:
                with opened_table(self.world.inner) as link:
                    link.rebuild()
            except (LinkFailed, sa.exc.DBAPIError) as error:  # another transaction is open
                self.world.trace("no rebuild yet:", error)
