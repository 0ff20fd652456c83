"""`CombineQueue`: adds updates to a queue and reads its values, inside the application's transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol

from cq import keys
from cq.arguments import check_limit, repeatable
from cq.combiners import Combiner, built_in_combiner, latest_only, require_packages
from cq.config.queue import Named, QueueConfig, read_config, refuse_while_rebucketing
from cq.durations import Span
from cq.encoding import codec
from cq.errors import CodeMismatch, InvalidData
from cq.failure import is_failure
from cq.keys import QueueKeys
from cq.queue.adds import config_for_adds, times_now, write_updates
from cq.queue.answers import wait_for_answer, withdraw
from cq.queue.packing import split_pairs
from cq.queue.pending import read_pending_updates
from cq.queue.requests import Request, decider_of, operation_of, operations_of
from cq.queue.shared_adds import AddCall, add_now
from cq.queue.shared_asks import AskCall, answer_to
from cq.queue.slots import combined, decoded, plan_slots, read_slots
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead, Value
from cq.store.bounded_reads import pages
from cq.store.reads import snapshot_of
from cq.type_variables import K, V

PAGE_BYTES: Final = 1_000_000
"""Approximate bytes of a page of items."""


class Page(NamedTuple, Generic[K, V]):
    """A page of items: `[(key, value), ...]` in the stable order of the keys' hashes, and its continuation.

    Pass `continuation` to `items(after=...)` for the next page; None after the last page.
    """

    items: list[tuple[K, V]]
    continuation: bytes | None


class HasCombiner(Protocol):
    """A handle of a queue: a `CombineQueue`, or a window over one."""

    @property
    def name(self) -> str: ...
    @property
    def combiner(self) -> Combiner | None: ...


class CombineQueue(Generic[K, V]):
    """A queue of updates, which workers combine into one value for each key.

    A handle without state: create it anywhere, and use it from any thread, with databases and transactions of either
    store. The queue itself is in the store, where `cq.configure` creates it.

    For type checkers, `CombineQueue[str, int]` is a queue with keys of str and values of int; without these, keys and
    values are `Any`. The types in effect are those of the queue's configuration.

    Args:
        name: the name given to `cq.configure`; raises `InvalidConfiguration` if it is not a valid name.
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
        updates: Mapping[K, V] | Collection[tuple[K, V]],
        once: str | bytes | None = None,
    ) -> None:
        """Queue an update for each key, as a part of the transaction.

        A blind write: it reads only the metadata version, which comes with the read version. It conflicts with changes
        of this queue's configuration, but not with other adds or workers. All updates are validated before the first
        write, so a refused add writes nothing. In a queue with a window or a roll-up the updates count as of now; use
        `Window.add` for another time.
        It writes one notification for each bucket that the keys touch, and one row there for every 8 kB; in addition,
        one atomic addition for each bucket if the queue has an audit.

        Args:
            tr: a transaction of either store.
            updates: `{key: update}`, of the queue's types; or pairs of these, in order, with repeated keys allowed. An
                iterator is refused: it would be empty in a retry of the transaction.
            once: an operation id (str or bytes, up to 1,000 bytes). Of all transactions that add to this queue with
                the same id, only the first to commit counts, whatever the others contain. Give one if the
                transaction may be retried after an unknown commit result (`commit_unknown_result`). It covers this
                queue's updates, not the transaction's other writes. It is remembered for a day after its latest use,
                and longer while updates from that time are queued.

        Raises:
            QueueNotConfigured: the queue does not exist: call `cq.configure` first.
            QueueFull: the queue's backlog exceeds its limits.
            InvalidData, TooLarge: the queue does not take a key, an update or the operation id.
            WrongType: `updates` is no dict or collection of pairs.
            OneShotIterable: `updates` is an iterator, such as a generator or `zip`.
            TypeError: `tr` is a database, or the `.snapshot` of a transaction.
            FDBError: from the store, as for any read; the retry loop handles it.
        """
        config = config_for_adds(tr, self.name)
        write_updates(tr, config, updates, once, times=times_now(config))

    def add_now(
        self,
        db: Database,
        updates: Mapping[K, V] | Collection[tuple[K, V]],
        once: str | bytes | None = None,
    ) -> None:
        """Queue updates in a transaction of their own, and return when it is committed.

        For updates that belong to no other write. An update counts once, also if the transaction is retried after an
        unknown commit result. Calls of several threads, or of several tasks of an event loop, share transactions: see
        `cq.queue.shared_adds`. The main thread commits alone, as ^C may interrupt it anywhere. If a task is cancelled
        while it waits, its updates count once or not at all. It does not call `add`: a class that overrides one of them
        overrides both. For many small updates that may be lost with the process, `cq.Emitter` is faster.

        Args:
            db: a database of either store.
            updates: as for `add`.
            once: an operation id, as for `add`; default: a random one, which covers the retries within this call. Give
                one if the call itself may be repeated, for example by a process that was killed before it returned.

        Raises:
            QueueNotConfigured, QueueFull, InvalidData: as `add`, with their subclasses.
            TypeError: `db` is a transaction: call `add`.
            FDBError: the updates are not committed, or this is unknown (codes 1021 and 1031). Only a call with the same
                `once` can then be repeated safely.
            StoreError: this is unknown, since the task that committed them with its own was cancelled.
        """
        add_now(db, self.name, AddCall(*split_pairs(updates), once))

    def ask(self, tr: Transaction, key: K, request: Any, once: str | bytes | None = None) -> str:
        """Queue a request for the queue's decider, as a part of the transaction, and return its ticket.

        A blind write like `add`, with the same conflicts. Workers decide the requests of a key in commit order, each
        once, and `answer` waits for the answer after the commit. Nobody needs to wait: the new state is the value of
        the key, and observers receive it.

        Args:
            tr: a transaction of either store.
            key: a key of the queue's type.
            request: any value that CBOR can carry, up to 90 kB.
            once: an operation id (str or bytes, up to 1,000 bytes): of all transactions that ask with the same id and
                key, only the first to commit counts, and all get the same ticket. Give one if the transaction may be
                retried after an unknown commit result, and ask once with it in a transaction. It is remembered as for
                `add`.

        Returns:
            The ticket, text that any process can give to `answer` or `withdraw`.

        Raises:
            InvalidConfiguration: the queue has no decider.
            QueueNotConfigured, QueueFull, InvalidData, TooLarge, TypeError, FDBError: as for `add`.
        """
        asked = Request(request, operation_of(key, once))
        self._ask(tr, [(key, asked)], asked.operation)
        return str(asked)

    def ask_many(
        self,
        tr: Transaction,
        requests: Mapping[K, Any] | Collection[tuple[K, Any]],
        once: str | bytes | None = None,
    ) -> list[str]:
        """Queue many requests as `ask` does, several times as fast, and return their tickets in the same order.

        Args:
            tr: a transaction of either store.
            requests: `{key: request}`; or pairs of these, in order, with repeated keys allowed.
            once: an operation id for all of them: of all transactions that call this with the same id, only the first
                to commit counts. Requests at the same place in the order, with the same key, have the same ticket.

        Raises:
            WrongType: `requests` is no dict or collection of pairs.
            OneShotIterable: `requests` is an iterator.
            InvalidConfiguration, QueueNotConfigured, QueueFull, InvalidData, TooLarge, TypeError, FDBError: as for
                `ask`.
        """
        keys_of, contents = split_pairs(requests)
        operation, operations = operations_of(len(contents), once)
        asked = list(map(Request, contents, operations))
        self._ask(tr, list(zip(keys_of, asked, strict=True)), operation)
        return list(map(str, asked))

    def _ask(self, tr: Transaction, requests: list[tuple[K, Request]], operation: bytes | None) -> None:
        """Queue requests under one operation id."""
        config = config_for_adds(tr, self.name)
        decider_of(config)
        write_updates(tr, config, requests, operation)

    def answer(self, db: Database, ticket: str, timeout: Span | None = 10.0) -> Any:
        """The answer to a request; waits for it by a watch, without polling.

        It can be read again, by any process, until the queue's `Decider.keep` has passed. Each wait uses one of the
        10,000 watches that a connection to a cluster can have.

        Args:
            db: a database; the wait is outside of any transaction.
            ticket: what `ask` has returned.
            timeout: as for `ask_now`.

        Raises:
            NoAnswer: there is none after the timeout, or it is no longer kept; the message says whether no worker is
                alive. The request stays queued.
            DecisionFailed: the decider has raised.
            Withdrawn: the request was withdrawn.
            InvalidConfiguration: the queue has no decider.
            InvalidData: this is no ticket.
        """
        return wait_for_answer(db, self.name, ticket, timeout)

    def ask_now(
        self,
        db: Database,
        key: K,
        request: Any,
        once: str | bytes | None = None,
        *,
        timeout: Span | None = 10.0,
        withdraw: bool = False,
    ) -> Any:
        """Ask in a transaction of its own, and return the answer.

        The request counts once, also if the transaction is retried after an unknown result. Calls of several threads or
        tasks share transactions, as those of `add_now` do, and then one wait for their answers.

        Args:
            db: a database of either store.
            key: as for `ask`.
            request: as for `ask`.
            once: as for `ask`; a repeated call gets the answer of the first one.
            timeout: how long to wait for the answer, from the call on; None: no limit. If the store does not answer
                when the request is queued or the wait begins, the call takes up to the timeout of a transaction
                longer: on a database of `cq.open`, 30 seconds.
            withdraw: whether to withdraw the request if it has no answer after the timeout; this can take a second
                more. Default: it stays queued, and the ticket in the error reads a later answer.

        Returns:
            The answer.

        Raises:
            Withdrawn: there was no answer after the timeout, and the request is withdrawn: it was not decided.
            NoAnswer, DecisionFailed: as for `answer`. Also with `withdraw`, if a call with the same `once` came before
                the oldest answers that are kept, so that its request may have been decided.
            InvalidConfiguration: the queue has no decider.
            QueueNotConfigured, QueueFull, InvalidData, TypeError, FDBError, StoreError: as for `add_now`.
        """
        call = AskCall(key, request, once, timeout=timeout, withdraw=withdraw)
        add_now(db, self.name, call)
        return answer_to(db, self.name, call)

    def withdraw(self, db: Database, ticket: str) -> bool:
        """Withdraw a request that is committed and has no answer yet.

        The result is final, also while workers run. The call returns after the next pass over the bucket, or after a
        second if there is none.

        Args:
            db: a database of either store.
            ticket: what `ask` has returned.

        Returns:
            Whether it will never be decided from now on. False: it has an answer, which `answer` returns. It was not
            decided before either, unless its answer is no longer kept: the queue then knows as little of it as of a
            ticket that it has never given.

        Raises:
            InvalidData: this is no ticket.
            InvalidConfiguration: the queue has no decider.
        """
        return withdraw(db, self.name, ticket)

    def get(self, tr: TransactionRead, key: K, *, pending: bool = False) -> V | None:
        """The value of a key, None if it has no value.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without a read conflict.
            key: a key of the queue's type.
            pending: False: the value last reported by a pass. True: this value combined with all updates queued for
                the key at the transaction's read version. This reads the key's bucket (sequential replies of about
                80 kB, up to 1 MB) by snapshot reads, because reads with conflicts would conflict with every add.

        Raises:
            QueueNotConfigured, InvalidData: as for `add`.
            PendingUnreadable: with `pending`, after an add to the key's bucket in the same transaction.
            BacklogTooDeep: with `pending`, if more than 1 MB is queued in the bucket.
            NotNow: with `pending`, until a purge of the bucket, or a change of the combiner's version, is complete.
            InvalidData: with `pending`, if the combiner fails, as it then will in a worker.
            CodeMismatch: with `pending`, if the queue has a combiner that this `CombineQueue` was not given.
        """
        config = read_config(snapshot_of(tr), self.name)
        encoded = config.key.encoder()(key)
        current = tr.get(self.keys.value(encoded))
        if pending:
            return self._with_pending(tr, config, encoded, key, current)
        found: V | None = decoded(current)
        return found

    def get_many(self, tr: TransactionRead, wanted: Collection[K]) -> dict[K, V | None]:
        """The last reported values of several keys, read concurrently: `{key: value}`, None for a key without value.

        Raises the errors of `get`, and `OneShotIterable` if `wanted` is an iterator.
        """
        config = read_config(snapshot_of(tr), self.name)
        encode = config.key.encoder()
        futures = {key: tr.get(self.keys.value(encode(key))) for key in repeatable(wanted, "keys")}
        return {key: decoded(future) for key, future in futures.items()}

    def merged(self, tr: TransactionRead, wanted: Collection[K]) -> V | None:
        """The combination of the last reported values of several keys: their sum, the union of their sketches ...

        The combiner receives the values in the order of the keys, and None as the key. Returns None if no key has a
        value, or if the combination is empty. All values are read into memory.

        Raises the errors of `get_many`, `InvalidData` if the combiner raises, and `CodeMismatch` if the queue has a
        combiner that this `CombineQueue` was not given.
        """
        combiner = own_combiner(self, read_config(snapshot_of(tr), self.name))
        value: V | None = combined(combiner, None, self.get_many(tr, wanted).values())
        return value

    def items(self, tr: TransactionRead, *, limit: int = 1000, after: bytes | None = None) -> Page[K, V]:
        """Up to `limit` keys with their last reported values, or about 1 MB of them, in hash order, after `after`.

        Pages read in one transaction are consistent with each other. A transaction lives five seconds, so use `scan`
        for more than it can read. Use `tr.snapshot` unless the transaction should conflict with every pass. Raises
        `InvalidData` for a limit below 1.
        """
        check_limit(limit)
        config = read_config(snapshot_of(tr), self.name)
        begin, end = self.keys.values()
        if after is not None:
            if not isinstance(after, bytes) or len(after) > codec.MAX_KEY_BYTES + 4:
                raise InvalidData(f"expected a continuation of a page, got: {codec.shown(after)}")
            begin = keys.after(begin + after)
        found: list[tuple[K, V]] = []
        size = 0
        for row in tr.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL):
            found.append((config.key.decode(self.keys.encoded_key(row.key)), codec.decode(row.value)))
            size += len(row.key) + len(row.value)
            if len(found) == limit or size > PAGE_BYTES:
                return Page(found, row.key[len(self.keys.values()[0]) :])
        return Page(found, None)

    def series(
        self,
        tr: TransactionRead,
        key: K,
        *,
        last: Span,
        by: Span | None = None,
        until: float | None = None,
        fill: Any = None,
    ) -> list[tuple[int, V | Any]]:
        """The values of a key by slots of time: `[(start, value), ...]`, the oldest first; for a queue with a roll-up.

        Each `start` is in seconds since 1970.

        The slots are those that have a part of the last `last` seconds: so the oldest and the newest one may have
        parts outside of them. They are read from the coarsest level with periods that divide `by`, if it keeps the
        span; several periods of it are combined into one slot. A slot of which the level may have deleted a part is
        left out: keep periods for the span and one slot more. All values have one read version. They follow the values
        of the queue by one pass.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            key: a key of the queue.
            last: length of the span: seconds, text such as `"24h"`, or a `timedelta`; whole seconds.
            by: length of a slot, in the same way; slots begin at multiples of it since 1970, in UTC. Default: the
                shortest period that gives at most 100 slots.
            until: end of the span in seconds since 1970; default: now.
            fill: value of a slot without a value, such as 0, or `cq.sketches.Distinct.empty()`; None leaves a gap.

        Raises:
            NotInStore: the queue has no roll-up.
            InvalidData: the roll-up has no such slots; or the read needs more than 5,000 values.
            CodeMismatch: slots must be combined, with a combiner that this `CombineQueue` was not given.
        """
        return self.series_of_many(tr, [key], last=last, by=by, until=until, fill=fill)[key]

    def series_of_many(
        self,
        tr: TransactionRead,
        wanted: Collection[K],
        *,
        last: Span,
        by: Span | None = None,
        until: float | None = None,
        fill: Any = None,
    ) -> dict[K, list[tuple[int, V | Any]]]:
        """The series of several keys, read concurrently: `{key: [(start, value), ...]}`; raises the errors of `series`.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            wanted: the keys.
            last: as for `series`.
            by: as for `series`.
            until: as for `series`.
            fill: as for `series`.
        """
        config = read_config(snapshot_of(tr), self.name)
        plan = plan_slots(config, last, by, until, len(repeatable(wanted, "keys")))
        found = read_slots(tr, config, wanted, plan, lambda: own_combiner(self, config))
        return {
            key: [(start, fill if value is None else value) for start, value in slots]
            for key, slots in found.items()
        }

    def merged_series(
        self, tr: TransactionRead, key: K, *, last: Span, by: Span | None = None, until: float | None = None
    ) -> V | None:
        """The value of a key over a span of time: the combination of the slots of `series`; None without a value.

        It includes all updates of the last `last` seconds, and older updates of the first slot, but not those of a slot
        that `series` leaves out. Raises the errors of `series`.

        Args:
            tr: a transaction of either store, or its `.snapshot` to read without read conflicts.
            key: a key of the queue.
            last: as for `series`.
            by: as for `series`.
            until: as for `series`.
        """
        slots = self.series(tr, key, last=last, by=by, until=until)
        combiner = own_combiner(self, read_config(snapshot_of(tr), self.name))
        value: V | None = combined(combiner, key, (value for _, value in slots))
        return value

    def scan(self, db: Database, *, limit: int = 1000) -> Iterator[tuple[K, V]]:
        """All keys with their last reported values, read in one transaction for each `limit` keys.

        The result is not one consistent snapshot: each value was current when its page was read.
        """
        for page in pages(db, lambda tr, after: self.items(tr.snapshot, limit=limit, after=after)):
            yield from page

    def _with_pending(
        self, tr: TransactionRead, config: QueueConfig, encoded: bytes, key: K, current: Value
    ) -> V | None:
        if config.decider is not None:
            raise InvalidData(
                f"queue {config.name!r} has a decider: only workers decide its requests, so read without pending"
            )
        combiner = own_combiner(self, config)
        if config.lists_keys:
            combiner = latest_only(combiner)
        updates = read_pending_updates(snapshot_of(tr), config, [encoded]).get(encoded, [])
        values = updates if current.value is None else [codec.decode(current.value), *updates]
        if not values:
            return None
        try:
            value: V = combiner.combine(key, values)
            return None if combiner.is_empty(value) else value
        except BaseException as error:
            if not is_failure(error):
                raise
            raise InvalidData(
                f"key {codec.brief(key)}: its queued updates cannot be combined, and workers will set them aside: "
                f"{codec.shown(error)}"
            ) from error


def own_combiner(queue: HasCombiner, config: QueueConfig) -> Combiner:
    """This process's combiner for a queue; raises `CodeMismatch` if it is another one, and `MissingPackage`.

    Raises `NotNow` while the version of the combiner is being changed: values and updates may be of either version.
    """
    if config.conversion is not None:
        refuse_while_rebucketing(config)
    return combiner_of_updates(queue, config)


def combiner_of_updates(queue: HasCombiner, config: QueueConfig) -> Combiner:
    """This process's combiner for updates that are yet to be added; raises as `own_combiner`, except for `NotNow`."""
    combiner = queue.combiner or built_in_combiner(config.combiner.name)
    if combiner is None or Named(combiner.name, combiner.version) != config.combiner:
        raise CodeMismatch(
            f"queue {queue.name!r} asks for the combiner {config.combiner}: "
            "give it as CombineQueue(name, combiner=...) to combine updates here"
        )
    require_packages(config.value)
    return combiner
