"""Canaries of outboxes, see `canary`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cq.config.queue import read_config
from cq.observers.links.outbox.state import OutboxState, new_batch, read_state
from cq.observers.links.outbox.table import OutboxTables
from cq.observers.links.outbox.task import OutboxTask, batch_of
from cq.observers.links.target import OutdatedBatch
from cq.queue.combine_queue import CombineQueue
from cq.store.transact import transact
from tests.simulation.canary import Canaries

outboxes = Canaries("outboxes")
_TASK = "cq.observers.links.outbox.task.OutboxTask"
_OPERATE = "cq.observers.links.outbox.operate"


def _move(task: Any, tr: Any, batch: bytes, rows: Any, add: Callable[[OutboxState, Any], object]) -> Any:
    """Move rows as a worker does, but add them by this function, which gets the stored state and the batch."""
    content, current = batch_of(read_config(tr, task.queue), rows), read_state(tr, task.queue)
    if current.batch == batch or not content.ids:
        return current, content
    add(current, content)
    state = OutboxState.of(batch, current.batch, content.ids, _until(rows))
    tr.set(task.keys.state, state.to_bytes())
    return state, content


@outboxes.replaces(f"{_TASK}._move", only={"deaths", "conflicts", "unknown commits"}, seed=3)
def moves_rows_before_it_stores_the_batch(
    _: Any, self: Any, tr: Any, before: Any, batch: bytes, rows: Any
) -> Any:
    """A worker adds the updates in one transaction, and stores the rows' ids in the next one."""

    def add(current: OutboxState, content: Any) -> None:
        if current.batch != before.batch:
            raise OutdatedBatch
        transact(self.db, lambda other: content.add_to(other, CombineQueue(self.queue)))

    return _move(self, tr, batch, rows, add)


def _until(rows: Any) -> str:
    return str(max(row.added_at for row in rows).isoformat())


def _delete(task: Any, ids: list[Any], rows: Any) -> None:
    """Delete rows of the table in a transaction of its own."""
    with task._source.database.transaction() as (conn, dialect):
        OutboxTables.of(dialect, None).delete(conn, ids, _until(rows))


@outboxes.patches(only={"come and go"}, end_seconds=30.0)
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


@outboxes.replaces(f"{_TASK}._checked", seed=4, end_seconds=30.0, only={"store set back", "table set back"})
def ignores_the_fence(_: Any, self: Any, fence: Any, expected: Any) -> Any:
    """A worker goes on whatever the fence says."""
    return fence


@outboxes.patches(seed=74, end_seconds=30.0, only={"deaths", "reads fail"})
@contextmanager
def deletes_rows_before_they_are_moved() -> Iterator[None]:
    """A worker deletes the rows that it has read, and then adds them."""
    read, delete = OutboxTask._read_rows, OutboxTables.delete

    def deleting(self: Any, state: Any) -> Any:
        rows = read(self, state)
        if rows:
            _delete(self, [row.id for row in rows], rows)
        return rows

    def finish(self: Any, conn: Any, ids: Any, until: str) -> int:
        delete(self, conn, ids, until)
        return len(ids)

    with patch.object(OutboxTask, "_read_rows", deleting), patch.object(OutboxTables, "delete", finish):
        yield


@outboxes.replaces(f"{_TASK}._move", seed=2, only={"freezes", "come and go"})
def moves_without_comparing_the_state(
    _: Any, self: Any, tr: Any, before: Any, batch: bytes, rows: Any
) -> Any:
    """A worker adds the rows that it has read, though another worker has moved a batch since."""
    queue = CombineQueue(self.queue)
    return _move(self, tr, batch, rows, lambda current, content: content.add_to(tr, queue))


@outboxes.replaces(f"{_TASK}._move_first", seed=2, end_seconds=30.0, only={"refused rows"})
def stops_at_a_row_that_the_add_refuses(_: Any, self: Any, state: Any, rows: Any) -> Any:
    """A worker tries all rows again and again, and never fewer of them."""
    return transact(self.db, lambda tr: self._move(tr, state, new_batch(state.batch), rows))


@outboxes.replaces(f"{_TASK}._move_first", seed=2, end_seconds=30.0, only={"refused rows"})
def loses_a_row_that_the_add_refuses(move_first: Any, self: Any, state: Any, rows: Any) -> Any:
    """A worker deletes a row that the add refuses alone, as if it were added."""
    moved, content = move_first(self, state, rows)
    if content.errors and not content.ids:
        _delete(self, list(content.errors), rows)
    return moved, content


@outboxes.replaces(
    "cq.observers.links.outbox.table.OutboxTables.delete",
    seed=381,
    end_seconds=30.0,
    only={"table set back", "deaths", "freezes"},
)
def deletes_rows_by_their_ids_only(delete: Any, self: Any, conn: Any, ids: Any, until: str) -> int:
    """A worker deletes rows that have the ids of rows that were lost when the database was set back."""
    delete(self, conn, ids, "9999-01-01T00:00:00+00:00")
    return len(ids)


@outboxes.replaces(
    f"{_OPERATE}.OpenOutbox._read", seed=29, only={"send again", "careless", "deaths", "freezes"}
)
def forgets_the_batch_under_way_at_a_rebase(read: Any, self: Any, tr: Any) -> tuple[bytes, OutboxState]:
    """A rebase leaves the rows in the table that a worker has added and not deleted yet."""
    stored, state = read(self, tr)
    return stored, OutboxState.of(state.batch, state.previous)


@outboxes.replaces(f"{_OPERATE}.parse_state", seed=25, only={"remove", "freezes"})
def removes_an_outbox_whatever_was_moved(*_: Any) -> OutboxState:
    """An outbox is removed though a worker has moved rows since, which stay in the table."""
    return OutboxState.of(b"", b"")


@outboxes.replaces(f"{_OPERATE}.number_of", seed=156, end_seconds=30.0, only={"remove", "store set back"})
def starts_at_a_used_position(*_: Any) -> int:
    """A new outbox continues at the fence of an earlier one, whose rows this store may not have."""
    return 0


@outboxes.replaces(f"{_TASK}._finish", only={"the table's database fails"}, seed=6)
def notes_the_batch_before_the_commit(finish: Any, self: Any, state: Any, errors: Any) -> None:
    """A worker takes the rows of a batch for deleted before its SQL transaction has committed."""
    self._finished = state.batch
    finish(self, state, errors)
