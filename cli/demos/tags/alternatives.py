"""Alternatives to cq for counts of tags, run on SQLite in memory to count their writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Final

from cq.cli.demos.harness.counted_database import WriteCounts
from cq.cli.demos.harness.crew import DemoFailed

MERGED: Final = 5_000
"""Number of tags that the merging server gathers before it writes them."""
_UPDATE: Final = (
    "INSERT INTO tags (tag, number) VALUES (?, ?) "
    "ON CONFLICT (tag) DO UPDATE SET number = number + excluded.number"
)
_Counts = dict[str, int]


def merged(changes: Iterable[tuple[str, int]], expected: _Counts, tags: int) -> tuple[WriteCounts, int]:
    """Merge changes in the memory of one server, and write them for each `tags` tags; 1 merges nothing.

    Returns its writes, and the largest number of changes in memory: a crash loses that many.
    """
    transactions = operations = waiting = most = 0
    gathered: _Counts = {}
    with closing(_table()) as connection:
        for tag, by in changes:
            gathered[tag] = gathered.get(tag, 0) + by
            waiting += 1
            most = max(most, waiting)
            if len(gathered) == tags:
                operations += _write(connection, gathered)
                transactions += 1
                gathered, waiting = {}, 0
        if gathered:  # the last ones
            operations += _write(connection, gathered)
            transactions += 1
        # Zeros stay in this table: deleting them would take another statement for each change.
        if dict(connection.execute("SELECT tag, number FROM tags WHERE number != 0")) != expected:
            raise DemoFailed("the counts in SQL are not those of the recount")
    return WriteCounts(transactions, operations), most


def _table() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE tags (tag TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID")
    return connection


def _write(connection: sqlite3.Connection, changes: _Counts) -> int:
    """Write changes in one transaction; returns the number of statements."""
    with connection:
        connection.executemany(_UPDATE, changes.items())
    return len(changes)
