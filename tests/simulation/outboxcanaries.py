"""Variants of outboxes that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from cq.config.queue import read_config
from cq.observers.export.batch import OutdatedBatch
from cq.observers.outbox import operate
from cq.observers.outbox.batch import batch_of
from cq.observers.outbox.state import OutboxState, new_batch, read_state
from cq.observers.outbox.table import OutboxTables
from cq.observers.outbox.task import OutboxTask
from cq.queue.combine_queue import CombineQueue
from cq.store.transact import transact


def moves_rows_before_it_stores_the_batch() -> Any:
    """A worker adds the updates in one transaction, and stores the rows' ids in the next one."""

    def move(self: Any, tr: Any, before: Any, batch: bytes, rows: Any) -> Any:
        content = batch_of(read_config(tr, self.queue), rows)
        current = read_state(tr, self.queue)
        if current.batch == batch or not content.ids:
            return current, content
        if current.batch != before.batch:
            raise OutdatedBatch
        transact(self.db, lambda other: content.add_to(other, CombineQueue(self.queue)))
        return _stored(self, tr, OutboxState.of(batch, before.batch, content.ids, _until(rows))), content

    return patch.object(OutboxTask, "_move", move)


def _stored(task: Any, tr: Any, state: OutboxState) -> OutboxState:
    tr.set(task.keys.state, state.to_bytes())
    return state


def _until(rows: Any) -> str:
    return str(max(row.added_at for row in rows).isoformat())


def reads_rows_by_a_position() -> Any:
    """A worker reads rows after the highest id that it has moved, though lower ids can become visible later."""
    read = OutboxTables.read
    highest = 0

    def read_on(self: Any, conn: Any, queue: str) -> Any:
        nonlocal highest
        rows, is_last = read(self, conn, queue)
        rows = [row for row in rows if row.id > highest]
        highest = max([highest, *(row.id for row in rows)])
        return rows, is_last

    return patch.object(OutboxTables, "read", read_on)


def ignores_the_fence() -> Any:
    """A worker goes on whatever the fence says."""
    return patch.object(OutboxTask, "_checked", lambda self, fence, expected: fence)


@contextmanager
def deletes_rows_before_they_are_moved() -> Iterator[None]:
    """A worker deletes the rows that it has read, and then adds them."""
    read, delete = OutboxTask._read_rows, OutboxTables.delete

    def deleting(self: Any, state: Any) -> Any:
        fence, rows, is_last = read(self, state)
        if rows:
            with self._source.database.transaction() as (conn, dialect):
                OutboxTables.of(dialect, None).delete(conn, [row.id for row in rows], _until(rows))
        return fence, rows, is_last

    def finish(self: Any, conn: Any, ids: Any, until: str) -> int:
        delete(self, conn, ids, until)
        return len(ids)

    with patch.object(OutboxTask, "_read_rows", deleting), patch.object(OutboxTables, "delete", finish):
        yield


def moves_without_comparing_the_state() -> Any:
    """A worker adds the rows that it has read, though another worker has moved a batch since."""

    def move(self: Any, tr: Any, before: Any, batch: bytes, rows: Any) -> Any:
        content = batch_of(read_config(tr, self.queue), rows)
        current = read_state(tr, self.queue)
        if current.batch == batch or not content.ids:
            return current, content
        content.add_to(tr, CombineQueue(self.queue))
        return _stored(self, tr, OutboxState.of(batch, current.batch, content.ids, _until(rows))), content

    return patch.object(OutboxTask, "_move", move)


def stops_at_a_row_that_the_add_refuses() -> Any:
    """A worker tries all rows again and again, and never fewer of them."""

    def move_all(self: Any, state: Any, rows: Any) -> Any:
        return transact(self.db, lambda tr: self._move(tr, state, new_batch(state.batch), rows))

    return patch.object(OutboxTask, "_move_first", move_all)


