"""Combines updates: the effects of an ordinary pass, from its view alone.

The pass reports some keys: it combines their updates with the current values. It folds the updates of all other keys
that it takes: it combines them with the staged ones, and stages the result or writes it as rows again. Keys that fail
are set aside.

Keys and values are combined, checked and encoded column by column: built-in functions loop over a column in C, so that
a key costs a fraction of a call by itself. An error fails the whole column, and its keys are then tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from operator import not_
from types import NoneType
from typing import Any, Final

from cq import runtime
from cq.combiners import Combiner, combine_many
from cq.encoding import codec
from cq.encoding.codec import DELETE, ValueType
from cq.errors import CqError
from cq.failure import KeyFailure, is_failure
from cq.keys import after, place, places, version_of
from cq.observer import Change
from cq.passes.effects import Effects, ManyFailed
from cq.passes.feeding import feed
from cq.passes.repacking import repack
from cq.passes.reporting import backfill
from cq.passes.view import Step, View
from cq.queue.ledger import count_dropped
from cq.queue.rows import encode_row, repeated_rows
from cq.queue.set_aside import set_aside as set_updates_aside
from cq.queue.set_aside import set_broken_aside
from cq.store.api import VERSIONS_PER_SECOND, error_code, outlived

_MANY_FAILURES: Final = 10
_LARGE_SHARE: Final = 0.2


def combine(view: View) -> Effects:
    """The effects of combining the updates taken. Raises `ManyFailed` if too many keys cannot be combined."""
    effects = Effects(view)
    effects.report = view.report
    if view.levels:
        feed(effects, view)
    Combination(view, effects).run()
    return finished(effects, view)


def finished(effects: Effects, view: View) -> Effects:
    """The effects with those of the end of a pass: what a backfill reports, the cleared rows, the state."""
    if view.plan.max_backfill:
        backfill(effects, view)
    _clear_rows(effects, view)
    _finish(effects, view)
    return effects


class Combination:
    """The reported, the folded and the failing keys of one pass."""

    def __init__(self, view: View, effects: Effects) -> None:
        self.view = view
        self.effects = effects
        self.result = effects.result
        self.can_repack = view.taken.step is Step.FOLD

    def run(self) -> None:
        """Report, fold, and set aside what fails."""
        view, result = self.view, self.result
        self.isolate(view.report, self.report)
        result.reported = len(result.values)
        seen = result.values.keys() | result.aside.keys() | view.plan.rejected.keys()
        folded: dict[bytes, bytes] = {}
        self.isolate([each for each in view.taken.updates if each not in seen], partial(self._fold, folded))
        result.folded = len(folded)
        failed, touched = len(result.aside), result.reported + result.folded
        if failed >= _MANY_FAILURES and failed > _LARGE_SHARE * (failed + touched):
            raise ManyFailed(result.aside)
        repacked = repack(folded, view.rows_taken) if folded and self.can_repack else {}
        if repacked:
            self.effects.sets.update(repacked)
            result.updates -= len(folded)  # those written again count when they are taken from these rows
        else:
            at = view.keys.staged_at
            self.effects.sets.update(zip(map(at, places(list(folded))), folded.values(), strict=True))
            result.staged.update(folded)
        self.set_aside()

    def isolate(self, encoded_keys: list[bytes], act: Callable[[list[bytes]], None]) -> None:
        """Call `act` with all keys; if it raises, call it with each key alone, and set aside those that fail."""
        begun = runtime.monotonic()
        error = _failure(encoded_keys, act) if encoded_keys else None
        if len(encoded_keys) == 1 and outlived(begun):
            self.effects.slow = encoded_keys
        if error is None:
            return
        for encoded in encoded_keys:
            error = _failure([encoded], act)
            if error is not None:
                self.result.aside[encoded] = KeyFailure.of(error, f"combiner {self.view.config.combiner}")

    def report(self, report: list[bytes]) -> None:
        view, effects = self.view, self.effects
        keys = view.config.key.decode_all(report)
        waiting = pending(view.taken.updates, view.staged, report)
        before = [view.current[encoded] for encoded in report]
        values = self.new_values(report, keys, before, waiting)
        is_same = values.is_same()
        where = places(report)
        if view.missed is not None:
            view.missed.check(report)
        moves = view.expiry.index.moves(report, keys, where, before, values.data) if view.expiry else ()
        # From here on no line may raise for a single key: the key would be set aside although it is combined.
        self.result.values.update(zip(report, values.data, strict=True))
        self._clear_staged(report)
        effects.set_values(view.keys.values_at(where), values.data, is_same)
        if view.expiry is not None:
            view.expiry.index.write(effects, moves)
        if view.missed is not None:
            complete = view.is_complete
            columns = zip(where, keys, values.old, values.new, is_same, strict=True)
            effects.changes += [
                (at, Change(key, old, new, complete)) for at, key, old, new, same in columns if not same
            ]
            view.missed.clear(effects, compress(report, map(not_, is_same)))

    def new_values(
        self,
        report: Sequence[bytes],
        keys: Sequence[Any],
        before: Sequence[bytes | None],
        waiting: Sequence[list[Any]],
    ) -> NewValues:
        """The values of the reported keys before and after their updates."""
        return new_values(self.view.code.value_combiner, self.view.config.value, keys, before, waiting)

    def _fold(self, folded: dict[bytes, bytes], encoded_keys: list[bytes]) -> None:
        view = self.view
        waiting = pending(view.taken.updates, view.staged, encoded_keys)
        is_seen = view.code.runs_application_code
        keys = view.config.key.decode_all(encoded_keys) if is_seen else [None] * len(encoded_keys)
        data, are_updates = fold(view.code.value_combiner, view.config.value, keys, waiting)
        folded.update(zip(encoded_keys, data, strict=True))
        self.can_repack &= are_updates

    def set_aside(self) -> None:
        """Set aside the updates of keys that cannot be combined or reported; their current values stay unchanged."""
        view, aside = self.view, self.result.aside
        for encoded, failure in view.plan.rejected.items():
            if view.has_work(encoded):
                aside[encoded] = failure
        for encoded, failure in aside.items():
            try:
                (waiting,) = pending(view.taken.updates, view.staged, [encoded])
            except CqError:  # unreadable staged updates are kept as bytes
                waiting = [view.staged.get(encoded), *view.taken.updates.get(encoded, [])]
            set_updates_aside(self.effects, view.keys, encoded, failure, waiting)
        self._clear_staged(aside)
        broken = [each for each in view.backlog.broken if view.is_taken(each.key)]
        if broken:
            aside[b""] = set_broken_aside(self.effects, view.keys, broken)

    def _clear_staged(self, encoded_keys: Iterable[bytes]) -> None:
        for encoded in encoded_keys if self.view.staged else ():
            if self.view.staged.get(encoded) is not None:
                self.effects.clear(self.view.keys.staged(encoded))
                self.result.staged[encoded] = None


def _failure(encoded_keys: list[bytes], act: Callable[[list[bytes]], None]) -> BaseException | None:
    """The error of the code that `act` calls with these keys; errors of the store are raised, as no key causes them."""
    try:
        act(encoded_keys)
    except BaseException as error:
        if error_code(error) is not None or not is_failure(error):
            raise
        return error
    return None


def _clear_rows(effects: Effects, view: View) -> None:
    """Clear the taken rows as one range, from the bucket's first key on; set a row taken in part to its remainder."""
    result, backlog, rest = effects.result, view.backlog, view.taken.rest
    if backlog.last_key is not None:
        begin = view.keys.rows(view.config.generation, view.number)[0]
        # End at the last row read, not at the end of the bucket: a row committed later sorts after it and must stay.
        effects.clear_range(begin, after(backlog.last_key) if rest is None else rest[0].key)
    if rest is not None and rest[1]:
        effects.set(rest[0].key, encode_row(rest[0], range(rest[1], len(rest[0].updates))))
    result.updates += sum(map(len, view.taken.updates.values()))
    if rest is None:
        result.rows = len(backlog.rows)
    else:
        taken = [row for row in backlog.rows if view.is_taken(row.key)]
        result.rows, result.cut_at = len(taken), sum(row.size for row in taken)
    repeated = [row for row in repeated_rows(backlog.rows, view.rows) if view.is_taken(row.key)]
    if repeated:
        result.repeated = len(repeated)
        count_dropped(effects, view.config, (pair for row in repeated for pair in row.updates))


