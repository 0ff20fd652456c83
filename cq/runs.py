"""Sorted runs: pieces of a deep backlog of many different keys, each in the order of its keys' turns.

What a pass may take of such a backlog is a small part of it, whose keys lie all over the values: taken in commit order,
each pass would change a page of the store for every key. So the backlog is brought in order first, as a sort that does
not fit in memory is done (Knuth, The Art of Computer Programming, 3, section 5.4): piece by piece its rows are
written again in turn, a run each, and then all runs are merged from their beginnings on. A pass that merges takes the
next keys of all runs, with all their updates, and so their values side by side and once for all runs.

Runs are rows like any others, in commit order. Only the worker that has made them knows where each of them begins; one
that does not takes their rows from the first on, as those of any backlog, which is as right.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
        is_closed: whether these are all to be merged before another one is made.
        per_key: how many updates they have of each key, as found in the part that was merged last.
    """

    left: tuple[Run, ...] = ()
    is_closed: bool = False
    per_key: float = 1.0


NO_RUNS: Final = Runs()


def run_of(rows: dict[bytes, bytes], updates: int) -> Run:
    """The run of rows that were written in order, {key: value}, with so many updates."""
    keys = list(rows)
    size = sum(map(len, keys)) + sum(map(len, rows.values()))
    return Run(keys[0], keys[-1], len(keys), updates, size)
