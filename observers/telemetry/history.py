"""The history of each queue: how much work the workers did in each minute of the last day.

The history is stored below the queue's keys. Each worker adds its counts of a minute to those of the other workers by
atomic additions, in one transaction for all of its queues, so workers never conflict with each other. One value has all
counts of a minute, as numbers of 8 bytes. The store adds little-endian numbers of any length, so one addition adds each
count: no sum exceeds 8 bytes.

A queue has at most two keys for each minute, whatever the number of workers. The transaction also clears the minutes
that are a day or more before or after this one, so the history of a queue has 1,440 minutes, which is about 150 kB. It
has at most twice as many if the clocks of the machines differ.

The history is for charts. It never counts work twice, but it can lack some work:

- A worker that is killed has not stored its latest minute.
- A worker whose commit has an unknown result does not repeat it, because the counts could be added twice.
- The worker's system clock determines the minute, which lasts until the worker's next heartbeat.

Workers do not see adds, so there is no count of added updates. While the age of the oldest update stays near 0, the
queue keeps up, and the number of added updates is that of combined updates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from struct import Struct
from typing import Final

from cq import runtime
from cq.encoding.codec import brief
from cq.errors import CorruptData, InvalidConfiguration
from cq.keys import QueueKeys
from cq.keys.history import COUNTS, HistoryKeys, letter_of
from cq.observers.telemetry.totals import Counts, WorkerCounts
from cq.store.api import WANT_ALL, Database, Transaction, error_code
from cq.store.transact import transact, transact_chained

log = logging.getLogger("cq.worker")

MINUTES_KEPT: Final = 24 * 60
"""The number of minutes that the history of a queue has."""
MINUTE_SECONDS: Final = 60
WRITE_SECONDS: Final = 2.0
"""Time limit of the transaction that stores a minute: the worker's loop waits for it."""
# Other numbers need other keys: an addition of a shorter value cuts a longer one.
_COUNTS: Final = Struct(f"<{len(fields(Counts))}Q")
_MILLISECONDS: Final = Struct("<Q")
_QUEUES: Final = 100  # in one transaction: it writes 200 kB at most


@dataclass(frozen=True, slots=True)
class HistoryMinute(Counts):
    """The work of all workers on a queue in one minute.

    Attributes:
        begins: start of the minute, in seconds since 1970.
        oldest_seconds: highest age of the last update that a pass took while the bucket had more; 0.0 if each pass
            took all updates of its bucket.
    """

    begins: int = 0
    oldest_seconds: float = 0.0


class HistoryWriter:
    """Stores the history of one worker's work; for use by one thread.

    Args:
        db: a database of either store.
        totals: the worker's counts so far.
        is_on: whether to store anything.
    """

    def __init__(self, db: Database, totals: WorkerCounts, *, is_on: bool = True) -> None:
        self._db, self._totals, self._is_on = db, totals, is_on
        self._minute = _this_minute()
        self._stored: dict[str, Counts] = {}  # the counts so far that are in the history
        self._oldest: dict[str, float] = {}  # ages that are not

    def record(self, *, is_last: bool = False) -> None:
        """Store the work since the previous call that did so, if its minute has ended, or if `is_last`.

        Takes up to about `WRITE_SECONDS`, and writes nothing if there was no work. If the store fails, logs a warning;
        the next minute then includes the work.
        """
        now = _this_minute()
        if not self._is_on or (now == self._minute and not is_last):
            return
        minute, self._minute = self._minute, now
        for name, seconds in self._totals.take_oldest().items():
            self._oldest[name] = max(seconds, self._oldest.get(name, 0.0))
        counts = self._totals.queues.copy()
        changed = [name for name, each in counts.items() if each != self._stored.get(name)]
        for names in _parts(changed):
            work = {name: self._since_stored(name, counts[name]) for name in names}
            if not _is_stored(self._db, minute, work):
                return
            for name in names:
                self._stored[name] = counts[name]
                self._oldest.pop(name, None)

    def _since_stored(self, name: str, counts: Counts) -> HistoryMinute:
        done = counts - self._stored.get(name, Counts())
        return HistoryMinute(**done.as_dict(), oldest_seconds=self._oldest.get(name, 0.0))


