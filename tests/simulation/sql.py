"""The reporting database of a simulated process: SQLite, whose calls take time, fail, and are the last of a process."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.default import DefaultDialect

from tests.simulation.application import TABLE

if TYPE_CHECKING:
    from tests.simulation.hub import Process
    from tests.simulation.world import World


class Connections:
    """All connections to reporting databases, by process."""

    def __init__(self, world: World) -> None:
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

    def _look(self) -> None:
        """Have the table checked, by a connection that nothing happens to."""
        if "table" in self.world.plan and self.world.hub.current is not None and not self.world.hub.is_over:
            if self._reader is None:
                self._reader = sqlite3.connect(self.world.report_path)
            rows = self._reader.execute(f'SELECT "key", "value" FROM "{TABLE}"')  # noqa: S608
            self.world.look_at_table(dict(rows.fetchall()))

    def _begun(self, connection: object) -> None:
        """Between what it has read and what it is about to write, a process may stand still."""
        task = self.world.hub.current
        if task is not None and self.world.happens("freezes", 0.1):
            self.world.freeze(task.process)
            self._call("begins")

    def _executed(self, connection: Any, cursor: object, statement: str, *rest: object) -> None:
        self._call(statement)

    def _call(self, what: str) -> None:
        if self.world.hub.current is None or self.world.hub.is_over:
            return
        self.world.hub.wait(self.world.hub.rng.expovariate(1 / 0.002))
        if self.world.happens("the table's database fails", 0.02):
            self.world.trace("the table's database fails:", what.split("\n")[0])
            raise sa.exc.OperationalError(what, {}, sqlite3.OperationalError("the server is gone"))
