"""Limits of a queue's backlog (`limit`), and how adds learn that the queue is full.

The queue's flags hold the limits. About once a second a worker compares the backlog with them, and sets or clears a
small mark. Each adding process reads the mark at most once a second for each queue with limits; an add writes nothing
for this. So a limit is approximate: updates added between two checks can exceed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from cq import runtime
from cq.config.flags import Flags, change_flags, read_flags
from cq.config.queue import QueueConfig, read_config, write_config
from cq.durations import Span, positive_seconds
from cq.encoding import codec
from cq.encoding.stored import StoredRecord
from cq.errors import InvalidConfiguration, QueueFull
from cq.keys import QueueKeys
from cq.queue.byte_sizes import bytes_of
from cq.queue.rows import oldest_by_bucket
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.reads import own_snapshot
from cq.store.sizes import count_rows
from cq.store.transact import transact, transactional
from cq.store.version_clock import clock_of

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of the limits by workers, and between two reads of the mark by an adding process."""
MODES: Final = ("raise", "admit")
_ENOUGH: Final = 0.8  # share of a limit: a full queue takes updates again below it, so that it does not flap


def limit(
    db: Database,
    name: str,
    *,
    max_age: Span | None = None,
    max_bytes: int | str | None = None,
    when_full: str = "raise",
) -> None:
    """Set the limits of a queue's backlog, and replace the present ones; without arguments the queue has no limit.

    Args:
        db: a database of either store.
        name: the queue.
        max_age: maximum age of the oldest update: seconds, a duration such as `"10m"`, or a `timedelta`.
        max_bytes: maximum bytes of queued rows, approximately: an int, or a size such as `"1GB"`.
        when_full: the reaction of adds while a limit is exceeded: `raise` `QueueFull`, or `admit` the updates; `cq
            status` reports it in both cases.

    The backlog of a queue with a roll-up includes the queued updates of its levels: one limit for all, and adds to the
    queue react to it. A level has no limit of its own. Workers check the limits: while no worker runs, a queue neither
    becomes full nor stops being full. Raises `QueueNotConfigured`, `InvalidConfiguration`.
    """
    if when_full not in MODES:
        raise InvalidConfiguration(
            f"expected {' or '.join(MODES)} for a full queue, got: {codec.brief(when_full)}"
        )
    seconds = None if max_age is None else positive_seconds(max_age)
    size = None if max_bytes is None else bytes_of(max_bytes)

    def change(tr: Transaction) -> None:
        config = read_config(tr, name)
        config.refuse_level("limit")
        change_flags(tr, name, max_seconds=seconds, max_bytes=size, when_full=when_full)
        limited = read_flags(tr, name).is_limited
        if config.limited != limited:
            write_config(tr, replace(config, limited=limited))
        # The mark belongs to the former limits; the next check may set it again.
        tr.clear(QueueKeys(name).full)

    transact(db, change)


def is_positive(number: object, kind: type = float) -> bool:
    """Whether it is a positive number below 2**63; with `kind` int, only an int is."""
    return type(number) in (int, kind) and 0 < cast(float, number) < 1 << 63


@dataclass(frozen=True, slots=True)
class BacklogMeasure:
    """The size and age of the backlog of a queue and its levels.

    Attributes:
        levels: the number of its levels.
        size: bytes of queued rows: counted up to 1 MB, beyond that estimated.
        seconds: the age of the oldest update.
        sure_seconds: the same, without version jumps that may have happened while this process did not observe them.
    """

    levels: int
    size: int
    seconds: float
    sure_seconds: float


def measure_backlog(tr: Transaction, name: str) -> BacklogMeasure:
    """Measure the backlog of a queue and its levels at the transaction's read version.

    Costs a read for each bucket with work, and for each queue a read of the first 1 MB of its rows: a cluster's
    estimate of a smaller range is useless, see `cq.store.sizes`. Raises `QueueNotConfigured`.
    """
    snapshot = tr.snapshot
    version = tr.get_read_version()
    queues = [QueueKeys(each) for each in read_config(snapshot, name).names]
    found = [oldest_by_bucket(snapshot, queue).values() for queue in queues]
    oldest = [each for versions in found for each in versions if each is not None]
    now, clock = version.wait(), clock_of(tr.db)
    clock.observe(now)
    first = min(oldest, default=now)
    size = sum(count_rows(snapshot, *queue.all_rows()).bytes for queue in queues)
    return BacklogMeasure(len(queues) - 1, size, clock.age(first, now), clock.sure_age(first, now))


@transactional
def compare(tr: Transaction, name: str) -> str:
    """Compare the backlog with the limits, and set or clear the mark; returns why the queue is full, else empty.

    Raises `QueueNotConfigured`.
    """
    flags = read_flags(tr.snapshot, name)
    stored = read_full(tr.snapshot, name)
    reason = _reason(flags, measure_backlog(tr, name), is_full=stored is not None)
    full = QueueKeys(name).full
    if reason and (stored is None or stored.mode != flags.when_full):
        tr.set(full, Full(flags.when_full, reason).to_bytes())
    elif stored and not reason:
        tr.clear(full)
    return reason


def _reason(flags: Flags, waiting: BacklogMeasure, *, is_full: bool) -> str:
    """The exceeded limit as text; else empty.

    To fill a queue, the sure age must exceed the limit: a jump of versions must not do it. To end that, the whole age
    must be below the limit: a worker that has just started must not clear a mark set by others with more knowledge.
    """
    share, seconds = (_ENOUGH, waiting.seconds) if is_full else (1.0, waiting.sure_seconds)
    where = " in it and its levels" if waiting.levels else ""
    if flags.max_seconds is not None and seconds > share * flags.max_seconds:
        return f"the oldest update{where} has waited longer than {flags.max_seconds:,g} s"
    if flags.max_bytes is not None and waiting.size > share * flags.max_bytes:
        return f"more than {flags.max_bytes:,} bytes are queued{where}"
    return ""


@dataclass(frozen=True, slots=True)
class Full(StoredRecord):
    """The mark of a full queue: the reaction of adds, and the reason."""

    NOUN = "the mark of a full queue"

    mode: str
    reason: str


def read_full(tr: TransactionRead, name: str) -> Full | None:
    """The mark of a full queue; None if the queue is not full."""
    stored = tr.get(QueueKeys(name).full).value
    return None if stored is None else Full.from_bytes(stored)


_admitting: ContextVar[bool] = ContextVar("_admitting", default=False)


@contextmanager
def admitted() -> Iterator[None]:
    """Admit adds to full queues in this context: a refused add of an observer would block the observed queue."""
    token = _admitting.set(True)
    try:
        yield
    finally:
        _admitting.reset(token)


_known: WeakKeyDictionary[Any, dict[str, tuple[float, Full | None]]] = WeakKeyDictionary()


def refuse_if_full(tr: Transaction, config: QueueConfig) -> None:
    """Raise `QueueFull` if the queue is full, by a mark read at most a second ago."""
    # `limited` is in the cached configuration, so adds to a queue without limits never read the mark.
    if not config.limited or _admitting.get():
        return
    known = _known.setdefault(tr.db, {})
    until, full = known.get(config.name, (0.0, None))
    if runtime.monotonic() >= until:
        full = read_full(own_snapshot(tr), config.name)
        known[config.name] = runtime.monotonic() + CHECK_SECONDS, full
    if full is not None and full.mode == "raise":
        raise QueueFull(f"queue {config.name!r} is full, {full.reason}: try again later, or run more workers")
