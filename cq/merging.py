"""A pass over a bucket whose backlog is brought in order by runs: it makes the next one, or merges the next keys of all
that there are.

It does what a pass of `cq.combining` does for the ordinary case only: nothing is staged, no code but cq's own is
called, and every key can be combined. `NotInRuns` is raised for all else, before anything is committed; then the rows
are taken as those of any backlog. What is known of runs holds as long as the bucket's token is that of the worker's
last pass, as nobody else has touched its rows since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Final, NamedTuple

from cq import codec
from cq.app import QueueCode
from cq.batch import Limits, write_values
from cq.choosing import affordable
from cq.columns import fold, new_values
from cq.config import read_config
from cq.errors import CqError
from cq.keys import QueueKeys, after, place, places, version_of
from cq.ledger import count_dropped
from cq.packing import ROW_BYTES
from cq.purging import is_to_be_purged
from cq.reading import leading, read_by_place
from cq.repacking import repack
from cq.reporting import Refill
from cq.reshaping import is_blocked
from cq.results import PassResult
from cq.rows import Backlog, decode_content, first_tries, group, left_out, read_rows, updates_of
from cq.runs import MAX_RUNS, Run, Runs, run_of
from cq.state import BucketState, Memory, fresh_token
from cq.store.api import VERSIONS_PER_SECOND, WANT_ALL, KeyValue, Transaction, error_code
from cq.turns import Turn, in_turn, turn_of, until

_LEAST_SHARE: Final = 8  # of what a pass reads, that a last run has to have to be worth its making


class NotInRuns(CqError):
    """This pass is not one over runs; nothing is committed."""


class _Head(NamedTuple):
    """What was read of a run: its first rows, the content of each, and whether they are all of it."""

    run: Run
    rows: list[KeyValue]
    contents: list[list[Any]]

    @property
    def is_all(self) -> bool:
        return self.rows[-1].key == self.run.last

    def end(self, cursor: bytes) -> Turn:
        """The turn of the last key of which an update was read."""
        return _last_turn(self.contents[-1], cursor)

    def until(self, end: Turn, cursor: bytes) -> list[list[Any]]:
        """The content of its rows up to a turn."""
        whole = bisect_right(self.contents, end, key=lambda content: _last_turn(content, cursor))
        found = self.contents[:whole]
        if whole < len(self.contents):
            cut = self.contents[whole]
            found.append(cut[: 1 + 2 * until(cut[1::2], end, cursor)])
        return found


def _last_turn(content: list[Any], cursor: bytes) -> Turn:
    return turn_of(place(content[-2]), cursor)


class RunsPass:
    """One pass over runs, in one transaction; `run` it once. What it is given is as for `combining.Pass`."""

    # As with that one, for the caller to look at when it has failed: no single key is to blame.
    blamed: Sequence[bytes] = ()
    refill: Refill | None = None
    is_telling = False

    def __init__(self, tr: Transaction, code: QueueCode, bucket: int, memory: Memory, limits: Limits) -> None:
        self.tr = tr
        self.code = code
        self.config = code.config
        self.bucket = bucket
        self.memory = memory
        self.limits = limits
        self.keys = QueueKeys(self.config.name)
        self.result = PassResult(was_ours=True, more=True)

    def run(self) -> PassResult:
        """The whole pass, except for the commit.

        Raises:
            NotInRuns: it is one for `combining.Pass`.
            FDBError: from the store.
        """
        try:
            self._run()
        except NotInRuns:
            raise
        except Exception as error:
            if error_code(error) is not None:
                raise
            raise NotInRuns from error  # a key or a row is at fault: it is found there, and set aside
        return self.result

    def _run(self) -> None:
        read_version = self.tr.get_read_version()
        stored = self.tr.get(self._state_key)
        if read_config(self.tr, self.config.name) != self.config or is_blocked(
            self.tr.snapshot, self.config, self.bucket
        ):
            raise NotInRuns
        self.state = BucketState.from_bytes(stored.value)
        known = self.memory.knows(self.state.token) and not self.state.staged
        if not known or is_to_be_purged(self.config, self.state):
            raise NotInRuns
        self.read_version = read_version.wait()
        runs = self.memory.runs
        if runs.is_closed or not self._make_run(runs):
            self._merge(runs)
        self.result.token = fresh_token()
        unfinished = self.state.unfinished_since or self.read_version
        state = replace(self.state, token=self.result.token, unfinished_since=unfinished)
        self.tr.set(self._state_key, state.to_bytes())

    @property
    def _state_key(self) -> bytes:
        return self.keys.state(self.config.generation, self.bucket)

    # Making a run

    def _make_run(self, runs: Runs) -> bool:
        """Write the rows behind the runs again, in turn, as far as they may be read at once; whether it is worth it."""
        backlog = self._read_behind(runs)
        if backlog.at_end and backlog.size < self._most_bytes // _LEAST_SHARE:
            return False
        rows = first_tries(self.tr.snapshot, self.keys, backlog.rows)
        updates = updates_of(backlog, rows)
        nobody = [None] * len(updates)
        data, are_updates = fold(self.code.combiner, self.config.value, nobody, list(updates.values()))
        repacked = repack(dict(zip(updates, data, strict=True)), rows, self.state.cursor)
        if not repacked or not are_updates:
            raise NotInRuns  # it would have to be staged, and what is staged comes before all rows
        self.tr.clear_range(backlog.rows[0].key, after(backlog.rows[-1].key))
        for key, value in repacked.items():
            self.tr.set(key, value)
        repeated = left_out(backlog.rows, rows)
        count_dropped(self.tr, self.config, (pair for row in repeated for pair in row.updates))
        self.result.repeated = len(repeated)
        self.result.folded = len(updates)
        self.result.rows = len(backlog.rows)
        self._count(sum(map(len, updates.values())), backlog.rows[-1].key)
        left = (*runs.left, run_of(repacked, len(updates)))
        self.result.runs = Runs(left, is_closed=backlog.at_end or self._are_enough(left))
        return True

    def _are_enough(self, left: Sequence[Run]) -> bool:
        """Whether a pass that takes a row of each run takes all that may be reported."""
        rows, updates = sum(run.rows for run in left), sum(run.updates for run in left)
        return len(left) >= min(MAX_RUNS, self.limits.max_report * rows // updates)

    def _read_behind(self, runs: Runs) -> Backlog:
        bounds = self.keys.rows(self.config.generation, self.bucket)
        begin = after(runs.left[-1].last)
        backlog = read_rows(self.tr.snapshot, bounds, self._most_bytes, self.read_version, begin=begin)
        if backlog.foreign or backlog.broken:
            raise NotInRuns
        return backlog

    @property
    def _most_bytes(self) -> int:
        """How many bytes of rows a run is made of: bringing more in order takes a pass too long."""
        return min(self.limits.read_bytes, self.limits.repack_bytes * 3 // 4)

    # Merging

    def _merge(self, runs: Runs) -> None:
        """Combine the next keys of all runs with their values."""
        heads = self._read_heads(runs)
        updates = self._next_updates(heads)
        most = 2 * self.limits.write_bytes - min(ROW_BYTES * len(heads), self.limits.write_bytes)
        report = in_turn(list(updates), self.state.cursor)
        report = affordable(report[: self.limits.max_report], len(self.keys.value(b"")), most)
        load = self.limits.load_bytes
        current = read_by_place(self.tr.snapshot, self.keys.value_at, report, {}, load)
        report = leading(report, current)
        waiting = [updates[encoded] for encoded in report]
        taken = set(report)
        rests: dict[bytes, bytes] = {}
        left = [self._advance(head, taken, rests) for head in heads]
        # All clears come before all sets: a clear looks for sets before it.
        for row, content in rests.items():
            self.tr.set(row, content)
        self._write_values(report, [current[encoded] for encoded in report], waiting)
        self.state = replace(self.state, cursor=place(report[-1]))
        self.result.reported = len(report)
        self.result.forgets = True  # what was remembered of these keys
        self._count(sum(map(len, waiting)), heads[0].rows[0].key)
        self.result.runs = Runs(
            tuple(run for run in left if run is not None),
            is_closed=True,
            per_key=self.result.updates / len(report),
        )

    def _read_heads(self, runs: Runs) -> list[_Head]:
        """Of each run as much as may be reported at once, about; its first row is what was left of one."""
        updates = sum(run.updates for run in runs.left)
        size = sum(run.size for run in runs.left)
        most = self.limits.max_report * runs.per_key
        share = min(1.0, most / updates, self._most_bytes / size)
        found = [
            self.tr.snapshot.get_range(
                run.first, after(run.last), limit=1 + ceil(share * run.rows), streaming_mode=WANT_ALL
            )
            for run in runs.left
        ]
        return [self._head(run, some.to_list()) for run, some in zip(runs.left, found, strict=True)]

    def _head(self, run: Run, rows: list[KeyValue]) -> _Head:
        contents = [decode_content(row.key, row.value) for row in rows]
        if not rows or any(content[0] is not None for content in contents):
            raise NotInRuns
        return _Head(run, rows, contents)

    def _next_updates(self, heads: Sequence[_Head]) -> dict[bytes, list[Any]]:
        """The updates of the keys whose turn it is, as far as all of them have been read."""
        cursor = self.state.cursor
        end = min((head.end(cursor) for head in heads if not head.is_all), default=None)
        updates: defaultdict[bytes, list[Any]] = defaultdict(list)
        for head in heads:
            group(head.contents if end is None else head.until(end, cursor), updates)
        return dict(updates)

    def _write_values(
        self, report: list[bytes], current: Sequence[bytes | None], waiting: Sequence[list[Any]]
    ) -> None:
        keys = self.config.key.decode_all(report)
        values = new_values(self.code.combiner, self.config.value, keys, current, waiting)
        write_values(self.tr, self.keys, places(report), values.data, values.is_same())

    def _advance(self, head: _Head, taken: set[bytes], rests: dict[bytes, bytes]) -> Run | None:
        """Clear the rows of a run that are reported; returns what is left of it, and adds the rest of its first row."""
        keys = [content[1::2] for content in head.contents]
        gone = [sum(map(taken.__contains__, some)) for some in keys]
        whole = next((number for number, some in enumerate(keys) if gone[number] < len(some)), len(keys))
        part = sum(gone) - sum(gone[:whole])
        if part and not taken.issuperset(keys[whole][:part]):
            raise NotInRuns  # it is not in order
        run, rows = head.run, head.rows
        self.result.rows += whole
        if whole == len(rows) and head.is_all:
            self.tr.clear_range(run.first, after(run.last))
            return None
        first = rows[whole].key if whole < len(rows) else after(rows[-1].key)
        if whole:
            self.tr.clear_range(run.first, first)
        if part:
            rests[first] = codec.encode([None, *head.contents[whole][1 + 2 * part :]])
        size = run.size - sum(len(row.key) + len(row.value) for row in rows[:whole])
        return Run(first, run.last, run.rows - whole, run.updates - sum(gone), size)

    def _count(self, updates: int, row: bytes) -> None:
        self.result.updates = updates
        version = version_of(self.keys.versionstamp_of_row(row))
        self.result.age = (self.read_version - version) / VERSIONS_PER_SECOND
