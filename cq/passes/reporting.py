"""Telling the observers: of the changes of a pass, and of all values when they are new to the queue.

An observer that is enabled on a queue that holds values is told of these by the passes, piece by piece in the order of
the keys' hashes, each with None for the old value. How far it has been told is kept, for each observer and bucket, in
the bucket's state. Changes of keys up to there it is told as any observer is; of those beyond not yet, as it will be
told of their values. So each old value it gets is the new value it got before, and nothing is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cq.app import QueueCode
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData, CqError
from cq.keys import QueueKeys, places
from cq.observer import Change
from cq.plain_text import describe
from cq.queue.bounded_reads import prefix_read, read_at_hashes, read_values
from cq.queue.bucket_state import BucketState
from cq.queue.limits import admitted
from cq.queue.missed_reports import NOTHING, MissedReports, as_received
from cq.store.api import Transaction, error_code


class ReportFailed(CqError):
    """An observer has raised; the transaction holds what it wrote before, and must be thrown away."""


@dataclass(slots=True)
class BackfillPiece:
    """Values that are reported although nothing has changed them: for the first time to an observer, or again.

    Attributes:
        keys: encoded.
        news: {generation of an observer: what it receives}.
        reached: {generation of an observer: up to where it has received all values with this piece, None for the end}.
    """

    keys: list[bytes] = field(default_factory=list)
    news: dict[int, list[Change]] = field(default_factory=dict)
    reached: dict[int, bytes | None] = field(default_factory=dict)

    def reject(self, rejected: Mapping[bytes, str], missed: MissedReports) -> dict[bytes, str]:
        """Go on without the report of the only key, which is among those refused; returns it with its error.

        An observer that is new has received nothing of it.
        """
        encoded = self.keys.pop()
        self.news.clear()
        missed.note(encoded, rejected[encoded], dict.fromkeys(self.reached, NOTHING))
        return {encoded: rejected[encoded]}


def backfill_positions(
    tr: Transaction, code: QueueCode, bucket: int, state: BucketState
) -> dict[int, bytes | None]:
    """For the generation of each observer, up to where it has been told of the bucket's values; None for all.

    An observer that is new to a bucket without values has been told of all of them.
    """
    config = code.config
    told = {each.generation: state.observers.get(each.generation, b"") for each in config.observers}
    new = told.keys() - state.observers.keys()
    told.update({each: None for each in new if each <= config.backfilled_until})
    new = {each for each in new if each > config.backfilled_until}
    if new:
        bounds = QueueKeys(config.name).values_of_bucket(config.buckets, bucket)
        if not tr.snapshot.get_range(*bounds, limit=1).to_list():
            told.update(dict.fromkeys(new))
    return told


@dataclass(frozen=True, slots=True)
class BackfillReader:
    """Reads values to report as they are with what the transaction has written so far.

    Attributes:
        tr: the pass's transaction.
        config: the queue's.
        missed: of the bucket.
        limit: how many values.
        limit_bytes: of values, about.
        is_complete: whether no later updates of an encoded key may be queued or staged.
    """

    tr: Transaction
    config: QueueConfig
    missed: MissedReports
    limit: int
    limit_bytes: int
    is_complete: Callable[[bytes], bool]

    def read_first(self, bucket: int, generation: int, before: bytes) -> BackfillPiece:
        """The next values to report to an observer that is new to the queue, after a place in hash order."""
        values, reached = read_values(self.tr, self.config, bucket, before, self.limit, self.limit_bytes)
        news = [self._change(encoded, None, value) for encoded, value in values]
        return BackfillPiece([encoded for encoded, _ in values], {generation: news}, {generation: reached})

    def read_again(self, due: list[bytes]) -> BackfillPiece:
        """The values of the first of these keys, for the observers that have missed reports of them."""
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
                self.missed.note(encoded, str(error), {})
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


def receiving_generations(told: Mapping[int, bytes | None], where: bytes) -> list[int]:
    """The generations of the observers that receive changes of the key at a place in hash order."""
    return [generation for generation, cursor in told.items() if cursor is None or where <= cursor]


def changes_by_observer(
    told: Mapping[int, bytes | None],
    changes: Sequence[tuple[bytes, Change]],
    received: Mapping[tuple[int, bytes], Any],
    backfill: BackfillPiece | None,
) -> dict[int, list[Change]]:
    """What each observer is to receive, by its generation.

    Args:
        told: up to where each has received the bucket's values before; None for all. It receives no changes of other
            keys: it will receive their values.
        changes: with the place of each key in hash order.
        received: see `MissedReports`.
        refill: values that are reported in addition.
    """
    news = {}
    for generation, cursor in told.items():
        known = [(where, change) for where, change in changes if cursor is None or where <= cursor]
        again = backfill.news.get(generation, []) if backfill else []
        news[generation] = as_received(known, generation, received) + again
    return news


def call_observers(tr: Transaction, code: QueueCode, news: Mapping[int, list[Change]]) -> int:
    """Call every observer, in order, with its changes; returns how many these were.

    Raises `ReportFailed` when one raises, or the store's `FDBError` if it raises one.
    """
    told = 0
    for observer, function in zip(code.config.observers, code.observers, strict=True):
        changes = news.get(observer.generation)
        if not changes:
            continue
        told += len(changes)
        try:
            with admitted():
                function(tr, changes)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # Also SystemExit and CancelledError: an observer must not end its worker.
            if error_code(error) is not None:
                raise
            raise ReportFailed(f"observer {observer.name!r}: {describe(error)}") from error
    return told


def apply_or_isolate(
    encoded_keys: list[bytes], act: Callable[[list[bytes]], None], failed: dict[bytes, str]
) -> None:
    """Call `act` with all keys; if it raises, with each key by itself, and note each that fails with its error.

    Errors of the store are raised: they are not a key's.
    """
    try:
        act(encoded_keys)
    except Exception as error:
        if error_code(error) is not None:
            raise
        for encoded in encoded_keys:
            _isolate(encoded, act, failed)


def _isolate(encoded: bytes, act: Callable[[list[bytes]], None], failed: dict[bytes, str]) -> None:
    try:
        act([encoded])
    except Exception as error:
        if error_code(error) is not None:
            raise
        failed[encoded] = describe(error)
