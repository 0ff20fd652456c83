"""Sorted runs: pieces of a deep backlog of many different keys, each in the order of its keys' turns.

What a pass may take of such a backlog is a small part of it, whose keys lie all over the values: taken in commit order,
each pass would change a page of the store for every key. So the backlog is brought in order first, as a sort that does
not fit in memory is done (Knuth, The Art of Computer Programming, 3, section 5.4): piece by piece its rows are
written again in turn, a run each, and then all runs are merged from their beginnings on. A pass that merges takes the
next keys of all runs, with all their updates, and so their values side by side and once for all runs.

Runs are rows like any others, in commit order. Only the worker that has made them knows where each of them begins. To
other workers they are a backlog like any other, which they take from the first row on, or sort into runs of their own.
A worker whose runs were touched by another one sorts no more until the bucket is empty: two workers that both sorted
would undo each other's work for ever, and neither would combine anything.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple

from cq.encoding import codec
from cq.errors import CqError
from cq.keys import after, place
from cq.passes.hash_order import HashRank, count_up_to, rank_from_cursor
from cq.store.api import KeyValue

MAX_RUNS: Final = 128


class Run(NamedTuple):
    """A run, or what is left of it.

    Attributes:
        first: the key of its first row, or a key before it and behind all rows of the runs before.
        last: the key of its last row.
        rows, updates: how many.
        size: bytes of keys and values; a row of which a part is gone counts as it was.
    """

    first: bytes
    last: bytes
    rows: int
    updates: int
    size: int


class Runs(NamedTuple):
    """The runs at the beginning of a bucket, in commit order.

    Attributes:
        left: those of which there is anything left.
        is_open: whether another one is to be made before these are merged.
        per_key: how many updates they have of each key, as found in the part that was merged last.
    """

    remaining: tuple[Run, ...] = ()
    is_open: bool = False
    per_key: float = 1.0

    @property
    def is_any(self) -> bool:
        """Whether there is anything to be merged, or to be made."""
        return self.is_open or bool(self.remaining)


NO_RUNS: Final = Runs()
FIRST_RUN: Final = Runs(is_open=True)
"""There are none, and the first is to be made."""


class SortBacklog(CqError):
    """The rows that wait are to be brought in order first, by a pass that makes the first run; nothing is committed."""


class CannotMerge(CqError):
    """The rows that wait are to be taken as they are, by a pass of `cq.passes.combine_pass`; nothing is committed."""


def run_of(rows: dict[bytes, bytes], updates: int) -> Run:
    """The run of rows that were written in order, {key: value}, with so many updates."""
    keys = list(rows)
    size = sum(map(len, keys)) + sum(map(len, rows.values()))
    return Run(keys[0], keys[-1], len(keys), updates, size)


class Cut(NamedTuple):
    """A place in a head: behind so many rows, and so many updates of the next one; `updates` are before it in all."""

    rows: int
    part: int
    updates: int


class RunHead(NamedTuple):
    """What was read of a run: its first rows, at least one, and the content of each as `rows.decode_content` gives it.

    The turns are those of a cursor, by which the run was made or which has moved on as it was merged.
    """

    run: Run
    rows: list[KeyValue]
    contents: list[list[Any]]
    cursor: bytes

    @property
    def is_all(self) -> bool:
        """Whether it is all of the run."""
        return self.rows[-1].key == self.run.last

    @property
    def end(self) -> HashRank:
        """The turn of the last key of which an update was read."""
        return self._last_rank(self.contents[-1])

    def cut(self, last: HashRank) -> Cut:
        """Where the keys end that have their turn up to this one."""
        rows = bisect_right(self.contents, last, key=self._last_rank)
        part = 0
        if rows < len(self.contents):
            part = count_up_to(self.contents[rows][1::2], last, self.cursor)
        return Cut(rows, part, part + sum(len(content) // 2 for content in self.contents[:rows]))

    def contents_before(self, cut: Cut) -> list[list[Any]]:
        """The content of its rows up to there."""
        found = self.contents[: cut.rows]
        if cut.part:
            found.append(self.contents[cut.rows][: 1 + 2 * cut.part])
        return found

    def remaining_row(self, cut: Cut) -> bytes:
        """What is left of the row that is cut, encoded."""
        return codec.encode([None, *self.contents[cut.rows][1 + 2 * cut.part :]])

    def remainder(self, cut: Cut) -> Run | None:
        """What is left of the run behind there; None for nothing."""
        run, rows = self.run, self.rows
        if cut.rows == len(rows) and self.is_all:
            return None
        first = rows[cut.rows].key if cut.rows < len(rows) else after(rows[-1].key)
        size = run.size - sum(len(row.key) + len(row.value) for row in rows[: cut.rows])
        return Run(first, run.last, run.rows - cut.rows, run.updates - cut.updates, size)

    def _last_rank(self, content: list[Any]) -> HashRank:
        return rank_from_cursor(place(content[-2]), self.cursor)
