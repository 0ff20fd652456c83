"""The view of a pass: everything that it reads, before it decides what to write.

Only the reads of the bucket's state and of the queue's configuration conflict: of two passes over the bucket one
aborts, and adds abort none. All others are snapshot reads. Reads that do not depend on each other are in flight
together: a pass waits for its read version, for state, notification and rows, and for the current values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cq.app import QueueCode
from cq.config.queue import QueueConfig, read_config
from cq.errors import CodeMismatch
from cq.expiry.due import BucketExpiry
from cq.keys import QueueKeys, after, place
from cq.keys.answers import ALONE, TICKET_BYTES, AnswerKeys, group_of, position_of
from cq.passes.bucket_cache import BucketCache
from cq.passes.plan import PassPlan
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import MissedReports
from cq.queue.requests import is_request
from cq.queue.rows import Backlog, Row, Updates, drop_repeated_operations, encode_row, read_rows, updates_of
from cq.store.api import WANT_ALL, KeyValue, Transaction, TransactionRead, Value
from cq.store.bounded_reads import prefix_read, read_at_hashes
from cq.store.sizes import clear_bytes
from cq.store.version_clock import clock_of

MAX_MARKS: Final = 1_000
"""Marks of withdrawn requests that a pass reads and clears without their requests, at most."""


class Step(Enum):
    """What a pass does with the rows that it has read."""

    COMBINE = "report keys; stage the updates of all other keys taken"
    FOLD = "write the updates of all keys that are not reported as rows again"
    SORT = "write a part of the rows again, as the first sorted run of the backlog"


@dataclass(frozen=True, slots=True)
class Taken:
    """The part of the rows that a pass takes.

    Attributes:
        step: what the pass does with it.
        updates: {encoded key: updates in commit order}.
        rest: a row and a position in it: the pass takes its updates before the position, and all rows before it; None:
            all rows.
        size: the bytes of these updates if staged or written as rows, about.
    """

    step: Step = Step.COMBINE
    updates: Updates = field(default_factory=dict)
    rest: tuple[Row, int] | None = None
    size: int = 0


Values = tuple[list[tuple[bytes, bytes]], bytes | None]
"""Values in hash order, as [(encoded key, encoded value)], and the place reached; None at the end of the bucket."""


@dataclass(slots=True)
class View:
    """What a pass has read.

    Attributes:
        code: the queue's configuration and code as this worker has them.
        number: number of the bucket.
        plan: what the runner of passes has decided.
        cache: the worker's cache of the bucket.
        read_version: the read version of the pass.
        is_former: whether the bucket is of the queue's former shape; the current one may then have later updates.
        state: the bucket's state.
        notification: value of the bucket's notification, or None.
        backlog: all rows read.
        rows: these rows, without those of repeated operations.
        queued: the updates of these rows.
        positions: {generation of an observer: its backfill position in the bucket; None: complete}.
        missed: the missed reports of the bucket; None if the queue has no observers.
        expiry: the expiry of the bucket; None if the queue's keys do not expire.
        levels: the configurations of the levels that the rows are added to.
        taken: the part of the rows that the pass takes.
        staged: {encoded key: staged updates, encoded, or None} as far as they were read or cached.
        all_staged_known: whether all staged updates of the bucket were read.
        report: the encoded keys to report.
        current: {encoded key: its current value, encoded, or None} of these keys.
        first: values to report to a new observer, and the place reached.
        withdrawn: {ticket: its key} of marks of withdrawn requests of the bucket: the first `MAX_MARKS`, and those of
            the requests taken; empty in a queue without a decider.
        answers: {group: its row of answers, a read in flight} of groups of several requests that the pass may answer.
        again: {encoded key: its current value, encoded, or None} of missed reports to repeat.
    """

    code: QueueCode
    number: int
    plan: PassPlan
    cache: BucketCache
    read_version: int = 0
    is_former: bool = False
    state: BucketState = field(default_factory=BucketState)
    notification: bytes | None = None
    backlog: Backlog = field(default_factory=Backlog)
    rows: list[Row] = field(default_factory=list)
    queued: Updates = field(default_factory=dict)
    positions: dict[int, bytes | None] = field(default_factory=dict)
    missed: MissedReports | None = None
    expiry: BucketExpiry | None = None
    levels: list[QueueConfig] = field(default_factory=list)
    taken: Taken = field(default_factory=Taken)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)
    all_staged_known: bool = True
    report: list[bytes] = field(default_factory=list)
    current: dict[bytes, bytes | None] = field(default_factory=dict)
    first: Values = ([], None)
    withdrawn: dict[bytes, bytes] = field(default_factory=dict)
    answers: dict[bytes, Value] = field(default_factory=dict)
    again: dict[bytes, bytes | None] = field(default_factory=dict)
    config: QueueConfig = field(init=False)
    keys: QueueKeys = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.code.config
        self.keys = QueueKeys(self.config.name)

    @property
    def backfilling(self) -> int | None:
        """The generation of an observer that has not received all values of the bucket; None: there is none."""
        return next((each for each, cursor in self.positions.items() if cursor is not None), None)

    @property
    def due(self) -> list[bytes]:
        """The encoded keys of the next missed reports to repeat."""
        return self.missed.due if self.missed else []

    @property
    def is_empty(self) -> bool:
        """Whether the bucket has neither rows nor staged updates, and passes have reached its end."""
        return self.backlog.last_key is None and not self.state.staged and not self.state.unfinished_since

    @property
    def is_idle(self) -> bool:
        """Whether the bucket has no work: the pass only clears the notification."""
        is_reported = self.backfilling is None and not self.due and self.positions == self.state.observers
        return self.is_empty and is_reported

    @property
    def may_be_due(self) -> bool:
        """Whether a further pass must look for due keys; not after a row that no pass can go beyond."""
        if self.expiry is None or self.is_former or self.backlog.is_copied:
            return False
        return self.expiry.may_be_due

    def share(self, limit_bytes: int) -> int:
        """The part of a limit for clears of values, beside those of missed reports."""
        return self.missed.share(limit_bytes) if self.missed else limit_bytes

    @property
    def at_end(self) -> bool:
        """Whether the pass takes every row queued at the read version."""
        return self.backlog.at_end and self.taken.rest is None

    @property
    def is_complete(self) -> bool:
        """Whether every update of these keys committed at the read version is taken or staged."""
        return self.at_end and not self.is_former

    @property
    def has_more_marks(self) -> bool:
        """Whether another pass must clear marks of withdrawn requests that are no longer queued."""
        return self.is_complete and len(self.withdrawn) >= MAX_MARKS

    @property
    def touched(self) -> list[bytes]:
        """The encoded keys whose updates the pass combines."""
        return list(dict.fromkeys([*self.taken.updates, *self.report]))

    def has_work(self, encoded: bytes) -> bool:
        """Whether the key has taken or staged updates."""
        return encoded in self.taken.updates or self.staged.get(encoded) is not None

    def is_taken(self, key: bytes) -> bool:
        """Whether the pass takes the whole row with this key."""
        return self.taken.rest is None or key < self.taken.rest[0].key

    @property
    def rows_taken(self) -> list[Row]:
        """The rows that the pass takes whole, without those of repeated operations."""
        return [row for row in self.rows if self.is_taken(row.key)]

    def rows_with_taken(self) -> list[Row]:
        """The rows with taken updates, each with just these, without those of repeated operations."""
        rows, rest = self.rows_taken, self.taken.rest
        if rest is None or not rest[1]:
            return rows
        row, position = rest
        times = row.times[:position] if len(row.times) > 1 else row.times
        return [*rows, row._replace(value=encode_row(row, range(position)), times=times)]


class ViewReader:
    """Reads the view of one pass, in its transaction. It starts the first reads at once.

    Args:
        tr: a fresh transaction.
        view: the view to complete.

    Attributes:
        snapshot: the snapshot reads of the transaction.
        clock: the clock of the store's versions.

    Raises `CodeMismatch` if the stored configuration asks for other code.
    """

    def __init__(self, tr: Transaction, view: View) -> None:
        config = view.config
        self._tr = tr
        self.snapshot = tr.snapshot
        self.clock = clock_of(tr.db)
        self._view = view
        version = tr.get_read_version()
        self._state = tr.get(view.keys.state(config.generation, view.number))
        stored = read_config(tr, config.name)
        if config not in (stored, stored.under_former_shape()):
            raise CodeMismatch(f"the configuration of queue {config.name!r} has changed")
        view.is_former = config != stored
        view.read_version = version.wait()
        if config.expiry is not None:
            view.expiry = BucketExpiry(tr.snapshot, config, view.number, config.expiry)

    def read_state(self) -> None:
        """Read the bucket's state. Request all that does not depend on it before."""
        self._view.state = BucketState.from_bytes(self._state.value)

    def read_bucket(self) -> None:
        """Read the bucket's first rows, its state, and the positions of its observers."""
        view, snapshot, config = self._view, self.snapshot, self._view.config
        notification = snapshot.get(view.keys.notification(config.generation, view.number))
        bounds = view.keys.rows(config.generation, view.number)
        withdrawn = None if config.decider is None else read_withdrawn(snapshot, config, view.number)
        view.backlog = read_rows(snapshot, bounds, view.plan.limits.read_bytes, view.read_version)
        view.rows = drop_repeated_operations(snapshot, view.keys, view.backlog.rows)
        view.queued = updates_of(view.backlog, view.rows)
        view.notification = notification.value
        view.withdrawn = {} if withdrawn is None else {row.key[-TICKET_BYTES:]: row.key for row in withdrawn}
        self.read_state()
        if config.observers:
            view.positions = backfill_positions(self._tr, config, view.number, view.state)
            view.missed = MissedReports(config, view.number, view.state)
            view.missed.look(snapshot, max(1, view.plan.max_backfill))
            if view.is_former:  # the present shape may have later updates of these keys
                view.missed.due.clear()
        if config.fed and any(row.times for row in view.rows):
            view.levels = [read_config(self._tr, name) for name in config.fed]

    def read_purge(self) -> bytes | None:
        """The versionstamp of the latest purge."""
        return self.snapshot.get(self._view.keys.purge).value

    def read_values(self, before: bytes, limit: int, limit_bytes: int) -> Values:
        """The next values of the bucket after a place in hash order, and the place reached; None at the end.

        At least one is read. `limit_bytes` is about the bytes of a transaction that clears these keys and writes their
        values elsewhere.
        """
        queue = self._view.keys
        begin, end = queue.values.of_bucket(self._view.config.buckets, self._view.number)
        begin = max(begin, after(queue.value_at(before)))
        values: list[tuple[bytes, bytes]] = []
        size = 0
        for row in self.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL):
            encoded = queue.encoded_key(row.key)
            values.append((encoded, row.value))
            size += clear_bytes(row.key) + len(row.value)
            if len(values) == limit or size > limit_bytes:
                return values, place(encoded)
        return values, None

    def read_staged(self, encoded_keys: list[bytes]) -> None:
        """Read the staged updates of these keys, up to a limit."""
        view = self._view
        known = view.cache.staged if view.cache.is_valid(view.state.token) else {}
        at, load = view.keys.staged_at, view.plan.limits.load_bytes
        view.staged = read_at_hashes(self.snapshot, at, encoded_keys, known, load)

    def read_staged_from_cursor(self, room: int) -> bytes | None:
        """Read staged updates of `room` keys in hash order from the cursor; the place of the last, None: all read."""
        view = self._view
        begin, end = view.keys.all_staged.of_bucket(view.config.buckets, view.number)
        middle = min(max(begin, after(view.keys.staged_at(view.state.cursor))), end)
        size = 0
        for bounds in ((middle, end), (begin, middle)):
            for row in self.snapshot.get_range(*bounds, limit=room, streaming_mode=WANT_ALL):
                encoded = view.keys.encoded_key(row.key)
                view.staged[encoded] = row.value
                size += len(row.key) + len(row.value)
                room -= 1
                if size > view.plan.limits.load_bytes or room == 0:
                    return place(encoded)
        return None

    def read_current(self) -> None:
        """Read all that the keys to report need; keys beyond the limits are not reported."""
        view, report, load = self._view, self._view.report, self._view.plan.limits.load_bytes
        known = view.cache.values if view.cache.is_valid(view.state.token) else {}
        if view.expiry is not None:
            view.expiry.index.request(report)
        view.current = read_at_hashes(self.snapshot, view.keys.value_at, report, known, load)
        report = prefix_read(report, view.current)
        view.report = view.missed.read(self.snapshot, report, load) if view.missed else report
        if view.expiry is not None:
            view.expiry.index.read(view.report)

    def request_answers(self) -> None:
        """Begin to read the answers that groups of the requests taken have already; these reads conflict.

        Read also which of these requests are withdrawn, if the bucket has more marks than those read.
        """
        view, keys = self._view, AnswerKeys(self._view.config.name)
        taken = view.taken.updates.values()
        tickets = [each[0] for requests in taken for each in requests if is_request(each)]
        groups = {group_of(ticket) for ticket in tickets if position_of(ticket) != ALONE}
        view.answers = {group: self._tr.get(keys.answers(group)) for group in groups}
        if len(view.withdrawn) >= MAX_MARKS:
            marks = {ticket: self.snapshot.get(keys.withdrawn(ticket)) for ticket in tickets}
            found = (ticket for ticket, mark in marks.items() if mark.value is not None)
            view.withdrawn.update((ticket, keys.withdrawn(ticket)) for ticket in found)

    def read_backfill(self) -> None:
        """Read the next values to report again, or for the first time to an observer that is new.

        Raises `ValueError` if the plan reports other keys: the pass reads these values before it writes.
        """
        if self._view.plan.max_report:
            raise ValueError("a pass that backfills reports no other key")
        view, limit, load = self._view, self._view.plan.max_backfill, self._view.plan.limits.load_bytes
        generation = view.backfilling
        if view.missed is not None and view.due:
            due = view.missed.read(self.snapshot, view.due[:limit], load, are_due=True)
            found = read_at_hashes(self.snapshot, view.keys.value_at, due, {}, load)
            view.again = {encoded: found[encoded] for encoded in prefix_read(due, found)}
        elif generation is not None:
            view.first = self.read_values(view.positions[generation] or b"", limit, load)


def read_withdrawn(snapshot: TransactionRead, config: QueueConfig, bucket: int) -> Iterable[KeyValue]:
    """The first marks of withdrawn requests of a bucket; the read is in flight."""
    bounds = AnswerKeys(config.name).all_withdrawn.of_bucket(config.buckets, bucket)
    return snapshot.get_range(*bounds, limit=MAX_MARKS, streaming_mode=WANT_ALL)


def backfill_positions(
    tr: Transaction, config: QueueConfig, bucket: int, state: BucketState
) -> dict[int, bytes | None]:
    """{generation of an observer: its backfill position in the bucket; None: complete}.

    In a bucket without values the backfill of a new observer is complete.
    """
    positions = {each.generation: state.observers.get(each.generation, b"") for each in config.observers}
    new = positions.keys() - state.observers.keys()
    positions.update({each: None for each in new if each <= config.backfilled_until})
    new = {each for each in new if each > config.backfilled_until}
    if new:
        bounds = QueueKeys(config.name).values.of_bucket(config.buckets, bucket)
        if not tr.snapshot.get_range(*bounds, limit=1).to_list():
            positions.update(dict.fromkeys(new))
    return positions
