"""Forgetting operation ids: their markers are trimmed once nothing can depend on them.

An id is forgotten when its latest marker is older than a day and than every queued row. (Were the first of two markers
trimmed while a row of the second try is queued, that row would count.)
"""

from __future__ import annotations

from typing import Any, Final

from cq import keys
from cq.config import read_config
from cq.keys import QueueKeys, version_of
from cq.store.api import VERSIONS_PER_SECOND, WANT_ALL, Database, Transaction
from cq.store.transact import transact

REMEMBER_SECONDS: Final = 24 * 3600.0
_PAGE: Final = 1000


def trim_markers(db: Database, name: str, remember_seconds: float = REMEMBER_SECONDS) -> int:
    """Forget the operation ids of a queue that have not been used for so long; returns how many markers went.

    Reads all markers, in pieces of one transaction each. An add with an id that is being forgotten makes
    that piece start again.
    """
    removed = 0
    begin: bytes | None = None
    while True:
        start = begin
        found, begin = transact(db, lambda tr: _trim_page(tr, name, remember_seconds, start))  # noqa: B023
        removed += found
        if begin is None:
            return removed


def _trim_page(
    tr: Transaction, name: str, remember_seconds: float, begin: bytes | None
) -> tuple[int, bytes | None]:
    """Trim one page of markers; returns how many went, and where the next page begins."""
    queue = QueueKeys(name)
    first, end = queue.markers()
    rows = tr.snapshot.get_range(begin or first, end, limit=_PAGE, streaming_mode=WANT_ALL).to_list()
    horizon = _horizon(tr, name, remember_seconds)
    operations: dict[bytes, list[Any]] = {}
    for row in rows:
        operations.setdefault(queue.parse_marker(row.key)[0], []).append(row)
    if len(rows) < _PAGE:
        following = None
    elif len(operations) > 1:
        following = queue.markers(operations.popitem()[0])[
            0
        ]  # its markers may go on: leave it to the next page
    else:
        following = keys.after(rows[-1].key)  # a thousand tries of one operation: not worth trimming
        operations.clear()
    removed = 0
    for operation, markers in operations.items():
        if version_of(queue.parse_marker(markers[-1].key)[1]) < horizon:
            bounds = queue.markers(operation)
            tr.add_read_conflict_range(*bounds)  # another try may be committing
            tr.clear_range(*bounds)
            removed += len(markers)
    return removed, following


def _horizon(tr: Transaction, name: str, remember_seconds: float) -> int:
    """The version below which markers may go: older than asked for, and than every queued row."""
    config = read_config(tr.snapshot, name)
    queue = QueueKeys(name)
    firsts = [
        tr.snapshot.get_range(*queue.rows(config.generation, bucket), limit=1)
        for bucket in range(config.buckets)
    ]
    oldest = [version_of(queue.versionstamp_of_row(row.key)) for found in firsts for row in found]
    return min([tr.get_read_version().wait() - int(remember_seconds * VERSIONS_PER_SECOND), *oldest])
