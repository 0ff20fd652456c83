"""What one would do without cq to keep the counts of tags, done on SQLite in memory to count what it writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Final

from cq.observers.demos.counted import Writes
from cq.observers.demos.errors import DemoFailed

MERGED: Final = 5_000
"""How many tags the server that merges them gathers before it writes them."""
_UPDATE: Final = (
    "INSERT INTO tags (tag, number) VALUES (?, ?) "
    "ON CONFLICT (tag) DO UPDATE SET number = number + excluded.number"
)
_Counts = dict[str, int]


def one_by_one(changes: Iterable[tuple[str, int]], expected: _Counts) -> Writes:
    """One UPDATE, in a transaction of its own, for each change of a tag."""
    with closing(_table()) as connection:
        written = sum(_write(connection, {tag: by}) for tag, by in changes)
        _check(connection, expected)
    return Writes(written, written)


def merged(changes: Iterable[tuple[str, int]], expected: _Counts) -> tuple[Writes, int]:
    """One server merges all changes in memory, and writes whenever these are of 5,000 tags.

    Returns what it writes, and how many changes it had in memory at most: those a crash loses.
    """
    transactions = operations = waiting = most = 0
    gathered: _Counts = {}
    with closing(_table()) as connection:
        for tag, by in changes:
            gathered[tag] = gathered.get(tag, 0) + by
            waiting += 1
            most = max(most, waiting)
            if len(gathered) == MERGED:
                operations += _write(connection, gathered)
                transactions += 1
                gathered, waiting = {}, 0
        if gathered:
            operations += _write(connection, gathered)
            transactions += 1
        _check(connection, expected)
    return Writes(transactions, operations), most


def _table() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE tags (tag TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID")
    return connection


def _write(connection: sqlite3.Connection, changes: _Counts) -> int:
    """Write changes in one transaction; returns how many statements these were."""
    with connection:
        connection.executemany(_UPDATE, changes.items())
    return len(changes)


def _check(connection: sqlite3.Connection, expected: _Counts) -> None:
    if dict(connection.execute("SELECT tag, number FROM tags WHERE number != 0")) != expected:
        raise DemoFailed("the counts in SQL are not those of the recount")
