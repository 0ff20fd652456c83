"""Decides which rows a pass takes, what it does with them, and which keys it reports.

A pass takes rows in commit order, up to limits on the bytes read, on the staged updates of their keys, and on the cost
of writing these keys again. It takes a part of the row that reaches a limit; the remainder keeps its key.

It reports the next keys in hash order from the cursor, as far as all keys before them are known. If the rows were not
read to their end, it reports no key, unless this has lasted too long (overload), or no observer hears the changes
(`QueueCode.is_heard`) and folding would not shrink the backlog much.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from operator import attrgetter
from typing import Final

from cq.config.queue import QueueConfig
from cq.config.rollup import LEVEL_KEY_BYTES, RollUpLevel
from cq.config.window import WindowSpec
from cq.expiry.index import index_cost
from cq.keys import place, places
from cq.passes.plan import Limits
from cq.passes.repacking import UPDATE_BYTES, shrinks_backlog
from cq.passes.view import Step, Taken, View, ViewReader
from cq.queue.rows import Row, Updates
from cq.store.sizes import CLEAR_COPIES, SET_COPIES, WRITE_BYTES
from cq.store.version_clock import VersionClock

LEVEL_UPDATE_BYTES: Final = LEVEL_KEY_BYTES + UPDATE_BYTES
"""Bytes of an update of a level in addition to the encoded key of its queue, about, if it is a number."""


def value_cost(view: View) -> tuple[int, int]:
    """Bytes of writing a value: times the length of the encoded key, and in addition; without the value's own."""
    copies, each = index_cost(view.config) if view.config.expiry else (0, 0)
    return SET_COPIES + copies, SET_COPIES * len(view.keys.value(b"")) + WRITE_BYTES + each


def write_limit(limits: Limits, *, is_observed: bool) -> int:
    """`write_bytes`, plus the share of the observers in a queue without observers."""
    return limits.write_bytes if is_observed else limits.write_bytes + limits.observer_bytes


# What to take


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass does with its rows.

    Attributes:
        step: the step.
        wanted: the encoded keys whose updates it takes.
        size: the bytes of these if staged or written as rows, about.
        prefix: the updates before the first one of another key, and its place, as `_until` returns them; None: not
            known.
    """

    step: Step
    wanted: Collection[bytes] = ()
    size: int = 0
    prefix: tuple[Updates, tuple[Row, int] | None] | None = None


def decide(view: View, *, may_sort: bool) -> Decision:
    """Decide what to do with the rows read.

    Usually a pass can write all of their keys. It folds a backlog that becomes far smaller, or that must be reported
    as a whole. It sorts any other backlog that it cannot combine completely, if no observer receives changes of it.
    """
    plan, queued, size = view.plan, view.queued, view.backlog.size
    budget = _write_budget(view)
    cost = budget.cost(queued, size)
    is_all = cost <= budget.most and budget.is_few(queued)
    # Staged updates are older than all rows: as long as there are any, no update becomes a row.
    is_plain = plan.max_take is None and plan.limits.repack_bytes and not view.state.staged
    if is_plain and not (is_all and view.backlog.at_end):
        fold = _decide_to_fold(view)
        if fold is not None:
            return fold
        if may_sort and not view.code.observers:
            return Decision(Step.SORT)
    if is_all:
        return Decision(Step.COMBINE, queued, cost)
    wanted = budget.affordable(view.rows, queued)
    return Decision(Step.COMBINE, wanted, min(budget.cost(wanted, size), budget.most))


def take(view: View, decision: Decision, reader: ViewReader) -> Taken:
    """The updates of the wanted keys, as far as their staged updates can be read within the limits."""
    wanted = decision.wanted
    if view.state.staged:
        first = (
            view.plan.rejected
        )  # their staged updates are set aside even if none of their updates is taken
        order = [*first, *(encoded for encoded in wanted if encoded not in first)]
        reader.read_staged(order)
        if len(view.staged) < len(order):
            # Staged updates are older than the rows: a key must not be taken without them.
            wanted = {encoded for encoded in wanted if encoded in view.staged}
    cut = _cut_by_periods(view, decision) if view.levels else None
    if cut is None and decision.prefix is not None:
        return Taken(decision.step, *decision.prefix, decision.size)
    if cut is not None or len(wanted) < len(view.queued):
        return Taken(decision.step, *_until(view.rows, wanted, cut), decision.size)
    return Taken(decision.step, view.queued, None, decision.size)


def _until(
    rows: Sequence[Row], wanted: Collection[bytes], cut: tuple[Row, int] | None = None
) -> tuple[Updates, tuple[Row, int] | None]:
    """The updates up to the first one of a key not in `wanted`, or up to a row and a position in it; and which it is.

    They are a prefix of the backlog, so that one range clear removes their rows.
    """
    found: Updates = {}
    for row in rows:
        end = cut[1] if cut is not None and row is cut[0] else None
        for position, (encoded, update) in enumerate(row.updates[:end]):
            if encoded not in wanted:
                return found, (row, position)
            found.setdefault(encoded, []).append(update)
        if end is not None:
            return found, cut
    return found, None


def _cut_by_periods(view: View, decision: Decision) -> tuple[Row, int] | None:
    """The row and the position up to which the updates are of few enough periods of the queue's levels; None: all."""
    periods = _finest_periods(view.config)
    if periods is None:
        return None
    most = _max_periods(view, decision)
    if sum(map(len, view.queued.values())) <= most:
        return None
    times = [time for row in view.rows for time in row.times]
    if periods.period_of(min(times)) == periods.period_of(max(times)):
        return None
    seen: set[tuple[bytes, int]] = set()
    for row in view.rows:
        each_time = row.times if len(row.times) > 1 else repeat(*row.times or (0,))
        for position, ((encoded, _), time) in enumerate(zip(row.updates, each_time, strict=False)):
            seen.add((encoded, periods.period_of(time)))
            if len(seen) > most:
                return row, position
    return None


