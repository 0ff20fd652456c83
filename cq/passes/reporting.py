"""Reports changes to the observers: those of a pass, and the stored values to a new observer of the queue.

An observer enabled on a queue with values receives these from the passes, piece by piece in hash order, each
with None as the old value: a backfill. Its position is stored in each bucket's state. It receives changes of keys up to
the position as every observer does, but not of keys after it, as it will receive their values. So each old value that
it receives is the new value that it received before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cq.app import QueueCode
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData, CqError
from cq.failure import KeyFailure
from cq.keys import QueueKeys, place, places
from cq.observer import Change
from cq.plain_text import describe
from cq.queue.bounded_reads import prefix_read, read_at_hashes, read_values
from cq.queue.bucket_state import BucketState
from cq.queue.limits import admitted
from cq.queue.missed_reports import NOTHING, MissedReports, as_received
from cq.store.api import Transaction, error_code


class ReportFailed(CqError):
    """An observer has raised. Discard the transaction, which holds the observer's earlier writes.

    Attributes:
        failure: the error, and where in the observer's code it was raised.
    """

    def __init__(self, failure: KeyFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


@dataclass(slots=True)
class BackfillPiece:
    """Unchanged values to report: for the first time to an observer, or again.

    Attributes:
        keys: encoded keys.
        news: {generation of an observer: the changes that it receives}.
        reached: {generation of an observer: its backfill position after this piece; None: complete}.
    """

    keys: list[bytes] = field(default_factory=list)
    news: dict[int, list[Change]] = field(default_factory=dict)
    reached: dict[int, bytes | None] = field(default_factory=dict)

    def reject(self, rejected: Mapping[bytes, KeyFailure], missed: MissedReports) -> dict[bytes, KeyFailure]:
        """Drop the report of the only key, which must be in `rejected`, and record it as missed; return its failure.

        A new observer has received no value of it.
        """
        encoded = self.keys.pop()
        self.news.clear()
        missed.note(encoded, rejected[encoded], dict.fromkeys(self.reached, NOTHING))
        return {encoded: rejected[encoded]}


def backfill_positions(
    tr: Transaction, code: QueueCode, bucket: int, state: BucketState
) -> dict[int, bytes | None]:
    """Return {generation of an observer: its backfill position in the bucket; None: complete}.

    In a bucket without values the backfill of a new observer is complete.
    """
    config = code.config
    positions = {each.generation: state.observers.get(each.generation, b"") for each in config.observers}
    new = positions.keys() - state.observers.keys()
    positions.update({each: None for each in new if each <= config.backfilled_until})
    new = {each for each in new if each > config.backfilled_until}
    if new:
        bounds = QueueKeys(config.name).values_of_bucket(config.buckets, bucket)
        if not tr.snapshot.get_range(*bounds, limit=1).to_list():
            positions.update(dict.fromkeys(new))
    return positions


@dataclass(frozen=True, slots=True)
class BackfillReader:
    """Reads values to report, including the transaction's own writes.

    Attributes:
        tr: the transaction of the pass.
        config: the queue's configuration.
        missed: the missed reports of the bucket.
        limit: number of values, at most.
        limit_bytes: bytes of values, about.
        is_complete: returns whether no later update of an encoded key can be queued or staged.
    """

    tr: Transaction
    config: QueueConfig
    missed: MissedReports
    limit: int
    limit_bytes: int
    is_complete: Callable[[bytes], bool]

    def read_first(self, bucket: int, generation: int, before: bytes) -> BackfillPiece:
        """Read the next values for a new observer of the queue, after a position in hash order."""
        values, reached = read_values(self.tr, self.config, bucket, before, self.limit, self.limit_bytes)
        news = [self._change(encoded, None, value) for encoded, value in values]
        return BackfillPiece([encoded for encoded, _ in values], {generation: news}, {generation: reached})

    def read_again(self, due: list[bytes]) -> BackfillPiece:
        """Read the values of the first of these keys, for the observers that have missed reports of them."""
        due = self.missed.read(due[: self.limit], self.limit_bytes, are_due=True)
        at = QueueKeys(self.config.name).value_at
        found = read_at_hashes(self.tr.snapshot, at, due, {}, self.limit_bytes)
        due = prefix_read(due, found)
        keys: list[bytes] = []
        changes: dict[int, list[tuple[bytes, Change]]] = {}
        for encoded, where in zip(due, places(due), strict=True):
            stored = found[encoded]
            try:
                self.missed.check([encoded])
                value = None if stored is None else codec.decode(stored)
            except CorruptData as error:
                # An unreadable value cannot be reported: it stays missed.
                self.missed.note(encoded, KeyFailure.of(error, text=str(error)), {})
                continue
            keys.append(encoded)
            change = self._change(encoded, value, value)
            for generation in self.missed.generations_of(encoded):
                changes.setdefault(generation, []).append((where, change))
        received = self.missed.received
        return BackfillPiece(
            keys, {each: as_received(some, each, received) for each, some in changes.items()}
        )

    def _change(self, encoded: bytes, old: Any, new: Any) -> Change:
        return Change(self.config.key.decode(encoded), old, new, self.is_complete(encoded))


def receiving_generations(positions: Mapping[int, bytes | None], where: bytes) -> list[int]:
    """Return the generations of the observers that receive changes of the key at a position in hash order."""
    return [generation for generation, cursor in positions.items() if cursor is None or where <= cursor]


def note_unreported(
    missed: MissedReports,
    unreported: Mapping[bytes, tuple[bytes, KeyFailure]],
    positions: Mapping[int, bytes | None],
) -> dict[bytes, KeyFailure]:
    """Write the missed reports of rejected keys, `{encoded key: (encoded former value, failure)}`.

    Returns {rejected key: failure}.
    """
    for encoded, (value, failure) in unreported.items():
        generations = receiving_generations(positions, place(encoded))
        missed.note(encoded, failure, dict.fromkeys(generations, value))
    return {encoded: failure for encoded, (_, failure) in unreported.items()}


def changes_by_observer(
    positions: Mapping[int, bytes | None],
    changes: Sequence[tuple[bytes, Change]],
    received: Mapping[tuple[int, bytes], Any],
    backfill: BackfillPiece | None,
) -> dict[int, list[Change]]:
    """Return {generation of an observer: the changes that it receives}.

    Args:
        positions: the backfill position of each observer before this pass; None: complete. An observer receives no
            changes of keys after its position: it will receive their values.
        changes: changes with the position of each key in hash order.
        received: see `MissedReports`.
        backfill: values to report in addition.
    """
    news = {}
    for generation, cursor in positions.items():
        known = [(where, change) for where, change in changes if cursor is None or where <= cursor]
        again = backfill.news.get(generation, []) if backfill else []
        news[generation] = as_received(known, generation, received) + again
    return news


def call_observers(tr: Transaction, code: QueueCode, news: Mapping[int, list[Change]]) -> int:
    """Call every observer, in order, with its changes; return the number of changes.

    Raises `ReportFailed` if an observer raises, but passes the store's `FDBError` on.
    """
    reported = 0
    for observer, function in zip(code.config.observers, code.observers, strict=True):
        changes = news.get(observer.generation)
        if not changes:
            continue
        reported += len(changes)
        try:
            with admitted():  # a full queue must not refuse an observer's add: that would block this queue
                function(tr, changes)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # This includes SystemExit and CancelledError: an observer must not end its worker.
            if error_code(error) is not None:
                raise
            text = f"observer {observer.name!r}: {describe(error)}"
            raise ReportFailed(KeyFailure.of(error, f"observer {observer.named}", text=text)) from error
    return reported


def apply_or_isolate(
    encoded_keys: list[bytes], act: Callable[[list[bytes]], None], failed: dict[bytes, KeyFailure], code: str
) -> None:
    """Call `act` with all keys; if it raises, call it with each key alone, and add those that fail to `failed`.

    Errors of the store are raised, as no key causes them. `code` names the combiner for the failures.
    """
    try:
        act(encoded_keys)
    except Exception as error:
        if error_code(error) is not None:
            raise
    else:
        return
    for encoded in encoded_keys:  # not in the handler above: its error is no cause of theirs
        _isolate(encoded, act, failed, code)


def _isolate(
    encoded: bytes, act: Callable[[list[bytes]], None], failed: dict[bytes, KeyFailure], code: str
) -> None:
    try:
        act([encoded])
    except Exception as error:
        if error_code(error) is not None:
            raise
        failed[encoded] = KeyFailure.of(error, code)
