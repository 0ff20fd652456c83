"""A pass over a bucket whose backlog is sorted in runs: it writes the next run, or merges the next keys of all runs.

It covers the ordinary case of `cq.passes.combine_pass` only: no update is staged, only cq's own code runs, and every
key can be combined. In all other cases it raises `CannotMerge` before anything is committed, and an ordinary pass takes
the rows. The cached runs are valid while the bucket's state has the token of the worker's last pass: then no other
worker has changed the rows since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Final

from cq.admin.purge import needs_purge
from cq.admin.rebucket import is_blocked
from cq.app import QueueCode
from cq.config.queue import read_config
from cq.keys import QueueKeys, after, place, places, version_of
from cq.passes.batch import Limits, write_values
from cq.passes.bucket_cache import BucketCache
from cq.passes.columns import new_values
from cq.passes.hash_order import HashRank, order_from_cursor, rank_from_cursor
from cq.passes.pass_result import PassResult
from cq.passes.repacking import Pairs, pack_into_rows
from cq.passes.reporting import BackfillPiece
from cq.passes.runs import MAX_RUNS, CannotMerge, Run, RunHead, Runs, run_of
from cq.passes.selection import affordable
from cq.passes.sort_run import sorted_pairs
from cq.queue.bounded_reads import prefix_read, read_stored
from cq.queue.bucket_state import BucketState, fresh_token
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
from cq.store.api import VERSIONS_PER_SECOND, WANT_ALL, KeyValue, Transaction, error_code

_LEAST_SHARE: Final = 8  # a last run is written if it has at least 1/8 of the bytes that a pass reads


class MergePass:
    """One pass over runs, in one transaction; `run` it once. Its arguments are those of `Pass`."""

    # The caller reads these after a failure, as those of `Pass`: no single key is to blame here.
    blamed: Sequence[bytes] = ()
    backfill: BackfillPiece | None = None
    is_reporting = False

    def __init__(
        self, tr: Transaction, code: QueueCode, bucket: int, cache: BucketCache, limits: Limits
    ) -> None:
        self.tr = tr
        self.code = code
        self.config = code.config
        self.bucket = bucket
        self.cache = cache
        self.limits = limits
        self.keys = QueueKeys(self.config.name)
        self.result = PassResult(more=True)

    def run(self) -> PassResult:
        """Run the whole pass, except for the commit.

        Raises:
            CannotMerge: run a `Pass` instead, for example because another worker has run a pass over the bucket.
            FDBError: from the store.
        """
        try:
            self._run()
        except CannotMerge:
            raise
        except Exception as error:
            if error_code(error) is not None:
                raise
            raise CannotMerge from error  # a key or a row is at fault: an ordinary pass finds it, and sets it aside
        return self.result

    def _run(self) -> None:
        read_version = self.tr.get_read_version()
        stored = self.tr.get(self._state_key)
        if not self._has_one_shape() or self.code.observers:
            raise CannotMerge
        self.state = BucketState.from_bytes(stored.value)
        runs = self.cache.runs
        self.result.cache_is_valid = self.cache.is_valid(self.state.token)
        if not self._allows_runs():
            raise CannotMerge
        self.read_version = read_version.wait()
        if not (runs.is_open and self._write_run(runs)):
            self._merge(runs)
        self.result.token = fresh_token()
        unfinished = self.state.unfinished_since or self.read_version
        state = replace(self.state, token=self.result.token, unfinished_since=unfinished)
        self.tr.set(self._state_key, state.to_bytes())

    @property
    def _state_key(self) -> bytes:
        return self.keys.state(self.config.generation, self.bucket)

    def _has_one_shape(self) -> bool:
        """Whether the queue has the shape that this pass is for, and no older updates are left in the former shape."""
        is_same = read_config(self.tr, self.config.name) == self.config
        return is_same and not is_blocked(self.tr.snapshot, self.config, self.bucket)

    def _allows_runs(self) -> bool:
        """Whether the bucket's state allows runs: no staged updates, no purge, and no other worker has passed.

        Staged updates are older than all rows. If two workers each sorted again what the other one has sorted, neither
        would ever merge a run.
        """
        if self.cache.runs.remaining and not self.result.cache_is_valid:
            return False
        return not (self.state.staged or needs_purge(self.config, self.state))

    # Making a run

    def _write_run(self, runs: Runs) -> bool:
        """Sort the rows after the last run into a new run, as many as one pass may read.

        Returns False, without a write, if the remaining rows are too few for a run.
        """
        prefix, end = self.keys.rows(self.config.generation, self.bucket)
        begin = after(runs.remaining[-1].last) if runs.remaining else prefix
        found = find_rows(self.tr.snapshot, begin, (prefix, end), self._most_bytes, self.read_version)
        if found.is_foreign:
            raise CannotMerge
        if found.at_end and found.size < self._most_bytes // _LEAST_SHARE:
            return False
        contents = {key: decode_found(prefix, key, value) for key, value in found.rows}
        rows = [Row(key, value, contents[key][0]) for key, value in found.rows]
        counting = drop_repeated_operations(self.tr.snapshot, self.keys, rows)
        pairs = self._sorted([contents[row.key] for row in counting])
        written = pack_into_rows(pairs, counting)
        if not written:
            raise CannotMerge  # they would be staged, and staged updates count as older than all rows
        self.tr.clear_range(rows[0].key, after(rows[-1].key))
        for key, value in written.items():
            self.tr.set(key, value)
        self._drop(repeated_rows(rows, counting))
        self.result.rows = len(rows)
        self._count(sum(len(contents[row.key]) // 2 for row in counting), rows[-1].key)
        left = (*runs.remaining, run_of(written, len(pairs.order)))
        self.result.runs = Runs(left, is_open=not found.at_end and len(left) < self._most_runs)
        return True

    def _sorted(self, contents: Sequence[list[Any]]) -> Pairs:
        pairs = sorted_pairs(self.code.combiner, self.config.value, contents, self.state.cursor)
        if pairs is None:
            raise CannotMerge
        self.result.folded = len(pairs.order)
        return pairs

    def _drop(self, repeated: Sequence[Row]) -> None:
        """Count the rows of repeated operations as dropped; they are cleared with the others."""
        count_dropped(self.tr, self.config, (pair for row in repeated for pair in row.updates))
        self.result.repeated = len(repeated)

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

    def _merge(self, runs: Runs) -> None:
        """Combine the updates of the next keys of all runs with the current values."""
        if not runs.remaining:
            raise CannotMerge
        cursor = self.state.cursor
        heads = self._read_heads(runs)
        updates = _next_updates(heads)
        keys = list(updates)
        where = places(keys)
        order = order_from_cursor(where, cursor)[: self.limits.max_report]
        # Reserve room for the remainder of one row of each run.
        most = self._most_written - min(ROW_BYTES * len(heads), self._most_written // 2)
        report = affordable([keys[position] for position in order], len(self.keys.value(b"")), most)
        at = self.keys.values_at([where[position] for position in order[: len(report)]])
        current = read_stored(self.tr.snapshot, at, self.limits.load_bytes)
        at = prefix_read(at, current)
        report = report[: len(at)]
        waiting = [updates[encoded] for encoded in report]
        self._count(sum(map(len, waiting)), heads[0].rows[0].key)
        last = place(report[-1])
        left = self._advance(heads, rank_from_cursor(last, cursor))
        self._write_values(report, at, [current[key] for key in at], waiting)
        self.state = replace(self.state, cursor=last)
        self.result.reported = len(report)
        self.result.invalidates_cache = True  # the cached values of these keys are outdated
        self.result.runs = Runs(left, per_key=self.result.updates / len(report))

    def _read_heads(self, runs: Runs) -> list[RunHead]:
        """Read from each run about as many rows as one pass may report; its first row may be a remainder."""
        updates = sum(run.updates for run in runs.remaining)
        size = sum(run.size for run in runs.remaining)
        most = self.limits.max_report * runs.per_key
        most_bytes = self._most_written // 2 if self.config.value.grows else self.limits.read_bytes
        share = min(1.0, most / updates, self.limits.read_bytes / size, most_bytes / size)
        found = [
            self.tr.snapshot.get_range(
                run.first, after(run.last), limit=1 + ceil(share * run.rows), streaming_mode=WANT_ALL
            )
            for run in runs.remaining
        ]
        return [self._head(run, some.to_list()) for run, some in zip(runs.remaining, found, strict=True)]

    def _head(self, run: Run, rows: list[KeyValue]) -> RunHead:
        contents = [decode_content(row.key, row.value) for row in rows]
        if not rows or any(content[0] is not None for content in contents):
            raise CannotMerge
        return RunHead(run, rows, contents, self.state.cursor)

    def _write_values(
        self,
        report: list[bytes],
        at: Sequence[bytes],
        current: Sequence[bytes | None],
        waiting: Sequence[list[Any]],
    ) -> None:
        keys = self.config.key.decode_all(report)
        values = new_values(self.code.combiner, self.config.value, keys, current, waiting)
        write_values(self.tr, at, values.data, values.is_same())

    def _advance(self, heads: Sequence[RunHead], last: HashRank) -> tuple[Run, ...]:
        """Remove the updates up to a rank from all runs; return the remainders of the runs."""
        cuts = [head.cut(last) for head in heads]
        if sum(cut.updates for cut in cuts) != self.result.updates:
            raise CannotMerge  # the runs are not sorted as expected: an update would be lost or combined twice
        left = [head.remainder(cut) for head, cut in zip(heads, cuts, strict=True)]
        # All clears come before all sets, because each clear searches the sets before it.
        for head, cut, run in zip(heads, cuts, left, strict=True):
            if cut.rows:
                self.tr.clear_range(head.run.first, run.first if run else after(head.run.last))
        for head, cut, run in zip(heads, cuts, left, strict=True):
            if run and cut.part:
                self.tr.set(run.first, head.remaining_row(cut))
        self.result.rows = sum(cut.rows for cut in cuts)
        return tuple(run for run in left if run)

    def _count(self, updates: int, row: bytes) -> None:
        self.result.updates = updates
        version = version_of(self.keys.versionstamp_of_row(row))
        self.result.age = (self.read_version - version) / VERSIONS_PER_SECOND


def _next_updates(heads: Sequence[RunHead]) -> dict[bytes, list[Any]]:
    """Return the updates of the next keys in hash order, as far as every run was read.

    Beyond the end of the shortest head a run may have unread updates of a key.
    """
    end = min((head.end for head in heads if not head.is_all), default=None)
    updates: defaultdict[bytes, list[Any]] = defaultdict(list)
    for head in heads:
        group(head.contents if end is None else head.contents_before(head.cut(end)), updates)
    return dict(updates)
