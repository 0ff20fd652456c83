"""The size of a range. FoundationDB estimates it from samples; here SQLite adds up the lengths of all rows."""

from __future__ import annotations

from cq.store.embedded.snapshots.snapshots import Snapshot

_TOTAL = "SELECT coalesce(sum(length(k) + length(v)), 0) FROM kv WHERE k >= ? AND k < ?"
_ROWS = "SELECT k, length(k) + length(v) FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_PIECE_ROWS = 10_000


def range_size(snapshot: Snapshot, begin: bytes, end: bytes) -> int:
    """The bytes of the keys and values in [begin, end)."""
    total: int = snapshot.query(_TOTAL, (begin, end))[0][0]
    return total


def split_points(snapshot: Snapshot, begin: bytes, end: bytes, chunk: int, limit: int) -> list[bytes]:
    """Keys that cut [begin, end) into parts of about `chunk` bytes; at most `limit` inner keys, if not negative."""
    points = [begin]
    start, size = begin, 0
    while rows := snapshot.query(_ROWS, (start, end, _PIECE_ROWS)):
        for key, length in rows:
            if size >= chunk and key > points[-1]:
                if len(points) - 1 == limit:
                    return [*points, end]
                points.append(key)
                size = 0
            size += length
        start = rows[-1][0] + b"\x00"
    return [*points, end]
