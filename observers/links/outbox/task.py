"""The task that moves the rows of a queue's outbox into the queue, each exactly once.

    1. Read the outbox's state in the store: the latest batch.
    2. If its rows may not be deleted yet: delete them, and write its id into the fence, in one SQL transaction that
       finds the id of the batch before in the fence.
    3. Check that the fence has the latest batch, then read the first rows of committed SQL transactions.
    4. Add their updates to the queue, and store a new batch with their ids as the state, in one transaction of the
       store that finds the state of step 1. Continue with step 2.

Rows read in step 3 belong to no earlier batch, because all of those were deleted before. Step 4 commits only if no
other worker has moved a batch since step 1. So no row is added twice, and no row is deleted that was not added.

If the fence has neither the latest batch nor, before step 2, the one before it, then one of the two databases was set
back. The task then stops until the operator decides what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final

from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.config.store_id import ensure_store_id
from cq.encoding.codec import encode_operation
from cq.encoding.json_values import key_from_json, value_from_json
from cq.errors import InvalidData, QueueFull
from cq.keys.link import OUTBOX, OutboxKeys
from cq.observers.links.failure_note import STOPPED_SECONDS, NotedTask
from cq.observers.links.outbox.state import (
    OutboxSettings,
    OutboxState,
    existing_settings,
    new_batch,
    number_of,
    read_state,
)
from cq.observers.links.outbox.table import LONGEST_ROW, OutboxFence, OutboxRow, OutboxTables, seconds_since
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.state import PAUSED, read_control, read_stopped
from cq.observers.links.target import LinkStopped, OutdatedBatch
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import SourceBacklog, Task
from cq.observers.telemetry.bus import emit
from cq.plain_text import printable
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue
from cq.queue.limits import read_full
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import PREDICTED_BYTES
from cq.store.transact import transact

_ROW_BYTES: Final = 20  # of a row's id in the state
FULL_SECONDS: Final = 1.0
"""How soon to try again to add to a full queue."""
POLL_SECONDS: Final = 0.2
"""How often to look whether an empty table has rows."""
_UNASKED_SECONDS: Final = 10.0
"""How long such looks ask the store nothing, which an idle worker should ask once a second at most."""


@dataclass(slots=True)
class OutboxBatch:
    """Rows of an outbox, in their order.

    Attributes:
        adds: for each add: the updates, and the operation id.
        ids: of the rows in `adds`, including rows that repeat an operation id.
        errors: {id: error} of the rows that the queue refuses.
    """

    adds: list[tuple[list[tuple[Any, Any]], bytes | None]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def add_to(self, tr: Transaction, queue: CombineQueue) -> None:
        """Add all updates; raises `QueueFull`, and `InvalidData` if the queue refuses one that `batch_of` takes."""
        for updates, operation in self.adds:
            queue.add(tr, updates, once=operation)


def batch_of(config: QueueConfig, rows: Sequence[OutboxRow]) -> OutboxBatch:
    """The first rows of these that fit into one transaction; at least one."""
    batch = OutboxBatch()
    adds = AddCheck(config)
    seen: set[bytes] = set()
    size = 0
    for row in rows:
        try:
            key, update = _parsed(config, row)
            pair = adds.check(key, update)
            operation = None if row.operation is None else _operation(row.operation, pair.encoded)
        except InvalidData as error:
            batch.errors[row.id] = printable(str(error))
            continue
        size += pair.size + _ROW_BYTES + (0 if operation is None else adds.operation)
        if batch.ids and size > PREDICTED_BYTES:
            break
        batch.ids.append(row.id)
        if operation is None:
            if not batch.adds or batch.adds[-1][1] is not None:
                batch.adds.append(([], None))
            batch.adds[-1][0].append((key, update))
        elif operation not in seen:  # within one transaction, the queue would count both
            seen.add(operation)
            batch.adds.append(([(key, update)], operation))
    return batch


def _parsed(config: QueueConfig, row: OutboxRow) -> tuple[Any, Any]:
    """Key and update of a row; raises `InvalidData`."""
    if row.key_json is None:
        raise InvalidData(f"the row has more than {LONGEST_ROW:,} bytes")
    key = key_from_json(config.key, _json(row.key_json, "key_json"))
    # Without this, a float in between would round a decimal.
    decimals = Decimal if config.value.name == "decimal" else None
    return key, value_from_json(config.value, _json(row.update_json, "update_json", decimals))


def _json(text: str, column: str, floats: Any = None) -> Any:
    try:
        return json.loads(text, parse_float=floats)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidData(f"{column} is not JSON: {error}") from None


def _operation(given: str, encoded_key: bytes) -> bytes:
    """The operation id in the queue: one for each id and key, as rows of one id can be moved in several transactions.

    Raises `InvalidData`.
    """
    digest = blake2b(encode_operation(given), digest_size=16, key=blake2b(encoded_key).digest())
    return b"outbox " + digest.digest()


@dataclass(frozen=True, slots=True)
class OutboxSource:
    """Where the rows of a queue's outbox are: the database and the schema of its tables, and the id of the store."""

    database: ReportingDatabase
    schema: str | None
    store: bytes


