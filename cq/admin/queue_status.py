"""Status of queues: size and age of the backlog, settings, and work in progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Final, TypeVar

from cq import keys, runtime
from cq.admin.backfill import backfill_progress
from cq.admin.conversion import conversion_progress
from cq.config.flags import read_flags
from cq.config.queue import queue_names, read_config
from cq.durations import Span
from cq.errors import CqError
from cq.expiry.due import ExpiryStatistics
from cq.expiry.due import read_statistics as expiry_statistics
from cq.keys import QueueKeys
from cq.keys.missed import MissedKeys
from cq.queue.limits import read_full
from cq.queue.rows import oldest_by_bucket
from cq.store.api import WANT_ALL, Database, Range, Transaction, Void, is_local
from cq.store.sizes import COUNTED_BYTES, count_rows
from cq.store.transact import transact, transact_versioned
from cq.store.version_clock import clock_of
from cq.store.watch import wait_until
from cq.windows.window import WindowStatistics, read_statistics

T = TypeVar("T")

_OUTSTANDING_SECONDS: Final = 10.0
_OUTSTANDING_TIMES: Final = 5.0  # times the median age of all buckets
_MAX_OUTSTANDING: Final = 5
_CLOCK: Final = keys.ROOT + b"clock"


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of a queue.

    Attributes:
        name: the queue.
        settings: as given to `cq.configure`.
        paused, reason: whether the queue is paused, and why.
        waiting_buckets: number of buckets with work.
        rows, bytes: number and bytes of queued rows.
        exact: whether these were counted; else they are estimates, which can be off by a small factor.
        oldest_seconds: age of the oldest queued update, None if the queue is empty.
        outstanding: {bucket: age of its oldest update} of up to 5 buckets far older than the others.
        full: the exceeded limit; else empty.
        former_buckets: number of buckets of the former shape while it is drained; else None.
        former_combiner: name and version of the combiner that drains them; None: the present one.
        backfilling: {observer with a backfill in progress: number of finished buckets}.
        converting: number of buckets whose values are converted to a new version of the combiner; None if it is not
            being changed.
        aside: number of pieces set aside (counting stops at 1,000 or 1 MB), and of keys with missed reports.
        window: refused updates, and how late its window is; None without a window and a roll-up.
        expiry: statistics of the expiry of its keys; None if they do not expire, and for the slices of a window.
        problem: why the status is unknown: stored data of the queue cannot be read; else empty.
        paused_until: the end of the pause in seconds since 1970; None without a pause, or if it lasts until `resume`.
        max_seconds, max_bytes, when_full: the limits of the backlog, see `cq.admin.limit`.
        levels: the names of the levels of its roll-up, the finest first, and of the parts of its window.
        level_of: the queue that it is a level or a part of; None for other queues.
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
    backfilling: dict[str, int]
    aside: int
    problem: str = ""
    window: WindowStatistics | None = None
    expiry: ExpiryStatistics | None = None
    paused_until: float | None = None
    max_seconds: float | None = None
    max_bytes: int | None = None
    when_full: str = "raise"
    levels: list[str] = field(default_factory=list)
    level_of: str | None = None
    converting: int | None = None
    former_combiner: str | None = None


def status(db: Database, name: str | None = None) -> list[QueueStatus]:
    """The status of one queue or of all queues, each followed by its levels; raises `QueueNotConfigured`.

    Reads up to 1 MB of rows for each queue, and one row for each bucket with work. On a cluster it commits an empty
    transaction to get the present version: ages are differences of versions, not of machines' clocks.
    """
    if name is None:
        names = transact(db, lambda tr: queue_names(tr.snapshot))
        found = [_read_or_report(db, each) for each in names]
    else:
        found = [transact(db, partial(_read, name=name))]
        found += [_read_or_report(db, each) for each in found[0][0].levels]
    age = partial(clock_of(db).age, now=current_version(db))
    return _grouped([_with_ages(queue, oldest, age) for queue, oldest in found])


def _grouped(found: list[QueueStatus]) -> list[QueueStatus]:
    """The queues in their order, each followed by its levels."""
    by_name = {each.name: each for each in found}
    below = {level for each in found for level in each.levels}
    first = [each for each in found if each.name not in below]
    return [by_name[name] for each in first for name in [each.name, *each.levels] if name in by_name]


def is_drained(db: Database, name: str, wait: Span = 0) -> bool:
    """Whether the queue and its levels are empty at one version; if not, waits up to `wait` until they are.

    Raises `QueueNotConfigured`.
    """

    def read(tr: Transaction) -> tuple[bool, Void | None]:
        names = read_config(tr.snapshot, name).names
        found = [tr.snapshot.get_range(*QueueKeys(each).notifications(), limit=1) for each in names]
        first = [row for rows in found for row in rows]
        return not first, tr.watch(first[0].key) if first else None

    return wait_until(db, read, wait)


def current_version(db: Database) -> int:
    """A version at or after every commit so far; versions grow by about a million a second, also in an idle store."""
    return read_at_present(db, lambda tr: None)[1]


def read_at_present(db: Database, read: Callable[[Transaction], T]) -> tuple[T, int]:
    """The result of `read(tr)` in a transaction, and `current_version`."""

    def read_local(tr: Transaction) -> tuple[T, int]:
        return read(tr), tr.get_read_version().wait()

    def read_remote(tr: Transaction) -> T:
        # A transaction without writes would not commit: the conflict key makes it one that does.
        tr.add_write_conflict_key(_CLOCK)
        return read(tr)

    if not is_local(db):
        return transact_versioned(db, read_remote)
    # A local store gives versions by this machine's clock. A commit would need room on its disk, and the commit lock.
    found, version = transact(db, read_local)
    return found, max(version, runtime.time_ns() // 1000)


def _read_or_report(db: Database, name: str) -> tuple[QueueStatus, dict[int, int]]:
    """The status without ages; if stored data of the queue cannot be read, a status with that `problem`."""
    try:
        return transact(db, partial(_read, name=name))
    except CqError as error:
        unknown = QueueStatus(name, {}, False, "", 0, 0, 0, False, None, {}, "", None, {}, 0, str(error))
        return unknown, {}


def _read(tr: Transaction, name: str) -> tuple[QueueStatus, dict[int, int]]:
    """The status without ages, and {bucket: version of its oldest row}."""
    snapshot, queue = tr.snapshot, QueueKeys(name)
    config, flags = read_config(snapshot, name), read_flags(snapshot, name)
    waiting = oldest_by_bucket(snapshot, queue)
    aside = snapshot.get_range(*queue.aside(), limit=1000, streaming_mode=WANT_ALL)
    missed = snapshot.get_range(*MissedKeys(name).notes(), limit=1000, streaming_mode=WANT_ALL)
    oldest: dict[int, int] = {}
    for (_, number), version in waiting.items():  # buckets of the former shape, too, by their number
        if version is not None:
            oldest[number] = min(version, oldest.get(number, version))
    full, is_paused = read_full(snapshot, name), flags.is_paused(runtime.time())
    rows, size, exact = count_rows(snapshot, *queue.all_rows())
    level = config.level_of
    found = QueueStatus(
        name=name,
        settings=config.settings(),
        paused=is_paused,
        reason=flags.reason,
        waiting_buckets=len(waiting),
        rows=rows,
        bytes=size,
        exact=exact,
        oldest_seconds=None,
        outstanding={},
        full=full.reason if full else "",
        former_buckets=config.former.buckets if config.former else None,
        backfilling=backfill_progress(snapshot, config),
        aside=_count_some(aside) + _count_some(missed),
        window=read_statistics(snapshot, config) if config.is_timed else None,
        expiry=None if level is not None and level.is_slices else expiry_statistics(snapshot, config),
        paused_until=flags.until if is_paused else None,
        max_seconds=flags.max_seconds,
        max_bytes=flags.max_bytes,
        when_full=flags.when_full,
        levels=config.level_names,
        level_of=level.queue if level else None,
        converting=conversion_progress(snapshot, config),
        former_combiner=str(config.conversion.former) if config.conversion and config.former else None,
    )
    return found, oldest


def _count_some(found: Range) -> int:
    """Number of rows in the range; counting stops after 1 MB."""
    number = size = 0
    for row in found:
        number += 1
        size += len(row.value)
        if size > COUNTED_BYTES:
            break
    return number


def _with_ages(found: QueueStatus, oldest: Mapping[int, int], age_of: Callable[[int], float]) -> QueueStatus:
    if not oldest:
        return found
    # Idle buckets count as age 0 in the median: without them a single busy bucket would be its own median.
    ages = {number: age_of(version) for number, version in oldest.items()}
    others = [*ages.values(), *[0.0] * max(0, found.settings["buckets"] - len(ages))]
    horizon = max(_OUTSTANDING_SECONDS, _OUTSTANDING_TIMES * median(others))
    far = sorted((age, number) for number, age in ages.items() if age > horizon)[-_MAX_OUTSTANDING:]
    outstanding = {number: age for age, number in reversed(far)}
    return replace(found, oldest_seconds=max(ages.values()), outstanding=outstanding)