def loses_a_row_that_the_add_refuses() -> Any:
    """A worker deletes a row that the add refuses alone, as if it were added."""
    move_first = OutboxTask._move_first

    def move(self: Any, state: Any, rows: Any) -> Any:
        moved, content = move_first(self, state, rows)
        if content.errors and not content.ids:
            with self._source.database.transaction() as (conn, dialect):
                OutboxTables.of(dialect, None).delete(conn, list(content.errors), _until(rows))
        return moved, content

    return patch.object(OutboxTask, "_move_first", move)


def deletes_rows_by_their_ids_only() -> Any:
    """A worker deletes rows that have the ids of rows that were lost when the database was set back."""
    delete = OutboxTables.delete

    def by_id(self: Any, conn: Any, ids: Any, until: str) -> int:
        delete(self, conn, ids, "9999-01-01T00:00:00+00:00")
        return len(ids)

    return patch.object(OutboxTables, "delete", by_id)


def forgets_the_batch_under_way_at_a_rebase() -> Any:
    """A rebase leaves the rows in the table that a worker has added and not deleted yet."""
    read = read_state

    def without_ids(tr: Any, name: str) -> OutboxState:
        state = read(tr, name)
        return OutboxState.of(state.batch, state.previous)

    return patch.object(operate, "read_state", without_ids)


def removes_an_outbox_whatever_was_moved() -> Any:
    """An outbox is removed though a worker has moved rows since, which stay in the table."""
    return patch.object(operate, "parse_state", lambda stored: OutboxState.of(b"", b""))


def starts_at_a_used_position() -> Any:
    """A new outbox continues at the fence of an earlier one, whose rows this store may not have."""
    return patch.object(operate, "number_of", lambda batch: 0)


def notes_the_batch_before_the_commit() -> Any:
    """A worker takes the rows of a batch for deleted before its SQL transaction has committed."""
    finish = OutboxTask._finish

    def noted(self: Any, state: Any, errors: Any, *, is_last: bool) -> None:
        self._finished = state.batch
        finish(self, state, errors, is_last=is_last)

    return patch.object(OutboxTask, "_finish", noted)


OUTBOXES: Final[dict[Callable[[], Any], int]] = {
    moves_rows_before_it_stores_the_batch: 30,
    reads_rows_by_a_position: 30,
    ignores_the_fence: 30,
    deletes_rows_before_they_are_moved: 60,
    moves_without_comparing_the_state: 60,
    deletes_rows_by_their_ids_only: 60,
    forgets_the_batch_under_way_at_a_rebase: 60,
    removes_an_outbox_whatever_was_moved: 60,
    starts_at_a_used_position: 60,
    notes_the_batch_before_the_commit: 30,
    stops_at_a_row_that_the_add_refuses: 10,
    loses_a_row_that_the_add_refuses: 10,
}
"""{canary: within how many seeds it is caught}."""
ONLY: Final[dict[Callable[[], Any], frozenset[str]]] = {
    moves_rows_before_it_stores_the_batch: frozenset(("deaths", "conflicts", "unknown commits")),
    reads_rows_by_a_position: frozenset(("come and go",)),
    ignores_the_fence: frozenset(("store set back", "table set back")),
    deletes_rows_before_they_are_moved: frozenset(("deaths", "reads fail")),
    moves_without_comparing_the_state: frozenset(("freezes", "come and go")),
    deletes_rows_by_their_ids_only: frozenset(("table set back", "deaths", "freezes")),
    forgets_the_batch_under_way_at_a_rebase: frozenset(("export again", "careless", "deaths", "freezes")),
    removes_an_outbox_whatever_was_moved: frozenset(("remove", "freezes")),
    starts_at_a_used_position: frozenset(("remove", "store set back")),
    notes_the_batch_before_the_commit: frozenset(("the table's database fails",)),
    stops_at_a_row_that_the_add_refuses: frozenset(("refused rows",)),
    loses_a_row_that_the_add_refuses: frozenset(("refused rows",)),
}
"""{canary: the only kinds that its plans have}."""