def find_outbox(db: Database, queue: str) -> OutboxSource:
    """Where the rows of a queue's outbox are; raises `NotInStore` if the queue has no outbox."""
    return source_of(db, transact(db, lambda tr: existing_settings(tr.snapshot, queue)))


def source_of(db: Database, settings: OutboxSettings) -> OutboxSource:
    """The source that settings describe."""
    noun, init = "application's database", "cq outbox init QUEUE"
    database = ReportingDatabase(env=settings.url_env, noun=noun, init=init)
    return OutboxSource(database, settings.schema, ensure_store_id(db))


@dataclass(frozen=True, slots=True)
class OutboxRead:
    """The state of an outbox, its notification, why it is stopped (None: it is not), and whether it is paused."""

    state: OutboxState
    notification: bytes | None
    stopped: str | None
    paused: bool


class OutboxTask(NotedTask):
    """The task that moves a queue's rows; one thread at a time may use it. Several workers may run it for one queue.

    Args:
        db: a database of either store.
        queue: the queue's name.
        source: where the rows are.

    Attributes:
        signal: called with the name of each completed step, for tests.
    """

    notification: bytes
    signal: Callable[[str], object] = staticmethod(lambda point: None)

    def __init__(self, db: Database, queue: str, source: OutboxSource) -> None:
        self.keys = OutboxKeys(queue)
        super().__init__(db, self.keys, None)
        self.notification = self.keys.keeper
        self.progress_key = self.keys.state
        self.backlog: SourceBacklog | None = None
        self._finished = b""
        self._source = source
        self._polls = False
        self._empty: tuple[OutboxState, float] | None = None  # the state without rows, and when it was read

    def __str__(self) -> str:
        return f"outbox of queue {self.queue!r}"

    def waits(self, tr: TransactionRead) -> bool:
        """Whether the outbox is stopped or paused, or its queue refuses updates because it is full."""
        full = read_full(tr, self.queue)
        waits = read_stopped(tr, self.keys) is not None or read_control(tr, self.keys).paused
        return waits or (full is not None and full.mode == "raise")

    def enter(self, worker: bytes) -> None:
        self._polls = bool(worker)  # a drain ends once the table is empty

    def end(self) -> None:
        """Close the connections to the application's database: the worker leaves the outbox."""
        self._source.database.close()
        self.backlog = None  # another worker reads the table now

    def _step(self) -> float:
        """Move one batch; returns 0.0 if there may be more rows, else the time of the next look, or `DONE`."""
        begun = runtime.monotonic()
        if self._is_still_empty(begun):
            return POLL_SECONDS
        read = transact(self.db, self._read)
        if read.paused:
            self._wait(PAUSED)
            return STOPPED_SECONDS
        state = read.state
        if (
            state.ids and state.batch != self._finished
        ):  # of a worker that has died, or whose transaction has failed
            self._finish(state, {})
        rows = self._read_rows(state)
        self.signal("read")
        if read.stopped is not None:
            transact(self.db, lambda tr: tr.clear(self.keys.stopped))  # the fence is as expected now
        if not rows:
            self._clear_note()
            if state.ids or read.notification is not None:
                transact(self.db, lambda tr: self._forget(tr, read))
            if not self._polls:
                return DONE
            self._empty = state, begun
            return POLL_SECONDS
        try:
            moved, content = self._move_first(state, rows)
        except QueueFull as error:
            self._wait(str(error))
            return FULL_SECONDS
        self.signal("moved")
        self._finish(moved, content.errors)
        self.signal("deleted")
        self._clear_note()
        self._report(content, rows, runtime.monotonic() - begun)
        return 0.0

    def _is_still_empty(self, now: float) -> bool:
        """Whether a table that was empty has no rows, without a request to the store; raises as a step does.

        Its state may be outdated: then the fence differs, and the next step reads the state.
        """
        found, self._empty = self._empty, None
        if found is None or now - found[1] > _UNASKED_SECONDS or self._read_rows(found[0]):
            return False
        self._empty = found
        return True

    def finish(self) -> None:
        """Delete the rows of the latest batch, and forget their ids; raises as a step does."""
        read = transact(self.db, self._read)
        self._finish(read.state, {})
        transact(self.db, lambda tr: self._forget(tr, read))

    # 1: the state in the store

    def _read(self, tr: Transaction) -> OutboxRead:
        notification = tr.snapshot.get(self.notification)
        stopped = read_stopped(tr.snapshot, self.keys)
        paused = read_control(tr.snapshot, self.keys).paused
        return OutboxRead(read_state(tr.snapshot, self.queue), notification.value, stopped, paused)

    # 2: deleting the rows of the latest batch

    def _finish(self, state: OutboxState, errors: Mapping[int, str]) -> None:
        """Delete the rows of the latest batch, unless that is done, and store the errors of rows that it left out."""
        with self._source.database.transaction() as (conn, dialect):
            tables = OutboxTables.of(dialect, self._source.schema)
            # Once the ids are forgotten, the deletion is known: a fence with the batch before was set back.
            expected = (state.batch, state.previous) if state.ids else (state.batch,)
            fence = self._checked(tables.fence(conn, self.queue, lock=True), expected)
            if fence.batch != state.batch:
                deleted = tables.delete(conn, state.ids, state.until)
                if deleted != len(state.ids):
                    raise LinkStopped(
                        f"rows that are added to queue {self.queue!r} are missing in the application's database: it "
                        f"was set back, or they were deleted. {_advice(self.queue)}"
                    )
            if errors:
                tables.set_aside(conn, errors)
            tables.set_fence(conn, self.queue, batch=state.batch)
            self.signal("deleting")
        self._finished = state.batch

    # 3: reading rows

    def _read_rows(self, state: OutboxState) -> Sequence[OutboxRow]:
        """The first rows in the table, after a check of the fence."""
        with self._source.database.reading() as (conn, dialect):
            tables = OutboxTables.of(dialect, self._source.schema)
            # The fence first: then the rows are not older than it, and do not include any of the latest batch.
            self._checked(tables.fence(conn, self.queue), (state.batch,))
            rows, is_last = tables.read(conn, self.queue)
        oldest = min((row.added_at.timestamp() for row in rows), default=None)
        self.backlog = SourceBacklog(len(rows), not is_last, oldest)
        return rows

    # 4: moving rows

    def _move_first(self, state: OutboxState, rows: Sequence[OutboxRow]) -> tuple[OutboxState, OutboxBatch]:
        """Move the first rows in one transaction; returns the new state, and the rows moved and set aside.

        `batch_of` finds the rows that the queue refuses. If it ever passes one that the add refuses, ever smaller
        halves find that row, and it is set aside alone: a row must not stop those after it.
        """
        while True:
            batch = new_batch(state.batch)
            try:
                return transact(self.db, lambda tr: self._move(tr, state, batch, rows))  # noqa: B023 - runs at once
            except InvalidData as error:
                if len(rows) == 1:
                    return state, OutboxBatch(errors={rows[0].id: printable(str(error))})
                rows = rows[: len(rows) // 2]

    def _move(
        self, tr: Transaction, before: OutboxState, batch: bytes, rows: Sequence[OutboxRow]
    ) -> tuple[OutboxState, OutboxBatch]:
        """Add the first updates, and store their rows' ids; returns the new state, and the rows moved and set aside.

        Raises `OutdatedBatch` if another worker was faster, and as `OutboxBatch.add_to`.
        """
        current = read_state(tr, self.queue)
        content = batch_of(read_config(tr, self.queue), rows)
        if current.batch == batch:
            return current, content  # an earlier try has committed
        if current.batch != before.batch:
            raise OutdatedBatch
        if not content.ids:
            return before, content
        content.add_to(tr, CombineQueue(self.queue))
        moved = OutboxState.of(
            batch, before.batch, content.ids, max(row.added_at for row in rows).isoformat()
        )
        tr.set(self.keys.state, moved.to_bytes())
        return moved, content

    def _forget(self, tr: Transaction, read: OutboxRead) -> None:
        """Forget the ids of the latest batch, whose rows are deleted, and clear the notification if it is unchanged."""
        current = read_state(tr, self.queue)
        if current.batch == read.state.batch and current.ids:
            tr.set(self.keys.state, OutboxState.of(current.batch, current.previous).to_bytes())
        tr.clear(self.keys.failure(None))  # also one that a slow worker stored after this one succeeded
        if read.notification is not None:
            tr.compare_and_clear(self.notification, read.notification)

    def _report(self, content: OutboxBatch, rows: Sequence[OutboxRow], seconds: float) -> None:
        if content.ids:
            lag = max(seconds_since(row.added_at) for row in rows)
            emit("outbox_moved", queue=self.queue, moved=len(content.ids), lag=lag, seconds=seconds)
        for row, error in content.errors.items():
            emit("outbox_row_set_aside", queue=self.queue, row=row, error=error)

    # The fence

    def _checked(self, fence: OutboxFence | None, expected: tuple[bytes, ...]) -> OutboxFence:
        """The fence; raises `LinkStopped` unless it is this store's and has an expected batch.

        Raises `OutdatedBatch` instead if another worker has moved a batch since the state was read.
        """
        if fence is not None and fence.store == self._source.store and fence.batch in expected:
            return fence
        latest = transact(self.db, lambda tr: read_state(tr.snapshot, self.queue)).batch
        if latest != expected[0]:
            raise OutdatedBatch
        raise LinkStopped(disagreement(self.queue, fence, self._source.store, latest))


def make_tasks(db: Database, queue: str) -> list[Task]:
    """The task of a queue's outbox; raises `LinkFailed`, `InvalidConfiguration` if the URL or the driver is missing."""
    source = find_outbox(db, queue)
    source.database.check_url()
    return [OutboxTask(db, queue, source)]


def disagreement(queue: str, fence: OutboxFence | None, store: bytes, latest: bytes) -> str:
    """The message for the operator about a fence that does not fit the latest batch in the store."""
    if fence is None:
        return (
            f"the application's database has no row for queue {queue!r} in cq_outbox_progress: it was set back or "
            f"emptied, or is another database. {_advice(queue)}"
        )
    if fence.store != store:
        return (
            f"the outbox of queue {queue!r} is moved by another store, or by a former store in its place. "
            f"{_advice(queue)}"
        )
    if number_of(fence.batch) < number_of(latest):
        return (
            f"the application's database lacks the deletion of rows that are added to queue {queue!r}: it was set "
            f"back. {_advice(queue)}"
        )
    return (
        f"the application's database has deleted rows of the outbox of queue {queue!r} that this store does not have: "
        f"the store was set back. {_advice(queue)}"
    )


def _advice(queue: str) -> str:
    return (
        f"Correct the data if you need to, then run `cq link rebase {queue} {OUTBOX}`: workers continue with the "
        "rows that the table has now, and add each of them"
    )
