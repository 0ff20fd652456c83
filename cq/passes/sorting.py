"""Sorts a deep backlog of many different keys: writes it again in sorted runs, and merges the runs.

A pass takes a small part of such a backlog. In commit order, the keys of that part are spread over all values, so each
pass would change a page of the store for every key. So passes first sort the backlog, as an external merge sort does
(Knuth, The Art of Computer Programming, 3, section 5.4): they rewrite it piece by piece as runs, each sorted in hash
order from the bucket's cursor, and then merge all runs from their beginnings. A merging pass takes the next keys of all
runs, with all their updates. It reads and writes adjacent values, each one once for all runs. Without it, a backlog of
2,000,000 updates of 300,000 keys took six times the processor time.

Runs are rows like any others, in commit order. Only the worker that made them knows where each begins, as long as the
bucket's state has the token of its last pass; other workers take them as a usual backlog, from the first row on, or
sort them into their own runs. A worker whose runs another worker has touched sorts no more until the bucket is empty:
two workers that both sort would undo each other's work forever, and neither would combine an update.

This module covers the ordinary case only: no update is staged, only cq's own code runs, and every key can be combined.
In all other cases it returns no effects, and the pass takes the rows as usual.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Final, NamedTuple

from cq.combiners import Combiner
from cq.encoding import codec
from cq.encoding.codec import ValueType
from cq.keys import after, place, places, version_of
from cq.passes.bucket_cache import Run, Runs
from cq.passes.combining import fold, new_values
from cq.passes.decision import (
    HashRank,
    affordable,
    count_up_to,
    order_from_cursor,
    rank_from_cursor,
    value_cost,
    write_limit,
)
from cq.passes.effects import Effects
from cq.passes.repacking import Pairs, encode_pairs, pack_into_rows
from cq.passes.view import View, ViewReader
from cq.queue.bucket_state import needs_purge
from cq.queue.ledger import count_dropped
from cq.queue.packing import ROW_BYTES
from cq.queue.rows import (
    Row,
    decode_content,
    decode_found,
    drop_repeated_operations,
    find_rows,
    group,
    repeated_rows,
)
from cq.store.api import VERSIONS_PER_SECOND, WANT_ALL, KeyValue, TransactionRead, error_code
from cq.store.bounded_reads import prefix_read, read_stored

MAX_RUNS: Final = 128
_LEAST_SHARE: Final = 8  # a last run is written if it has at least 1/8 of the bytes that a pass reads


def sort(view: View, reader: ViewReader, runs: Runs) -> Effects | None:
    """The effects of writing the next run, or of merging; None: the pass must take the rows as usual.

    Raises the store's `FDBError`.
    """
    if not _allows_runs(view, runs):
        return None
    try:
        if runs.is_open:
            return _new_run(view, reader.snapshot, runs)
        return _merge(view, reader.snapshot, runs)
    except Exception as error:
        if error_code(error) is not None:
            raise
        return None  # a key or a row is at fault: the usual way finds it, and sets it aside


def _allows_runs(view: View, runs: Runs) -> bool:
    """Whether the bucket's state allows runs: no staged updates, no purge, and no other worker has passed.

    Staged updates are older than all rows. If two workers each sorted again what the other one has sorted, neither
    would ever merge a run.
    """
    if runs.remaining and not view.cache.is_valid(view.state.token):
        return False
    return not (view.is_former or view.state.staged or needs_purge(view.config, view.state))


def _effects(view: View, updates: int, first_row: bytes, runs: Runs) -> Effects:
    """The effects of a pass that combines `updates` updates, from a row on, and leaves these runs."""
    effects = Effects(view)
    result = effects.result
    result.updates, result.runs, result.more = updates, runs, True
    version = version_of(view.keys.versionstamp_of_row(first_row))
    result.age = (view.read_version - version) / VERSIONS_PER_SECOND
    return effects


def _finish(effects: Effects, view: View, cursor: bytes) -> Effects:
    unfinished = view.state.unfinished_since or view.read_version
    effects.rewrite_state(view, replace(view.state, cursor=cursor, unfinished_since=unfinished))
    return effects


# Making a run


def _new_run(view: View, snapshot: TransactionRead, runs: Runs) -> Effects | None:
    """Sort the rows after the last run into a new one; merge if they are few."""
    prefix, end = view.keys.rows(view.config.generation, view.number)
    limits, cursor = view.plan.limits, view.state.cursor
    max_bytes = min(limits.read_bytes, limits.repack_bytes)  # sorting more would take a pass too long
    begin = after(runs.remaining[-1].last) if runs.remaining else prefix
    found = find_rows(snapshot, begin, (prefix, end), max_bytes, view.read_version)
    if found.is_copied:
        return None
    if found.at_end and found.size < max_bytes // _LEAST_SHARE:
        return _merge(view, snapshot, runs)
    contents = {key: decode_found(prefix, key, value) for key, value in found.rows}
    rows = [Row.of(key, value, contents[key][0]) for key, value in found.rows]
    counting = drop_repeated_operations(snapshot, view.keys, rows)
    counted = [contents[row.key] for row in counting]
    pairs = sorted_pairs(view.code.value_combiner, view.config.value, counted, cursor)
    written = pack_into_rows(pairs, counting) if pairs else {}
    if not pairs or not written:
        return None  # they would have to be staged, and staged updates count as older than all rows
    left = (*runs.remaining, Run.of(written, len(pairs.order)))
    is_open = not found.at_end and len(left) < _max_runs(view)
    # Those written again count when they are combined.
    updates = sum(len(content) // 2 for content in counted) - len(pairs.order)
    effects = _effects(view, updates, rows[-1].key, Runs(left, is_open=is_open))
    effects.clear_range(rows[0].key, after(rows[-1].key))
    effects.sets.update(written)
    repeated = repeated_rows(rows, counting)
    count_dropped(effects, view.config, (pair for row in repeated for pair in row.updates))
    result = effects.result
    result.rows, result.folded, result.repeated = len(rows), len(pairs.order), len(repeated)
    return _finish(effects, view, cursor)


def sorted_pairs(
    combiner: Combiner, kind: ValueType, contents: Sequence[list[Any]], cursor: bytes
) -> Pairs | None:
    """The keys and updates of rows in hash order from a cursor, the updates of each key combined.

    `contents` has the rows in commit order, as `rows.decode_content` returns them; the combiner is one of cq's own.
    Returns None if a combined value is not an update. Raises as `columns.fold` does.
    """
    updates: defaultdict[bytes, list[Any]] = defaultdict(list)
    group(contents, updates)
    keys = list(updates)
    folded, are_updates = fold(combiner, kind, [None] * len(keys), list(updates.values()))
    if not are_updates:
        return None
    return Pairs(encode_pairs(keys, folded), order_from_cursor(places(keys), cursor))


def _max_written(view: View) -> int:
    """The maximum bytes that a merging pass writes, remainders of rows included."""
    return write_limit(view.plan.limits, is_observed=False)


def _max_runs(view: View) -> int:
    """The maximum number of runs to merge at once: rewriting a row of each takes at most half of the writes."""
    return min(MAX_RUNS, max(2, _max_written(view) // (2 * ROW_BYTES)))


# Merging


def _merge(view: View, snapshot: TransactionRead, runs: Runs) -> Effects | None:
    """Combine the updates of the next keys of all runs with the current values."""
    heads = _read_heads(view, snapshot, runs) if runs.remaining else None
    if heads is None:
        return None
    cursor, limits, most = view.state.cursor, view.plan.limits, _max_written(view)
    updates = _next_updates(heads)
    keys = list(updates)
    where = places(keys)
    order = order_from_cursor(where, cursor)[: limits.max_report]
    most -= min(ROW_BYTES * len(heads), most // 2)  # room for the remainder of one row of each run
    report = affordable([keys[position] for position in order], value_cost(view), most)
    at = view.keys.values_at([where[position] for position in order[: len(report)]])
    current = read_stored(snapshot, at, limits.load_bytes)
    at = prefix_read(at, current)
    report = report[: len(at)]
    waiting = [updates[encoded] for encoded in report]
    taken = sum(map(len, waiting))
    last = place(report[-1])
    cuts = [head.cut(rank_from_cursor(last, cursor)) for head in heads]
    if sum(cut.updates for cut in cuts) != taken:
        return None  # the runs are not sorted as expected: an update would be lost or combined twice
    decoded = view.config.key.decode_all(report)
    before = [current[key] for key in at]
    values = new_values(view.code.value_combiner, view.config.value, decoded, before, waiting)
    left = [head.remainder(cut) for head, cut in zip(heads, cuts, strict=True)]
    remaining = tuple(run for run in left if run)
    effects = _effects(view, taken, heads[0].rows[0].key, Runs(remaining, per_key=taken / len(report)))
    for head, cut, run in zip(heads, cuts, left, strict=True):
        if cut.rows:
            effects.clear_range(head.run.first, run.first if run else after(head.run.last))
        if run and cut.part:
            effects.set(run.first, head.remaining_row(cut))
    effects.set_values(at, values.data, values.is_same())
    result = effects.result
    result.rows, result.reported = sum(cut.rows for cut in cuts), len(report)
    result.invalidates_cache = True  # the cached values of these keys are outdated
    return _finish(effects, view, last)


class Cut(NamedTuple):
    """A position in a head: the number of whole rows before it, of updates before it in the next row, and in all."""

    rows: int
    part: int
    updates: int


class RunHead(NamedTuple):
    """The first rows of a run, at least one, with the content of each as `rows.decode_content` returns it.

    Ranks are counted from `cursor`: the one by which the run was sorted, or a later one that merges have reached.
    """

    run: Run
    rows: list[KeyValue]
    contents: list[list[Any]]
    cursor: bytes

    @property
    def is_all(self) -> bool:
        """Whether the head is the whole run."""
        return self.rows[-1].key == self.run.last

    @property
    def end(self) -> HashRank:
        """The rank of the last key in the head."""
        return self._last_rank(self.contents[-1])

    def cut(self, last: HashRank) -> Cut:
        """The position after all keys up to a rank."""
        rows = bisect_right(self.contents, last, key=self._last_rank)
        part = 0
        if rows < len(self.contents):
            part = count_up_to(self.contents[rows][1::2], last, self.cursor)
        return Cut(rows, part, part + sum(len(content) // 2 for content in self.contents[:rows]))

    def contents_before(self, cut: Cut) -> list[list[Any]]:
        """The content of the rows before a cut."""
        found = self.contents[: cut.rows]
        return [*found, self.contents[cut.rows][: 1 + 2 * cut.part]] if cut.part else found

    def remaining_row(self, cut: Cut) -> bytes:
        """The value of the row at the cut without the updates before the cut."""
        return codec.encode([None, *self.contents[cut.rows][1 + 2 * cut.part :]])

    def remainder(self, cut: Cut) -> Run | None:
        """The run after the cut; None: the run ends there."""
        run, rows = self.run, self.rows
        if cut.rows == len(rows) and self.is_all:
            return None
        # If all rows read are taken, the next row's key is unknown: begin after the last one read.
        first = rows[cut.rows].key if cut.rows < len(rows) else after(rows[-1].key)
        size = run.size - sum(len(row.key) + len(row.value) for row in rows[: cut.rows])
        return Run(first, run.last, run.rows - cut.rows, run.updates - cut.updates, size)

    def _last_rank(self, content: list[Any]) -> HashRank:
        return rank_from_cursor(place(content[-2]), self.cursor)


def _read_heads(view: View, snapshot: TransactionRead, runs: Runs) -> list[RunHead] | None:
    """Read from each run about as many rows as one pass may report; its first row may be a remainder.

    Returns None if a run lacks rows, or has one with an operation id, which no worker has written.
    """
    remaining, limits = runs.remaining, view.plan.limits
    updates, size = sum(run.updates for run in remaining), sum(run.size for run in remaining)
    max_bytes = _max_written(view) // 2 if view.config.value.grows else limits.read_bytes
    share = min(1.0, limits.max_report * runs.per_key / updates, limits.read_bytes / size, max_bytes / size)
    ranges = [
        snapshot.get_range(
            run.first, after(run.last), limit=1 + ceil(share * run.rows), streaming_mode=WANT_ALL
        )
        for run in remaining
    ]
    found = [some.to_list() for some in ranges]
    contents = [[decode_content(row.key, row.value) for row in rows] for rows in found]
    if not all(some and all(content[0] is None for content in some) for some in contents):
        return None
    columns = zip(remaining, found, contents, strict=True)
    return [RunHead(run, rows, some, view.state.cursor) for run, rows, some in columns]


def _next_updates(heads: Sequence[RunHead]) -> dict[bytes, list[Any]]:
    """The updates of the next keys in hash order, as far as every run was read.

    Beyond the end of the shortest head a run may have unread updates of a key.
    """
    end = min((head.end for head in heads if not head.is_all), default=None)
    updates: defaultdict[bytes, list[Any]] = defaultdict(list)
    for head in heads:
        group(head.contents if end is None else head.contents_before(head.cut(end)), updates)
    return dict(updates)