def _finest_periods(config: QueueConfig) -> RollUpLevel | WindowSpec | None:
    """The shortest periods of the queue's levels; None without periods."""
    periods = [each for each in config.fed.values() if each is not None]
    return min(periods, key=attrgetter("step"), default=None)


def _max_periods(view: View, decision: Decision) -> int:
    """The maximum number of keys and periods of a level that a pass may add to the levels.

    The decision counts one period of each key.
    """
    longest = max(map(len, view.queued), default=0)
    number = sum(map(len, view.queued.values())) or 1
    # An int can have thousands of digits.
    each = max(longest + LEVEL_UPDATE_BYTES, view.backlog.size // number)
    room = max(0, write_limit(view.plan.limits, is_observed=False) - decision.size)
    return max(1, len(decision.wanted) + room // (len(view.levels) * each))


def _decide_to_fold(view: View) -> Decision | None:
    """Decide which updates to fold and write as rows again; None: folding is useless, or there is no room.

    Folding must make the updates far fewer, or they must be the whole backlog of a queue whose changes are heard: such
    a backlog may be reported only in passes that take all of it.
    """
    queued, limits, levels = view.queued, view.plan.limits, len(view.levels)
    is_useful = shrinks_backlog(queued) or (view.code.is_heard and view.backlog.at_end)
    rows = _WriteBudget(UPDATE_BYTES, grown=0, most=limits.repack_bytes)
    if not is_useful or view.config.value.grows or not rows.has_room(queued):
        return None
    # Folded updates are written in rows and in levels; values of their type do not grow.
    most = write_limit(limits, is_observed=bool(view.code.observers))
    budget = _WriteBudget(UPDATE_BYTES + levels * LEVEL_UPDATE_BYTES, grown=0, most=most, copies=1 + levels)
    if budget.has_room(queued):
        return Decision(Step.FOLD, queued, budget.cost(queued))
    some = budget.affordable(view.rows, queued)
    prefix = _until(view.rows, some)
    if not shrinks_backlog(prefix[0]):
        return None  # the rows that they came from have no room for them, and the pass would stage them
    return Decision(Step.FOLD, some, budget.cost(some), prefix)


# What to report


def choose(view: View, reader: ViewReader) -> list[bytes]:
    """The keys to report, at most as many as planned, after their staged updates were read into the view.

    A suspect is reported only if no other key has work, or if it is planned, and then alone.
    """
    plan, is_staged = view.plan, view.state.staged
    view.all_staged_known = not is_staged
    folds_first = view.code.is_heard or view.taken.step is Step.FOLD
    if not plan.max_report or (folds_first and not view.at_end and not _is_overloaded(view, reader.clock)):
        return []
    last_staged = None
    if is_staged:
        last_staged = reader.read_staged_from_cursor(plan.max_report + len(plan.suspects) + 1)
        view.all_staged_known = last_staged is None
    waiting = _keys_in_hash_order(view, last_staged)
    others, suspected = waiting, []
    # A suspect is reported alone: if it fails again, no other key is delayed.
    if plan.suspects:
        others = [encoded for encoded in waiting if encoded not in plan.suspects]
        suspected = [encoded for encoded in waiting if encoded in plan.suspects]
    if suspected and (plan.try_suspect or not others):
        return suspected[:1]
    return affordable(others[: plan.max_report], value_cost(view), _max_reported(view))


def _max_reported(view: View) -> int:
    """The bytes for writing reported values, in addition to those for staged updates and rows.

    In a bucket without staged updates only keys of the taken updates are reported, which then need not be staged. In
    others the pass reports more keys, and clearing their staged updates costs more than writing their values.
    """
    limits, is_observed = view.plan.limits, bool(view.code.observers)
    most = write_limit(limits, is_observed=is_observed)
    if view.taken.step is Step.FOLD:
        most -= view.taken.size
    elif view.state.staged:
        most = (most - view.taken.size) * SET_COPIES // (SET_COPIES + CLEAR_COPIES)
    return min(most, limits.reported_bytes) if is_observed else most


def affordable(report: list[bytes], cost: tuple[int, int], most: int) -> list[bytes]:
    """The first of these keys that a pass can write in about `most` bytes, at least one; `cost` is `value_cost`.

    Each key counts with its value, its conflict range, and its entry in the index of an expiry. `most` can be negative:
    the updates that a pass writes as rows exceed its budget if a single update does.
    """
    sizes = [0, *accumulate(map(len, report))]
    copies, each = cost

    def cost_of(number: int) -> int:
        return copies * sizes[number] + each * number

    if cost_of(len(report)) <= most:
        return report
    return report[: max(1, bisect_right(range(len(sizes)), most, key=cost_of) - 1)]


def _is_overloaded(view: View, clock: VersionClock) -> bool:
    since, now = view.state.unfinished_since, view.read_version
    if not since:
        return False
    clock.observe(now)
    return clock.age(since, now) >= view.plan.limits.overload_seconds


def _keys_in_hash_order(view: View, last_staged: bytes | None) -> list[bytes]:
    """The keys with work in hash order from the cursor, as far as all of them are known."""
    candidates = dict.fromkeys(view.taken.updates)
    candidates.update((encoded, None) for encoded, staged in view.staged.items() if staged is not None)
    cursor = view.state.cursor
    order = sort_from_cursor(list(candidates), cursor)
    if last_staged is not None:  # keys after it may have unread staged updates
        order = order[: max(1, count_up_to(order, rank_from_cursor(last_staged, cursor), cursor))]
    return order


# Budgets


def _write_budget(view: View) -> _WriteBudget:
    """The budget for staging the updates, or in a bucket that needs no staging, for writing their values."""
    plan, levels, is_observed = view.plan, len(view.levels), bool(view.code.observers)
    grown = (1 + levels) if view.config.value.grows else 0
    most = write_limit(plan.limits, is_observed=is_observed)
    if view.code.is_heard or view.state.staged or not plan.max_report:
        each = SET_COPIES * len(view.keys.staged(b"")) + WRITE_BYTES
        each += levels * LEVEL_UPDATE_BYTES
        return _WriteBudget(each, grown, most // 2, plan.max_take, copies=SET_COPIES + levels)
    copies, each = value_cost(view)
    if is_observed:  # take no more keys than can be reported: others would have to be staged
        most = min(most, plan.limits.reported_bytes)
    max_take = plan.max_report if plan.max_take is None else min(plan.max_take, plan.max_report)
    return _WriteBudget(each + levels * LEVEL_UPDATE_BYTES, grown, most, max_take, copies=copies + levels)


@dataclass(frozen=True, slots=True)
class _WriteBudget:
    """A bound on the bytes that a pass writes for the keys of some rows, about.

    A key costs its own bytes, `copies` times, and its value. Values of a type that grows cost as much as the
    updates combined in them.

    Attributes:
        each: bytes of each key in addition to the encoded key.
        grown: how often the bytes of the updates are written, in the value and in levels; 0 if values do not grow.
        most: bytes in all.
        max_take: number of different keys; None: no limit except `most`.
        copies: number of copies of each key in the transaction.
    """

    each: int
    grown: int
    most: int
    max_take: int | None = None
    copies: int = 1

    def cost(self, different: Collection[bytes], row_bytes: int = 0) -> int:
        """The bytes for these keys, from rows of `row_bytes`."""
        return self.grown * row_bytes + self.copies * sum(map(len, different)) + self.each * len(different)

    def has_room(self, different: Collection[bytes], row_bytes: int = 0) -> bool:
        """Whether the budget suffices for these keys, from rows of `row_bytes`."""
        return self.is_few(different) and self.cost(different, row_bytes) <= self.most

    def is_few(self, different: Collection[bytes]) -> bool:
        """Whether these keys are at most `max_take`."""
        return self.max_take is None or len(different) <= self.max_take

    def affordable(self, rows: list[Row], updates: Updates) -> dict[bytes, None]:
        """The first different keys of the rows that the budget suffices for; `updates` has all, in order."""
        most, max_take = self.most, self.max_take
        if not self.grown:
            sizes = list(accumulate(self.copies * len(encoded) + self.each for encoded in updates))
            number = max(1, bisect_right(sizes, most))
            return dict.fromkeys(islice(updates, number if max_take is None else min(number, max_take)))
        wanted: dict[bytes, None] = {}
        size = 0
        for row in rows:
            size += self.grown * row.size
            for encoded, _ in row.updates:
                if encoded in wanted:
                    continue
                size += self.copies * len(encoded) + self.each
                if wanted and (size > most or (max_take is not None and len(wanted) >= max_take)):
                    return wanted
                wanted[encoded] = None
        return wanted


# The order of reports: by hash, from the bucket's cursor on, so that no key starves. The cursor is the place of the key
# reported last; the order continues after it and wraps around. Values are stored in hash order, too, so keys that
# follow each other in this order share pages of the store.

HashRank = tuple[bool, bytes]


def rank_from_cursor(where: bytes, cursor: bytes) -> HashRank:
    """The sort key of a position in hash order, counted from a cursor."""
    return where <= cursor, where  # positions up to the cursor come last


def count_up_to(order: Sequence[bytes], last: HashRank, cursor: bytes) -> int:
    """How many of these keys, sorted from the cursor, have at most the rank `last`."""
    return bisect_right(order, last, key=lambda encoded: rank_from_cursor(place(encoded), cursor))


def order_from_cursor(where: Sequence[bytes], cursor: bytes) -> list[int]:
    """The indices that sort positions in hash order from a cursor; the sort is stable."""
    order = sorted(range(len(where)), key=where.__getitem__)
    first = bisect_right(order, cursor, key=where.__getitem__)
    return order[first:] + order[:first]


def sort_from_cursor(encoded_keys: Sequence[bytes], cursor: bytes) -> list[bytes]:
    """Keys in hash order from a cursor."""
    return [encoded_keys[index] for index in order_from_cursor(places(encoded_keys), cursor)]
