"""Reports changes to the observers: those of a pass, and the stored values to a new observer of the queue.

An observer enabled on a queue with values receives these from the passes, piece by piece in hash order, each
with None as the old value: a backfill. Its position is stored in each bucket's state. It receives changes of keys up to
the position as every observer does, but not of keys after it, as it will receive their values. So each old value that
it receives is the new value that it received before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cq.encoding import codec
from cq.errors import CorruptData, CqError, FeedNotConfigured, QueueNotConfigured
from cq.failure import KeyFailure, is_failure
from cq.keys import place
from cq.observer import Change
from cq.passes.effects import Effects
from cq.passes.view import View, ViewReader
from cq.plain_text import describe
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


# Reports of values that no update has changed


def backfill(effects: Effects, view: View) -> None:
    """Report the values read for a new observer, or again; a rejected one is noted as missed instead."""
    missed, generation, rejected = view.missed, view.backfilling, view.plan.rejected_in_backfill
    if missed is None or not (view.due or generation is not None):
        return
    if generation is None or view.due:
        effects.retried = len(view.again)
        effects.backfilled, news = _repeated(effects, view, missed)
        if not rejected:
            missed.clear(effects, effects.backfilled, are_due=True)
    else:
        values, reached = view.first
        effects.reached = {generation: reached}
        news = {generation: []}
        for encoded, stored in values:
            try:
                change = _unchanged(effects, view, encoded, None, codec.decode(stored))
            except CorruptData as error:
                # An unreadable value cannot be reported: the observer misses it.
                _note_missed(effects, missed, encoded, KeyFailure.of(error, text=str(error)))
                continue
            effects.backfilled.append(encoded)
            news[generation].append(change)
    if rejected:
        _note_rejected(effects, missed, rejected)
        return
    effects.news = news
    effects.result.backfilled = len(effects.backfilled)


def _repeated(
    effects: Effects, view: View, missed: MissedReports
) -> tuple[list[bytes], dict[int, list[Change]]]:
    """The keys of missed reports to repeat, and their changes by the generation of the observer."""
    keys: list[bytes] = []
    changes: dict[int, list[tuple[bytes, Change]]] = {}
    for encoded, stored in view.again.items():
        try:
            missed.check([encoded])
            value = None if stored is None else codec.decode(stored)
        except CorruptData as error:
            # An unreadable value cannot be reported: it stays missed.
            missed.note(effects, encoded, KeyFailure.of(error, text=str(error)), {})
            continue
        keys.append(encoded)
        change = _unchanged(effects, view, encoded, value, value)
        for generation in missed.generations_of(encoded):
            changes.setdefault(generation, []).append((place(encoded), change))
    return keys, {each: as_received(some, each, missed.received) for each, some in changes.items()}


def _unchanged(effects: Effects, view: View, encoded: bytes, old: Any, new: Any) -> Change:
    """The report of a value that no update has changed."""
    result = effects.result
    is_settled = encoded in result.values or encoded in result.aside or encoded not in view.taken.updates
    is_complete = is_settled and view.is_complete and not view.state.staged
    return Change(view.config.key.decode(encoded), old, new, is_complete)


def _note_rejected(effects: Effects, missed: MissedReports, rejected: Mapping[bytes, KeyFailure]) -> None:
    """Note the report of the rejected key as missed; if another one was read, leave it to the next pass."""
    keys, effects.backfilled = effects.backfilled, []
    if keys and keys[0] in rejected:
        _note_missed(effects, missed, keys[0], rejected[keys[0]])
    elif keys:
        effects.reached, effects.retried = {}, 0


def _note_missed(effects: Effects, missed: MissedReports, encoded: bytes, failure: KeyFailure) -> None:
    """Note that a report of a value is missed; a new observer has received no value of the key."""
    missed.note(effects, encoded, failure, dict.fromkeys(effects.reached, NOTHING))
    effects.result.aside[encoded] = failure


# Reports of values that are deleted or converted

Unreported = dict[bytes, tuple[bytes, KeyFailure]]
"""{encoded key: (encoded former value, failure)} of keys that observers rejected."""


def finish_changes(
    effects: Effects, view: View, reader: ViewReader, state: BucketState, unreported: Unreported
) -> None:
    """Note which reports are missed, and write the state, in a pass that changes values without updates."""
    missed, result = view.missed, effects.result
    if missed is not None:
        missed.read_all(reader.snapshot, [*effects.report, *unreported])
        missed.check(effects.report)
        missed.clear(effects, effects.report)
        for encoded, (value, failure) in unreported.items():
            where = place(encoded)
            receiving = [each for each, cursor in view.positions.items() if cursor is None or where <= cursor]
            missed.note(effects, encoded, failure, dict.fromkeys(receiving, value))
            result.aside[encoded] = failure
    result.values = {**dict.fromkeys([*effects.report, *unreported]), **result.values}
    result.more = True
    effects.rewrite_state(view, replace(state, observers=view.positions))


# Calls of observers


def report(tr: Transaction, view: View, effects: Effects) -> None:
    """Call the observers with the changes of a pass, and measure the bytes that they write."""
    received = view.missed.received if view.missed else {}
    news = changes_by_observer(view.positions, effects.changes, received, effects.news)
    before = tr.get_approximate_size().wait()
    effects.result.observer_changes = call_observers(tr, view, effects, news)
    effects.result.observer_bytes = tr.get_approximate_size().wait() - before


def changes_by_observer(
    positions: Mapping[int, bytes | None],
    changes: Sequence[tuple[bytes, Change]],
    received: Mapping[tuple[int, bytes], Any],
    unchanged: Mapping[int, list[Change]],
) -> dict[int, list[Change]]:
    """{generation of an observer: the changes that it receives}.

    Args:
        positions: the backfill position of each observer before this pass; None: complete. An observer receives no
            changes of keys after its position: it will receive their values.
        changes: changes with the position of each key in hash order.
        received: see `MissedReports`.
        unchanged: {generation of an observer: changes that report values that no update has changed}.
    """
    news = {}
    for generation, cursor in positions.items():
        known = [(where, change) for where, change in changes if cursor is None or where <= cursor]
        news[generation] = as_received(known, generation, received) + unchanged.get(generation, [])
    return news


def call_observers(tr: Transaction, view: View, effects: Effects, news: Mapping[int, list[Change]]) -> int:
    """Call every observer, in order, with its changes; returns the number of changes.

    An observer of the application gets copies of lists, sets and dicts: what it does to them must not reach the others.
    Raises `ReportFailed` if an observer raises, but passes the store's `FDBError` on, and of a built-in observer
    `FeedNotConfigured` and `QueueNotConfigured`: no key is at fault if what the observer writes to was deleted.
    """
    reported = 0
    is_mutable = view.config.value.is_mutable
    for observer, function in zip(view.code.config.observers, view.code.observers, strict=True):
        changes = news.get(observer.generation)
        if not changes:
            continue
        reported += len(changes)
        what, named = f"observer {observer.name!r}", f"observer {observer.named}"
        if observer.is_built_in:
            _call(tr, function, changes, what, named)
            continue
        if is_mutable:
            copy = codec.stored_copy
            changes = [replace(each, old=copy(each.old), new=copy(each.new)) for each in changes]
        _call(tr, function, changes, what, named, effects.written_state(view))
    return reported


def report_decisions(tr: Transaction, view: View, effects: Effects) -> None:
    """Call the decider's observer with the decisions of a pass; raises as `call_observers` does."""
    decider = view.code.decider
    if decider is not None and decider.observer is not None:
        what = f"the observer of decider {decider.name!r}"
        named = f"observer of {decider.name}@{decider.version}"
        _call(tr, decider.observer, effects.decisions, what, named, effects.written_state(view))


def _call(
    tr: Transaction,
    function: Callable[..., object],
    reported: list[Any],
    what: str,
    code: str,
    written: Mapping[bytes, bytes | None] | None = None,
) -> None:
    """Call the function of an observer; `what` and `code` name it in a failure.

    Args:
        written: a write of the pass, which a `reset` of its transaction would drop; None for a built-in observer.
    """
    try:
        with admitted():  # a full queue must not refuse an observer's add: that would block this queue
            function(tr, reported)
        for key, value in (written or {}).items():
            if tr.snapshot.get(key).value != value:
                raise RuntimeError("it has reset the transaction, by `reset` or by `on_error`: raise instead")
    except BaseException as error:
        is_deleted = written is None and isinstance(error, FeedNotConfigured | QueueNotConfigured)
        if error_code(error) is not None or not is_failure(error) or is_deleted:
            raise
        raise ReportFailed(KeyFailure.of(error, code, text=f"{what}: {describe(error)}")) from error
