"""Rewrites a backlog in sorted runs: writes the next run, or merges the next keys of all runs.

It covers the ordinary case of `cq.passes.combine_pass` only: no update is staged, only cq's own code runs, and every
key can be combined. In all other cases it writes nothing, and the pass takes the rows as usual. The cached runs are
valid while the bucket's state has the token of the worker's last pass: then no other worker has changed the rows since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from cq.keys import after, place, places, version_of
from cq.passes.batch import write_values
from cq.passes.columns import NO_VALUES, NewValues, new_values
from cq.passes.hash_order import order_from_cursor, rank_from_cursor
from cq.passes.open_bucket import OpenBucket
from cq.passes.pass_result import PassResult
from cq.passes.repacking import pack_into_rows, sorted_pairs
from cq.passes.runs import MAX_RUNS, RunHead, Runs, run_of
from cq.passes.selection import affordable
from cq.queue.bounded_reads import prefix_read, read_stored
from cq.queue.bucket_state import fresh_token, needs_purge
from cq.queue.ledger import count_dropped
from cq.queue.packing import ROW_BYTES
from cq.queue.rows import (
    FoundRows,
    Row,
    decode_content,
    decode_found,
    drop_repeated_operations,
    find_rows,
    group,
    repeated_rows,
)
from cq.store.api import VERSIONS_PER_SECOND, WANT_ALL, error_code

_LEAST_SHARE: Final = 8  # a last run is written if it has at least 1/8 of the bytes that a pass reads


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """What a pass over runs writes, and its result.

    Attributes:
        clears: ranges of rows.
        rows: {key: value} of rows, written after all clears, because each clear searches the sets before it.
        result: the result of the pass.
        at: keys of values.
        values: the values at these keys.
        repeated: cleared rows of repeated operations.
        cursor: the bucket's cursor after the pass.
    """

    clears: Sequence[tuple[bytes, bytes]]
    rows: dict[bytes, bytes]
    result: PassResult
    cursor: bytes
    at: Sequence[bytes] = ()
    values: NewValues = NO_VALUES
    repeated: Sequence[Row] = ()


class MergePass:
    """The part of a pass that writes or merges runs, in the pass's transaction; `run` it once."""

    def __init__(self, bucket: OpenBucket, runs: Runs) -> None:
        self.bucket = bucket
        self.runs = runs
        self.tr, self.code, self.config, self.keys = bucket.tr, bucket.code, bucket.config, bucket.keys
        self.limits = bucket.plan.limits

    def run(self) -> PassResult | None:
        """Write the next run, or merge; None: the pass must take the rows as usual, and nothing is written.

        Raises the store's `FDBError`.
        """
        if not self._allows_runs():
            return None
        try:
            rewrite = self._next_rewrite()
        except Exception as error:
            if error_code(error) is not None:
                raise
            return None  # a key or a row is at fault: the usual way finds it, and sets it aside
        if rewrite is None:
            return None
        self._write(rewrite)
        return rewrite.result

    def _allows_runs(self) -> bool:
        """Whether the bucket's state allows runs: no staged updates, no purge, and no other worker has passed.

        Staged updates are older than all rows. If two workers each sorted again what the other one has sorted, neither
        would ever merge a run.
        """
        if self.runs.remaining and not self.bucket.is_cached:
            return False
        state = self.bucket.state
        return not (self.bucket.is_former or state.staged or needs_purge(self.config, state))

    def _next_rewrite(self) -> _Rewrite | None:
        """Return what to write; None: the rows are not as expected. Raises if a key or a row is at fault."""
        if self.runs.is_open:
            found = self._rows_after_runs()
            if found.is_foreign:
                return None
            if not found.at_end or found.size >= self._most_bytes // _LEAST_SHARE:
                return self._new_run(found)
        return self._merge() if self.runs.remaining else None

    def _write(self, rewrite: _Rewrite) -> None:
        for begin, end in rewrite.clears:
            self.tr.clear_range(begin, end)
        for key, value in rewrite.rows.items():
            self.tr.set(key, value)
        write_values(self.tr, rewrite.at, rewrite.values.data, rewrite.values.is_same())
        count_dropped(self.tr, self.config, (pair for row in rewrite.repeated for pair in row.updates))
        state = self.bucket.state
        unfinished = state.unfinished_since or self.bucket.read_version
        token = rewrite.result.token
        self.bucket.write_state(
            replace(state, token=token, cursor=rewrite.cursor, unfinished_since=unfinished)
        )

    # Making a run

    def _rows_after_runs(self) -> FoundRows:
        """Return the rows after the last run, as many as one pass may sort."""
        prefix, end = self.bucket.rows
        begin = after(self.runs.remaining[-1].last) if self.runs.remaining else prefix
        version = self.bucket.read_version
        return find_rows(self.tr.snapshot, begin, (prefix, end), self._most_bytes, version)

    def _new_run(self, found: FoundRows) -> _Rewrite | None:
        """Sort rows into a new run."""
        prefix, cursor = self.bucket.rows[0], self.bucket.state.cursor
        contents = {key: decode_found(prefix, key, value) for key, value in found.rows}
        rows = [Row.of(key, value, contents[key][0]) for key, value in found.rows]
        counting = drop_repeated_operations(self.tr.snapshot, self.keys, rows)
        counted = [contents[row.key] for row in counting]
        pairs = sorted_pairs(self.code.value_combiner, self.config.value, counted, cursor)
        written = pack_into_rows(pairs, counting) if pairs else {}
        if not pairs or not written:
            return None  # they would have to be staged, and staged updates count as older than all rows
        left = (*self.runs.remaining, run_of(written, len(pairs.order)))
        runs = Runs(left, is_open=not found.at_end and len(left) < self._most_runs)
        result = self._result(sum(len(content) // 2 for content in counted), rows[-1].key, runs)
        result.rows, result.folded = len(rows), len(pairs.order)
        repeated = repeated_rows(rows, counting)
        result.repeated = len(repeated)
        clears = [(rows[0].key, after(rows[-1].key))]
        return _Rewrite(clears, written, result, cursor, repeated=repeated)

    @property
    def _most_bytes(self) -> int:
        """The maximum bytes of rows that become one run; sorting more would take a pass too long."""
        return min(self.limits.read_bytes, self.limits.repack_bytes)

    @property
    def _most_written(self) -> int:
        """The maximum bytes that a merging pass writes, remainders of rows included."""
        return self.limits.to_write(is_observed=False)

    @property
    def _most_runs(self) -> int:
        """The maximum number of runs to merge at once: rewriting a row of each takes at most half of the writes."""
        return min(MAX_RUNS, max(2, self._most_written // (2 * ROW_BYTES)))

    # Merging

    def _merge(self) -> _Rewrite | None:
        """Combine the updates of the next keys of all runs with the current values."""
        heads = self._read_heads()
        if heads is None:
            return None
        cursor = self.bucket.state.cursor
        updates = _next_updates(heads)
        keys = list(updates)
        where = places(keys)
        order = order_from_cursor(where, cursor)[: self.limits.max_report]
        # Reserve room for the remainder of one row of each run.
        most = self._most_written - min(ROW_BYTES * len(heads), self._most_written // 2)
        report = affordable([keys[position] for position in order], self.bucket.value_cost, most)
        at = self.keys.values_at([where[position] for position in order[: len(report)]])
        current = read_stored(self.tr.snapshot, at, self.limits.load_bytes)
        at = prefix_read(at, current)
        report = report[: len(at)]
        waiting = [updates[encoded] for encoded in report]
        taken = sum(map(len, waiting))
        last = place(report[-1])
        cuts = [head.cut(rank_from_cursor(last, cursor)) for head in heads]
        if sum(cut.updates for cut in cuts) != taken:
            return None  # the runs are not sorted as expected: an update would be lost or combined twice
        left = [head.remainder(cut) for head, cut in zip(heads, cuts, strict=True)]
        parts = list(zip(heads, cuts, left, strict=True))
        decoded = self.config.key.decode_all(report)
        before = [current[key] for key in at]
        values = new_values(self.code.value_combiner, self.config.value, decoded, before, waiting)
        remaining = tuple(run for run in left if run)
        result = self._result(taken, heads[0].rows[0].key, Runs(remaining, per_key=taken / len(report)))
        result.rows, result.reported = sum(cut.rows for cut in cuts), len(report)
        result.invalidates_cache = True  # the cached values of these keys are outdated
        return _Rewrite(
            [
                (head.run.first, run.first if run else after(head.run.last))
                for head, cut, run in parts
                if cut.rows
            ],
            {run.first: head.remaining_row(cut) for head, cut, run in parts if run and cut.part},
            result,
            last,
            at,
            values,
        )

    def _read_heads(self) -> list[RunHead] | None:
        """Read from each run about as many rows as one pass may report; its first row may be a remainder.

        Returns None if a run lacks rows, or has one with an operation id, which no worker has written.
        """
        runs = self.runs.remaining
        updates = sum(run.updates for run in runs)
        size = sum(run.size for run in runs)
        most = self.limits.max_report * self.runs.per_key
        most_bytes = self._most_written // 2 if self.config.value.grows else self.limits.read_bytes
        share = min(1.0, most / updates, self.limits.read_bytes / size, most_bytes / size)
        ranges = [
            self.tr.snapshot.get_range(
                run.first, after(run.last), limit=1 + ceil(share * run.rows), streaming_mode=WANT_ALL
            )
            for run in runs
        ]
        found = [some.to_list() for some in ranges]
        contents = [[decode_content(row.key, row.value) for row in rows] for rows in found]
        if not all(some and all(content[0] is None for content in some) for some in contents):
            return None
        cursor = self.bucket.state.cursor
        columns = zip(runs, found, contents, strict=True)
        return [RunHead(run, rows, some, cursor) for run, rows, some in columns]

    def _result(self, updates: int, row: bytes, runs: Runs) -> PassResult:
        """Return the result of a pass that takes `updates` updates, up to those of a row."""
        version = version_of(self.keys.versionstamp_of_row(row))
        age = (self.bucket.read_version - version) / VERSIONS_PER_SECOND
        cached = self.bucket.is_cached
        return PassResult(
            updates=updates, age=age, runs=runs, more=True, cache_is_valid=cached, token=fresh_token()
        )


def _next_updates(heads: Sequence[RunHead]) -> dict[bytes, list[Any]]:
    """Return the updates of the next keys in hash order, as far as every run was read.

    Beyond the end of the shortest head a run may have unread updates of a key.
    """
    end = min((head.end for head in heads if not head.is_all), default=None)
    updates: defaultdict[bytes, list[Any]] = defaultdict(list)
    for head in heads:
        group(head.contents if end is None else head.contents_before(head.cut(end)), updates)
    return dict(updates)
