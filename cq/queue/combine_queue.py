"""`CombineQueue`: adding updates to a queue and reading its values, inside the application's transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count, repeat
from typing import Any, Final, NamedTuple, Protocol

from cq import keys
from cq.arguments import repeatable
from cq.combiners import BUILT_IN, Combiner
from cq.config.queue import QueueConfig, read_config
from cq.config.window import milliseconds
from cq.encoding import codec, hashing
from cq.errors import CodeMismatch, InvalidData
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.queue.ledger import count_added
from cq.queue.limits import refuse_if_full
from cq.queue.packing import pack
from cq.queue.pending import before_adds, read_pending
from cq.queue.rows import drop_repeated_operations, updates_of
from cq.queue.window_rows import pack_expiring, write_expiring
from cq.store.api import (
    WANT_ALL,
    Database,
    Transaction,
    TransactionRead,
    snapshot_of,
)
from cq.store.own_writes import note_writes
from cq.store.transact import transact

PAGE_BYTES: Final = 1_000_000
"""How much a page of items holds, about."""
_counter: Final = count()  # process-wide, so that all rows of a transaction are kept apart, whoever adds them


class Page(NamedTuple):
    """A piece of all items: `[(key, value), ...]` in the stable order of the keys' hashes, and where to go on.

    `continuation` is what `items(after=...)` takes for the next page; None when there is none.
    """

    items: list[tuple[Any, Any]]
    continuation: bytes | None


class HasCombiner(Protocol):
    """A queue as its user has it: `CombineQueue`, or a window over one."""

    @property
    def name(self) -> str: ...
    @property
    def combiner(self) -> Combiner | None: ...


class CombineQueue:
    """A queue of updates that are combined into one value for each key.

    A handle without state: make one wherever it is handy and use it from any thread, with databases and
    transactions of either store. The queue itself lives in the store, where `cq.configure` has put it.

    Args:
        name: the name given to `cq.configure`; raises `InvalidConfiguration` when no queue can be called so.
        combiner: the queue's combiner if it is one of your own; `get(pending=True)` and `cq.Emitter` need it.
    """

    def __init__(self, name: str, *, combiner: Combiner | None = None) -> None:
        self.name = name
        self.keys = QueueKeys(name)
        self.combiner = combiner

    def __repr__(self) -> str:
        return f"CombineQueue({self.name!r})"

    def add(
        self,
        tr: Transaction,
        updates: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        once: str | bytes | None = None,
    ) -> None:
        """Queue an update for each key, as a part of the transaction.

        Blind: it reads nothing but the metadata version that came with the read version. It conflicts with changes of
        this queue's configuration, and neither with other adds nor with workers. Everything is validated before the
        first write. If the queue has a window, this happens now; `Window.add` is for what has happened at another time.
        Cost: one notification for each bucket that the keys touch, and one row there for every 8 kB; one atomic
        addition more for each if the queue has an audit, and a row more for every 8 kB if it has a window.

        Args:
            tr: a transaction of either store.
            updates: `{key: update}`, of the types that the queue is configured for; or pairs of these, in whose order a
                key may occur several times. No iterator: it would be empty when the transaction is retried.
            once: an operation id (str or bytes, up to 1,000 bytes). Of all transactions that add to this queue with
                the same id, only the first to commit counts, whatever the others contain: give one when the
                transaction may be run again after its commit got lost (`commit_unknown_result`). It covers this
                queue's updates, not the transaction's other writes, and is remembered for a day after its latest
                use, or as long as updates from that time are queued, or in the queue's window.

        Raises:
            QueueNotConfigured: `cq.configure` has not been called.
            QueueFull: the queue has limits, and more waits than these allow; nothing was written.
            InvalidData, TooLarge: a key, an update or the operation id does not fit; nothing was written.
            OneShotIterable: `updates` is an iterator, such as a generator or `zip`; nothing was written.
            FDBError: from the store, as for any read; the retry loop deals with it.
        """
        config = read_config(tr, self.name)
        due = None if config.window is None else config.window.expires(milliseconds(None))
        write_updates(tr, self.keys, config, updates, once, due=due)

    def get(self, tr: TransactionRead, key: Any, *, pending: bool = False) -> Any:
        """The value of a key, None when it has none.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without a read conflict.
            key: of the type that the queue is configured for.
            pending: False: the value last reported by a pass. True: that value combined with everything queued for
                the key at the transaction's read version. This reads the key's bucket (one reply of about 80 kB
                after the other, up to 1 MB), by snapshot reads, as real ones would conflict with every add.

        Raises:
            QueueNotConfigured, InvalidData: as for `add`.
            PendingUnreadable: with `pending`, after an add to the key's bucket in the same transaction.
            BacklogTooDeep: with `pending`, when more than 1 MB waits in the bucket.
            InvalidData: with `pending`, when the combiner fails, as it then will in a worker.
            CodeMismatch: with `pending`, when the queue has a combiner that this `CombineQueue` was not given.
        """
        config = read_config(snapshot_of(tr), self.name)
        encoded = config.key.encoder()(key)
        current = tr.get(self.keys.value(encoded))
        if pending:
            return self._with_pending(tr, config, encoded, key, current)
        return None if current.value is None else codec.decode(current.value)

    def get_many(self, tr: TransactionRead, wanted: Iterable[Any]) -> dict[Any, Any]:
        """The values last reported of several keys, read all at once: `{key: value}`, None where there is none.

        Raises as `get` does, and `OneShotIterable` if the keys are in an iterator, as for `add`.
        """
        config = read_config(snapshot_of(tr), self.name)
        encode = config.key.encoder()
        futures = {key: tr.get(self.keys.value(encode(key))) for key in repeatable(wanted, "keys")}
        return {
            key: None if future.value is None else codec.decode(future.value)
            for key, future in futures.items()
        }

    def items(self, tr: TransactionRead, *, limit: int = 1000, after: bytes | None = None) -> Page:
        """Up to `limit` keys with the values last reported, or about 1 MB of them, in hash order, from `after` onward.

        Pages read in one transaction are one consistent picture; a transaction lives five seconds, so use `scan` for
        more than it can read. Use `tr.snapshot` unless the transaction is to conflict with every pass.
        """
        config = read_config(snapshot_of(tr), self.name)
        begin, end = self.keys.values()
        if after is not None:
            begin = keys.after(begin + _checked_place(after))
        found: list[tuple[Any, Any]] = []
        size = 0
        for row in tr.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL):
            found.append((config.key.decode(self.keys.encoded_key(row.key)), codec.decode(row.value)))
            size += len(row.key) + len(row.value)
            if len(found) == limit or size > PAGE_BYTES:
                return Page(found, row.key[len(self.keys.values()[0]) :])
        return Page(found, None)

    def scan(self, db: Database, *, limit: int = 1000) -> Iterator[tuple[Any, Any]]:
        """All keys with the values last reported, a transaction for each `limit` of them.

        No consistent picture of one moment: each value is the one that was current when its page was read.
        """
        after: bytes | None = None
        while True:
            start = after
            page = transact(db, lambda tr: self.items(tr.snapshot, limit=limit, after=start))  # noqa: B023
            yield from page.items
            after = page.continuation
            if after is None:
                return

    def _with_pending(
        self, tr: TransactionRead, config: QueueConfig, encoded: bytes, key: Any, current: Any
    ) -> Any:
        combiner = own_combiner(self, config)
        staged = tr.get(self.keys.staged(encoded))
        updates = self._queued_updates(snapshot_of(tr), config, encoded)
        values = [codec.decode(future.value) for future in (current, staged) if future.value is not None]
        if not values and not updates:
            return None
        try:
            value = combiner.combine(key, values + updates)
            return None if combiner.is_empty(value) else value
        except Exception as error:
            raise InvalidData(
                f"key {codec.brief(key)}: what waits cannot be combined, and workers will set it aside: "
                f"{codec.shown(error)}"
            ) from error

    def _queued_updates(self, snapshot: TransactionRead, config: QueueConfig, encoded: bytes) -> list[Any]:
        """The updates of a key that wait, those added under a shape before it first."""
        former = config.under_former_shape()
        before = [] if former is None else self._queued_updates(snapshot, former, encoded)
        bucket = hashing.bucket_of(encoded, config.buckets)
        with before_adds(self.name):
            backlog = read_pending(snapshot, self.keys, self.name, config.generation, bucket)
        rows = drop_repeated_operations(snapshot, self.keys, backlog.rows)
        return before + updates_of(backlog, rows).get(encoded, [])


def write_updates(
    tr: Transaction,
    queue: QueueKeys,
    config: QueueConfig,
    updates: object,
    once: str | bytes | None,
    *,
    due: int | None,
) -> None:
    """What `CombineQueue.add` writes; with a time at which the updates leave the queue's window, None for never."""
    refuse_if_full(tr, config)
    name, generation = config.name, config.generation
    operation = None if once is None else codec.encode_operation(once)
    packed = pack(config, updates, operation)
    pairs = list(packed.pairs) if due is not None or config.audit is not None else []
    expiring = [] if due is None else pack_expiring(pairs, operation)
    notifications = list(map(queue.notification, repeat(generation), packed.rows))
    note_writes(tr, name, notifications)
    for (bucket, rows), notification in zip(packed.rows.items(), notifications, strict=True):
        for row in rows:
            tr.set_versionstamped_key(queue.new_row(generation, bucket, next(_counter)), row)
        tr.set_versionstamped_value(notification, INCOMPLETE_VERSIONSTAMP)
    if operation is not None:
        tr.set_versionstamped_key(queue.new_marker(operation), b"")
    if due is not None:
        write_expiring(tr, name, expiring, due, _counter, once=operation is not None)
    if config.audit is not None:
        count_added(tr, config, pairs)


def own_combiner(queue: HasCombiner, config: QueueConfig) -> Combiner:
    """The combiner that a queue asks for, as this process has it; raises `CodeMismatch` when it has not."""
    combiner = queue.combiner or BUILT_IN.get(config.combiner.name)
    if combiner is None or (combiner.name, combiner.version) != (
        config.combiner.name,
        config.combiner.version,
    ):
        raise CodeMismatch(
            f"queue {queue.name!r} asks for the combiner {config.combiner}: "
            "give it as CombineQueue(name, combiner=...) to combine updates here"
        )
    return combiner


def _checked_place(after: object) -> bytes:
    if not isinstance(after, bytes) or len(after) > codec.MAX_KEY_BYTES + 4:
        raise InvalidData(f"expected a continuation of a page, got: {codec.shown(after)}")
    return after
