"""Sorted runs: pieces of a deep backlog of many different keys, each sorted in hash order from the bucket's cursor.

A pass takes a small part of such a backlog. In commit order, the keys of that part are spread over all values, so each
pass would change a page of the store for every key. So passes first sort the backlog, as an external merge sort does
(Knuth, The Art of Computer Programming, 3, section 5.4): they rewrite it piece by piece as sorted runs, and then merge
all runs from their beginnings. A merging pass takes the next keys of all runs, with all their updates. It reads and
writes adjacent values, each one once for all runs.

Runs are rows like any others, in commit order. Only the worker that made them knows where each begins; other workers
take them as a usual backlog, from the first row on, or sort them into their own runs. A worker whose runs another
worker has touched sorts no more until the bucket is empty: two workers that both sort would undo each other's work
forever, and neither would combine an update.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple

from cq.encoding import codec
from cq.keys import after, place
from cq.passes.hash_order import HashRank, count_up_to, rank_from_cursor
from cq.store.api import KeyValue

MAX_RUNS: Final = 128


class Run(NamedTuple):
    """A run, or its remainder.

    Attributes:
        first: the key of its first row, or a key before it and after all rows of earlier runs.
        last: the key of its last row.
        rows, updates: numbers of rows and updates.
        size: bytes of keys and values; a row taken in part counts with its former size.
    """

    first: bytes
    last: bytes
    rows: int
    updates: int
    size: int


class Runs(NamedTuple):
    """The runs at the beginning of a bucket, in commit order.

    Attributes:
        remaining: the runs that still have rows.
        is_open: whether to write another run before merging these.
        per_key: number of updates per key in the part merged last.
    """

    remaining: tuple[Run, ...] = ()
    is_open: bool = False
    per_key: float = 1.0

    @property
    def is_any(self) -> bool:
        """Whether a run must be written or merged."""
        return self.is_open or bool(self.remaining)


NO_RUNS: Final = Runs()
FIRST_RUN: Final = Runs(is_open=True)
"""No runs yet; write the first one."""


def run_of(rows: dict[bytes, bytes], updates: int) -> Run:
    """Return the run of rows, {key: value} in order of keys, that hold `updates` updates."""
    keys = list(rows)
    size = sum(map(len, keys)) + sum(map(len, rows.values()))
    return Run(keys[0], keys[-1], len(keys), updates, size)


class Cut(NamedTuple):
    """A position in a head.

    Attributes:
        rows: number of whole rows before it.
        part: number of updates before it in the next row.
        updates: number of all updates before it.
    """

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
        """Return the position after all keys up to a rank."""
        rows = bisect_right(self.contents, last, key=self._last_rank)
        part = 0
        if rows < len(self.contents):
            part = count_up_to(self.contents[rows][1::2], last, self.cursor)
        return Cut(rows, part, part + sum(len(content) // 2 for content in self.contents[:rows]))

    def contents_before(self, cut: Cut) -> list[list[Any]]:
        """Return the content of the rows before a cut."""
        found = self.contents[: cut.rows]
        if cut.part:
            found.append(self.contents[cut.rows][: 1 + 2 * cut.part])
        return found

    def remaining_row(self, cut: Cut) -> bytes:
        """Return the value of the row at the cut without the updates before the cut."""
        return codec.encode([None, *self.contents[cut.rows][1 + 2 * cut.part :]])

    def remainder(self, cut: Cut) -> Run | None:
        """Return the run after the cut; None: the run ends there."""
        run, rows = self.run, self.rows
        if cut.rows == len(rows) and self.is_all:
            return None
        # If all rows read are taken, the next row's key is unknown: begin after the last one read.
        first = rows[cut.rows].key if cut.rows < len(rows) else after(rows[-1].key)
        size = run.size - sum(len(row.key) + len(row.value) for row in rows[: cut.rows])
        return Run(first, run.last, run.rows - cut.rows, run.updates - cut.updates, size)

    def _last_rank(self, content: list[Any]) -> HashRank:
        return rank_from_cursor(place(content[-2]), self.cursor)