def _finish(effects: Effects, view: View) -> None:
    """Write the bucket's state, and clear its notification if no work remains."""
    result, state = effects.result, view.state
    staged = _is_staged(effects, view)
    observers = {**view.positions, **effects.reached}
    result.completed = None in observers.values() and observers != state.observers
    result.backfilling = len(view.due) > effects.retried or any(
        cursor is not None for cursor in observers.values()
    )
    is_repacked = result.folded > 0 and not staged and view.taken.step is Step.FOLD
    result.more = not view.at_end or staged or is_repacked or result.backfilling or view.may_be_due
    result.more |= view.has_more_marks
    if not view.at_end and view.rows:
        last = version_of(view.rows[-1].versionstamp)
        result.age = (view.read_version - last) / VERSIONS_PER_SECOND
    if not result.more and not result.found_copied:
        effects.clear_notification(view)
    effects.rewrite_state(
        view,
        replace(
            state,
            staged=staged,
            cursor=place(view.report[-1]) if view.report else state.cursor,
            unfinished_since=0 if view.at_end else state.unfinished_since or view.read_version,
            observers=observers,
        ),
    )


def _is_staged(effects: Effects, view: View) -> bool:
    """Whether the bucket may have staged updates after this pass."""
    result = effects.result
    left = view.staged.keys() - result.values.keys() - result.aside.keys()
    is_left = not view.all_staged_known or any(view.staged[encoded] is not None for encoded in left)
    return is_left or any(data is not None for data in result.staged.values())


