"""Trim of operation ids: removes their markers when no queued row can depend on them. And of old answers to requests.

An id is removed when its latest marker is older than a day, and older than every row in the queue. (If
the first of two markers were trimmed while a row of the second try is queued, that row would count.) The id that the
store keeps for an emitter is removed by the same rule, long after the emitter has ended.

Answers to requests are removed, in the order of their commits, when they are older than the queue keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cq import keys
from cq.config.queue import read_config
from cq.errors import CorruptData
from cq.keys import QueueKeys, version_of
from cq.keys.answers import GROUP_BYTES, AnswerKeys
from cq.queue.answers import parse_answers
from cq.queue.rows import oldest_by_bucket
from cq.store.api import WANT_ALL, Database, Transaction
from cq.store.sizes import clear_bytes, conflict_bytes
from cq.store.transact import transact
from cq.store.version_clock import clock_of

REMEMBER_SECONDS: Final = 24 * 3600.0
_PAGE: Final = 1000
_PAGE_BYTES: Final = 800_000
"""Approximate bytes that the removal of a page of ids writes."""


_ANSWERS_PAGE: Final = 5  # rows of groups, with about 400 groups each


_TrimPage = Callable[[Transaction, bytes, bytes], tuple[int, bytes | None]]
"""Trims a page of a range; returns the number removed, and the begin of the next page."""


class Trim:
    """One scan of all operation ids and old answers of a queue, with a transaction for each page.

    A concurrent add with an id that a page removes makes the page's transaction conflict and retry.

    Attributes:
        removed: number of removed markers, ids of emitters and answers.
    """

    def __init__(
        self,
        db: Database,
        name: str,
        remember_seconds: float = REMEMBER_SECONDS,
        keep_seconds: float | None = None,
    ) -> None:
        self.removed = 0
        self._db = db
        self._name = name
        self._keys = QueueKeys(name)
        self._remember_seconds = remember_seconds
        self._horizon: int | None = None
        self._left: list[tuple[_TrimPage, bytes, bytes]] = [
            (self._trim_markers, *self._keys.markers()),
            (self._trim_emitters, *self._keys.emitters()),
        ]
        self._answers = AnswerKeys(name)
        self._keep_seconds = keep_seconds  # of answers; None: as configured

    def step(self) -> bool:
        """Trim the next page; returns whether there are more."""
        if self._horizon is None:
            self._horizon = transact(self._db, self._read_horizon)
        trim, begin, end = self._left[0]
        found, following = transact(self._db, lambda tr: trim(tr, begin, end))
        self.removed += found
        self._left[:1] = [] if following is None else [(trim, following, end)]
        return bool(self._left)

    def _read_horizon(self, tr: Transaction) -> int:
        """The version below which markers may be removed: old enough, and before every row that can have a marker.

        Rows added later have later versions, so the horizon stays valid during the scan. It looks at all buckets, not
        at those notified: a bucket whose notification is lost keeps its rows until it is repaired.
        """
        config = read_config(tr.snapshot, self._name)
        found = oldest_by_bucket(tr.snapshot, self._keys, config.all_buckets)
        oldest = [each for each in found.values() if each is not None]
        clock, now = clock_of(tr.db), tr.get_read_version().wait()
        remembered = clock.before(now, self._remember_seconds)
        if config.decider is not None:
            keep = config.decider.keep if self._keep_seconds is None else self._keep_seconds
            trim = partial(self._trim_answers, clock.before(now, keep))
            self._left[2:] = [(trim, *self._answers.decided())]
        return min([remembered, *oldest])

    def _trim_markers(self, tr: Transaction, begin: bytes, end: bytes) -> tuple[int, bytes | None]:
        """Trim one page of markers; returns the number removed, and the begin of the next page."""
        rows, is_last = _read_page(tr, begin, end)
        operations: dict[bytes, list[Any]] = {}
        for row in rows:
            operation, versionstamp = self._keys.parse_marker(row.key)
            if row.key == self._keys.markers(operation)[0] + versionstamp:  # else cq has not written it
                operations.setdefault(operation, []).append(row)
        following = None
        if not is_last:
            following = keys.after(rows[-1].key)
            last = next(reversed(operations), None)
            if last is not None and operations[last][-1] is rows[-1]:
                # The page may have cut this operation's markers: leave it to the next page. An operation that fills a
                # whole page is skipped, or the scan would not advance.
                if len(operations) > 1:
                    following = self._keys.markers(last)[0]
                del operations[last]
        return sum(
            self._forget(tr, operation, markers) for operation, markers in operations.items()
        ), following

    def _trim_emitters(self, tr: Transaction, begin: bytes, end: bytes) -> tuple[int, bytes | None]:
        """Trim one page of ids of emitters; returns the same as `_trim_markers`."""
        rows, is_last = _read_page(tr, begin, end)
        gone = 0
        for row in rows:
            with suppress(CorruptData):  # a row that cq did not write stays
                if self._is_old(keys.parse_flush(row.value)[0]):
                    tr.add_read_conflict_key(row.key)  # a flush may be committing
                    tr.clear(row.key)
                    gone += 1
        return gone, None if is_last else keys.after(rows[-1].key)

    def _trim_answers(
        self, horizon: int, tr: Transaction, begin: bytes, end: bytes
    ) -> tuple[int, bytes | None]:
        """Trim the answers of the next passes before a version; returns the same as `_trim_markers`."""
        rows = tr.snapshot.get_range(begin, end, limit=_ANSWERS_PAGE, streaming_mode=WANT_ALL).to_list()
        gone = 0
        for row in rows:
            if version_of(self._answers.decided.rest(row.key)) >= horizon:
                return gone, None
            groups = [row.value[at : at + GROUP_BYTES] for at in range(0, len(row.value), GROUP_BYTES)]
            # With a conflict: a pass may be answering more requests of the group.
            stored = {group: tr.get(self._answers.answers(group)) for group in groups}
            for group, found in stored.items():
                with suppress(CorruptData):
                    version, answers = (
                        parse_answers(found.value) if found.value is not None else (horizon, {})
                    )
                    if version < horizon:
                        tr.clear_range(*self._answers.answers(group)())
                        gone += len(answers)
            tr.clear(row.key)
        return gone, keys.after(rows[-1].key) if len(rows) == _ANSWERS_PAGE else None

    def _is_old(self, latest: bytes) -> bool:
        """Whether the latest use of an id, by its versionstamp, is before the horizon."""
        return self._horizon is not None and version_of(latest) < self._horizon

    def _forget(self, tr: Transaction, operation: bytes, markers: list[Any]) -> int:
        if not self._is_old(self._keys.parse_marker(markers[-1].key)[1]):
            return 0
        bounds = self._keys.markers(operation)
        tr.add_read_conflict_range(*bounds)  # another try may be committing
        tr.clear_range(*bounds)
        return len(markers)


def _read_page(tr: Transaction, begin: bytes, end: bytes) -> tuple[list[Any], bool]:
    """The first rows of a range, as many as one transaction can clear, and whether these are all rows."""
    rows: list[Any] = []
    size = 0
    for row in tr.snapshot.get_range(begin, end, limit=_PAGE, streaming_mode=WANT_ALL):
        rows.append(row)
        size += clear_bytes(row.key) + conflict_bytes(row.key)
        if size > _PAGE_BYTES:
            return rows, False
    return rows, len(rows) < _PAGE