def _is_stored(db: Database, minute: int, work: Mapping[str, HistoryMinute]) -> bool:
    """Add the work on some queues to a minute; returns False if the caller must try again."""
    in_doubt: list[bool] = []

    def add(tr: Transaction) -> None:
        if not in_doubt:  # a repeated addition could count twice
            tr.options.set_timeout(int(WRITE_SECONDS * 1000))
            _add(tr, minute, work)

    try:
        transact_chained(db, add, lambda _: in_doubt.append(True))
    except Exception as error:
        if error_code(error) is None:
            raise
        log.warning("the work of a minute is not in the history yet: %s", error)
        return bool(in_doubt)
    return True


def _add(tr: Transaction, minute: int, work: Mapping[str, HistoryMinute]) -> None:
    # Read with a conflict: a queue that is deleted before the commit must not keep a history.
    configured = {name: tr.get(QueueKeys(name).config) for name in work}
    for name, each in work.items():
        if configured[name].value is not None:
            keys = HistoryKeys(name)
            tr.add(keys.counts(minute), _COUNTS.pack(*each.as_dict().values()))
            if each.oldest_seconds:
                tr.max(keys.oldest(minute), _MILLISECONDS.pack(int(each.oldest_seconds * 1000)))
            for bounds in keys.outside(minute - MINUTES_KEPT + 1, minute + MINUTES_KEPT):
                tr.clear_range(*bounds)


def read_history(db: Database, names: Iterable[str], minutes: int = 60) -> dict[str, list[HistoryMinute]]:
    """{queue: its latest `minutes` minutes, oldest first}, by this machine's clock; zeros for minutes without work.

    The last one is the running minute, whose work most workers store after its end. Requests the ranges of 100 queues
    at once. Stored data that cq did not write counts as no work; `cq verify` reports it.

    Args:
        db: a database of either store.
        names: names of queues; a queue that does not exist has no work.
        minutes: 1 to 1,440.

    Raises:
        InvalidConfiguration: `minutes` is not such a number, or a name is not valid.
        FDBError: the store fails.
    """
    if type(minutes) is not int or not 1 <= minutes <= MINUTES_KEPT:
        raise InvalidConfiguration(f"expected minutes to be 1 to {MINUTES_KEPT:,}, got: {brief(minutes)}")
    end = _this_minute() + 1
    found: dict[str, list[HistoryMinute]] = {}
    for some in _parts(list(names)):
        found |= transact(db, partial(_read, names=some, wanted=range(end - minutes, end)))
    return found


def _read(tr: Transaction, names: Sequence[str], wanted: range) -> dict[str, list[HistoryMinute]]:
    keys = {name: HistoryKeys(name) for name in names}
    ranges = {
        name: tr.snapshot.get_range(*each.between(wanted.start, wanted.stop), streaming_mode=WANT_ALL)
        for name, each in keys.items()
    }
    found = {}
    for name, rows in ranges.items():
        stored = {row.key: row.value for row in rows}
        found[name] = [_minute_of(stored, keys[name], minute) for minute in wanted]
    return found


def _minute_of(stored: Mapping[bytes, bytes], keys: HistoryKeys, minute: int) -> HistoryMinute:
    counts, oldest = stored.get(keys.counts(minute), b""), stored.get(keys.oldest(minute), b"")
    numbers = _COUNTS.unpack(counts if len(counts) == _COUNTS.size else bytes(_COUNTS.size))
    work = Counts(*numbers).as_dict()
    seconds = _MILLISECONDS.unpack(oldest)[0] / 1000 if len(oldest) == _MILLISECONDS.size else 0.0
    return HistoryMinute(**work, begins=minute * MINUTE_SECONDS, oldest_seconds=seconds)


def check_row(rest: bytes, value: bytes) -> None:
    """Check a row of the history, given its key after the prefix; raises `CorruptData`."""
    form = _COUNTS if letter_of(rest) == COUNTS else _MILLISECONDS
    if len(value) != form.size:
        raise CorruptData(f"expected {form.size} bytes, got: {len(value)}")


def _this_minute() -> int:
    return int(runtime.time()) // MINUTE_SECONDS


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[begin : begin + _QUEUES] for begin in range(0, len(names), _QUEUES)]
