"""What waits in a queue, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

from cq import keys, runtime
from cq.admin.backfill import backfill_progress
from cq.config.queue import queue_names, read_config, read_flags
from cq.errors import CqError
from cq.keys import QueueKeys
from cq.keys.missed import MissedKeys
from cq.queue.limits import read_full
from cq.queue.rows import oldest_by_bucket
from cq.store.api import WANT_ALL, Database, Range, Transaction, Void, seconds_since
from cq.store.range_size import COUNTED_BYTES, count_rows
from cq.store.transact import transact, transact_versioned
from cq.windows.statistics import WindowStatistics, read_statistics

_OUTSTANDING_SECONDS: Final = 10.0
_OUTSTANDING_TIMES: Final = 5.0  # as long as half of the buckets wait at most
_MOST_OUTSTANDING: Final = 5
CLOCK: Final = keys.ROOT + b"clock"


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What waits in a queue.

    Attributes:
        name: the queue.
        settings: as given to `cq.configure`.
        paused, reason: whether workers leave it alone, and why.
        waiting_buckets: buckets with work.
        rows, bytes: rows queued and their bytes.
        exact: whether these were counted; else they are about right, up to a few times off.
        oldest_seconds: age of the oldest update queued, None when there is none.
        outstanding: {bucket: age of its oldest update} of those that have waited far longer than the others, at most 5.
        full: which limit is exceeded; empty when none is.
        former_buckets: how many buckets there were before, while these are being drained; else None.
        telling: {observer that is being told of all values: buckets of which it has been told}.
        aside: pieces set aside (at most 1,000, or 1 MB of them, are counted), and keys of which reports were missed.
        window: what its window has refused, and whether taking out gets on; None when it has none.
        problem: why nothing is known of the queue, as something stored of it is not cq's; else empty.
    """

    name: str
    settings: dict[str, Any]
    paused: bool
    reason: str
    waiting_buckets: int
    rows: int
    bytes: int
    exact: bool
    oldest_seconds: float | None
    outstanding: dict[int, float]
    full: str
    former_buckets: int | None
    telling: dict[str, int]
    aside: int
    problem: str = ""
    window: WindowStatistics | None = None


def status(db: Database, name: str | None = None) -> list[QueueStatus]:
    """The status of one queue, or of all; raises `QueueNotConfigured`.

    Reads up to 1 MB of rows for each queue, and one row for each bucket with work. Commits a transaction that writes
    nothing, whose version is the store's clock: the age of an update is told by versions, not by clocks.
    """
    if name is None:
        names = transact(db, lambda tr: queue_names(tr.snapshot))
        found = [_read_or_say(db, each) for each in names]
    else:
        found = [transact(db, partial(_read, name=name))]
    now = current_version(db)
    return [_aged(queue, oldest, now) for queue, oldest in found]


def is_drained(db: Database, name: str, wait_seconds: float = 0.0) -> bool:
    """Whether nothing is queued; if something is, this waits up to so many seconds for any of it to be combined."""

    def watch_first(tr: Transaction) -> Void | None:
        first = tr.snapshot.get_range(*QueueKeys(name).notifications(), limit=1).to_list()
        return tr.watch(first[0].key) if first else None

    watch = transact(db, watch_first)
    if watch is None:
        return True
    fired = runtime.event()
    watch.on_ready(lambda _: fired.set())
    fired.wait(wait_seconds)
    watch.cancel()
    return False


def current_version(db: Database) -> int:
    """A version at or after every commit so far, about a million more each second, also in a store that is idle."""
    return transact_versioned(db, lambda tr: tr.add_write_conflict_key(CLOCK))[1]


def _read_or_say(db: Database, name: str) -> tuple[QueueStatus, dict[int, int]]:
    """The status but for ages; of a queue of which something cannot be read, what that is."""
    try:
        return transact(db, partial(_read, name=name))
    except CqError as error:
        nothing = QueueStatus(name, {}, False, "", 0, 0, 0, False, None, {}, "", None, {}, 0, str(error))
        return nothing, {}


def _read(tr: Transaction, name: str) -> tuple[QueueStatus, dict[int, int]]:
    """The status but for ages, and {bucket: version of its oldest row}."""
    snapshot, queue = tr.snapshot, QueueKeys(name)
    config, flags = read_config(snapshot, name), read_flags(snapshot, name)
    waiting = oldest_by_bucket(snapshot, queue)
    aside = snapshot.get_range(*queue.aside(), limit=1000, streaming_mode=WANT_ALL)
    missed = snapshot.get_range(*MissedKeys(name).notes(), limit=1000, streaming_mode=WANT_ALL)
    oldest: dict[int, int] = {}
    for (_, number), version in waiting.items():  # of the shape before, too
        if version is not None:
            oldest[number] = min(version, oldest.get(number, version))
    full = read_full(snapshot, name)
    rows, size, exact = count_rows(snapshot, *queue.all_rows())
    found = QueueStatus(
        name=name,
        settings=config.settings(),
        paused=flags.is_paused(runtime.time()),
        reason=flags.reason,
        waiting_buckets=len(waiting),
        rows=rows,
        bytes=size,
        exact=exact,
        oldest_seconds=None,
        outstanding={},
        full=full.reason if full else "",
        former_buckets=config.former.buckets if config.former else None,
        telling=backfill_progress(snapshot, config),
        aside=_count_some(aside) + _count_some(missed),
        window=None if config.window is None else read_statistics(snapshot, name),
    )
    return found, oldest


def _count_some(found: Range) -> int:
    """How many rows these are, as far as 1 MB goes."""
    number = size = 0
    for row in found:
        number += 1
        size += len(row.value)
        if size > COUNTED_BYTES:
            break
    return number


def _aged(found: QueueStatus, oldest: Mapping[int, int], now: int) -> QueueStatus:
    if not oldest:
        return found
    ages = {number: seconds_since(version, now) for number, version in oldest.items()}
    others = [*ages.values(), *[0.0] * max(0, found.settings["buckets"] - len(ages))]
    horizon = max(_OUTSTANDING_SECONDS, _OUTSTANDING_TIMES * median(others))
    far = sorted((age, number) for number, age in ages.items() if age > horizon)[-_MOST_OUTSTANDING:]
    outstanding = {number: age for age, number in reversed(far)}
    return replace(found, oldest_seconds=max(ages.values()), outstanding=outstanding)
