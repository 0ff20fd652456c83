"""How a worker waits until an outbox has rows: it queries the table a few times a second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from cq import runtime
from cq.observers.links.outbox.table import OutboxTables
from cq.observers.links.sql.engine import ReportingDatabase
from cq.plain_text import describe
from cq.store.api import error_code

log = logging.getLogger("cq.worker")
POLL_SECONDS: Final = 0.2


class RowWatch:
    """Watches the outbox of one queue in a thread of its own while it is started.

    Args:
        database: the application's database.
        schema: of the tables.
        queue: the queue's name.
        found: called in the thread once there are rows, or the database cannot be queried; the watch then ends.
    """

    def __init__(
        self, database: ReportingDatabase, schema: str | None, queue: str, found: Callable[[], object]
    ) -> None:
        self._database, self._schema, self._queue, self._found = database, schema, queue, found
        self._stopping: Any = None

    def start(self) -> None:
        """Begin to watch, in place of an earlier watch that may not have ended."""
        self.stop()
        self._stopping = stopping = runtime.event()
        runtime.start_thread(lambda: self._watch(stopping), f"cq-outbox-{self._queue}")

    def stop(self) -> None:
        """End the watch soon, without waiting for its thread."""
        if self._stopping is not None:
            self._stopping.set()

    def _watch(self, stopping: Any) -> None:
        try:
            self._wait(stopping)
        except Exception as error:  # noqa: BLE001 - the task must run again: it finds the same error, and notes it
            log.debug("the watch of the outbox of queue %r has failed: %s", self._queue, describe(error))
            stopping.wait(POLL_SECONDS)
        while not self._is_reported(stopping):
            stopping.wait(POLL_SECONDS)  # the store fails

    def _is_reported(self, stopping: Any) -> bool:
        """Call `found`, unless the watch is stopped; returns False if the store has failed."""
        try:
            if not stopping.is_set():
                self._found()
        except Exception as error:
            if stopping.is_set():
                return True  # the process may have closed the store meanwhile
            if error_code(error) is None:
                raise
            return False
        return True

    def _wait(self, stopping: Any) -> None:
        """Return once there are rows, or the watch is stopped; raises `CqError`."""
        while not stopping.is_set():
            with self._database.reading() as (conn, dialect):
                if OutboxTables.of(dialect, self._schema).has_rows(conn, self._queue):
                    return
            stopping.wait(POLL_SECONDS)