@dataclass(frozen=True, slots=True)
class NewValues:
    """The values of some keys before and after, a column each.

    Attributes:
        old, new: decoded; None for a key without a value.
        before, data: the same values, encoded.
    """

    old: Sequence[Any]
    new: Sequence[Any]
    before: Sequence[bytes | None]
    data: Sequence[bytes | None]

    def is_same(self) -> list[bool]:
        """Return for each key whether its value is unchanged."""
        columns = zip(self.before, self.data, self.old, self.new, strict=True)
        return [
            before == data or (before is not None and data is not None and codec.is_same(old, new))
            for before, data, old, new in columns
        ]


def new_values(
    combiner: Combiner,
    kind: ValueType,
    keys: Sequence[Any],
    before: Sequence[bytes | None],
    pending: Sequence[list[Any]],
) -> NewValues:
    """Combine the stored current values with the pending updates of each key.

    Raises `InvalidData` or `TooLarge` if a new value cannot be stored, `CorruptData` if a current value cannot be read,
    and the combiner's exceptions.
    """
    old = decoded_values(before)
    found = combine_many(combiner, keys, _after_stored(before, old, pending))
    new = [None if combiner.is_empty(value) else value for value in found]
    return NewValues(old, new, before, _map_present(partial(_encoded, kind), new))


def fold(
    combiner: Combiner, kind: ValueType, keys: Sequence[Any], pending: Sequence[list[Any]]
) -> tuple[list[bytes], bool]:
    """Combine and encode the pending updates of each key; return also whether each result is an update.

    Only updates can be written as rows again. Raises as `new_values` does.
    """
    folded = combine_many(combiner, keys, pending)
    types = set(map(type, folded))
    if combiner.takes_delete:
        types.discard(type(DELETE))
    are_updates = types <= set(kind.types) if kind.types else types.isdisjoint((NoneType, type(DELETE)))
    return codec.encode_values(folded, codec.MAX_UPDATE_BYTES), are_updates


def pending(
    updates: Mapping[bytes, list[Any]], staged: Mapping[bytes, bytes | None], encoded_keys: Sequence[bytes]
) -> list[list[Any]]:
    """Return the staged and the taken updates of each key, in commit order; raises `CorruptData`."""
    waiting = [updates.get(encoded, []) for encoded in encoded_keys]
    if not staged:
        return waiting
    before = [staged.get(encoded) for encoded in encoded_keys]
    return _after_stored(before, decoded_values(before), waiting)


def _after_stored(
    stored: Sequence[bytes | None], decoded: Sequence[Any], lists: Sequence[list[Any]]
) -> list[list[Any]]:
    """Return each list, preceded by the stored value of its key if there is one."""
    return [
        values if data is None else [value, *values]
        for data, value, values in zip(stored, decoded, lists, strict=True)
    ]


def decoded_values(stored: Sequence[bytes | None]) -> list[Any]:
    return _map_present(codec.decode_all, stored)


def _map_present(make: Callable[[list[Any]], list[Any]], column: Sequence[Any]) -> list[Any]:
    """Apply `make` to all items of a column that are not None, in one call; keep None for the others."""
    there = [item for item in column if item is not None]
    made = make(there)
    if len(there) == len(column):
        return made
    left = iter(made)
    return [None if item is None else next(left) for item in column]


def _encoded(kind: ValueType, values: list[Any]) -> list[bytes]:
    types = set(map(type, values))
    if not (kind.types and types <= set(kind.types)):
        for value in values:
            kind.check(value)
    return codec.encode_values(values)
