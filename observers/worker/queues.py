"""Search for the queues that a worker can work on: configured, not paused, and with code in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cq import keys, runtime
from cq.admin.backfill import current_generation, publish_generations
from cq.admin.conversion import finish_conversion
from cq.admin.rebucketing import finish_rebucket
from cq.app import App, QueueCode
from cq.config.flags import Flags, read_flags
from cq.config.queue import queue_names, read_config, with_levels
from cq.errors import ConfigurationError, CorruptData, CqError, QueueNotConfigured
from cq.failure import is_failure
from cq.feeds.config import is_feed
from cq.keys import QueueKeys
from cq.keys.link import OutboxKeys
from cq.observers.builtin import FACTORIES, check_receivers
from cq.observers.links.outbox.state import OutboxSettings, read_settings
from cq.plain_text import describe
from cq.queue.rows import notified
from cq.store.api import Database, Transaction, Void, error_code
from cq.store.bounded_reads import read_each
from cq.store.transact import transact


@dataclass(slots=True)
class QueueCheck:
    """The result of the check of one queue: its code, or the reason why the worker leaves it alone.

    `left_generation` is that of buckets for another version of the combiner, which the worker leaves alone.
    """

    code: QueueCode | None
    problem: str = ""
    is_switched: bool = True
    flags: Flags = field(default_factory=Flags)
    outbox: OutboxSettings | None = None
    left_generation: int | None = None
    is_paused: bool = False


def find_queues(
    db: Database, app: App, names: Sequence[str], *, is_strict: bool = True
) -> tuple[dict[str, QueueCheck], Void]:
    """The queues of these names and their levels, or all, and a watch on every change of any queue's configuration.

    Switches queues to observers whose backfill is complete, and finishes drained rebuckets. If `is_strict`, raises
    `QueueNotConfigured` for a given name that belongs neither to a queue nor to a feed; else the name is returned with
    this problem.
    """
    wanted, watch = transact(
        db,
        lambda tr: (with_levels(tr.snapshot, names) or queue_names(tr.snapshot), tr.watch(keys.CHANGED)),
    )
    required = names if is_strict else ()
    try:
        # Later than the watch is made: it fires for each change that these reads do not see.
        checks = read_each(db, wanted, lambda tr, name: _check(tr, app, name, required), _keys)
    except BaseException:
        watch.cancel()
        raise
    found = {name: each for name, each in zip(wanted, checks, strict=True) if each is not None}
    for name, each in found.items():
        # A queue deleted since the read fires the watch; unreadable data is reported by the queue's tasks.
        with suppress(QueueNotConfigured, CorruptData):
            if not each.is_switched:
                publish_generations(db, name)
                finish_conversion(db, name)
            if not each.is_switched or (each.code is not None and each.code.config.former is not None):
                finish_rebucket(db, name)
    return found, watch


def _keys(name: str) -> tuple[bytes, ...]:
    """The keys that `_find` reads of each queue."""
    queue = QueueKeys(name)
    return queue.config, queue.flags, OutboxKeys(name).settings


def _check(tr: Transaction, app: App, name: str, required: Sequence[str]) -> QueueCheck | None:
    """The check of a queue; None for the name of a feed. A required queue must exist."""
    try:
        return _find(tr, app, name)
    except QueueNotConfigured as error:
        if is_feed(tr.snapshot, name):
            return None
        if name in required:
            raise
        return QueueCheck(None, str(error))


def _find(tr: Transaction, app: App, name: str) -> QueueCheck:
    flags = Flags()
    try:
        config = read_config(tr.snapshot, name)
        flags = read_flags(tr.snapshot, name)
        if flags.is_paused(runtime.time()):
            return QueueCheck(None, f"queue {name!r} is paused ({flags.reason})", flags=flags, is_paused=True)
        code = app.code(config, FACTORIES)
        check_receivers(tr.snapshot, config)
        outbox = read_settings(tr.snapshot, name)
        switched = config.conversion is None and all(
            current_generation(tr.snapshot, name, each.name) == each.generation for each in config.observers
        )
    except QueueNotConfigured:
        raise
    except (ConfigurationError, CorruptData) as error:
        return QueueCheck(None, str(error), flags=flags)
    except BaseException as error:
        if error_code(error) is not None or not is_failure(error):
            raise
        # An error of the application's code must not stop the work on other queues.
        return QueueCheck(None, f"the code of queue {name!r} cannot be made: {describe(error)}", flags=flags)
    left = None if code.config.generation == config.generation else config.generation
    return QueueCheck(code, is_switched=switched, flags=flags, outbox=outbox, left_generation=left)


def notified_buckets(db: Database, names: list[str]) -> dict[str, list[tuple[int, int]]]:
    """{queue: (generation, number) of its buckets with work}, all at one read version."""

    def read(tr: Transaction) -> dict[str, list[tuple[int, int]]]:
        ranges = {name: tr.snapshot.get_range(*QueueKeys(name).notifications()) for name in names}
        found = {name: notified(rows, QueueKeys(name)) for name, rows in ranges.items()}
        return {name: _existing(tr, name, buckets) for name, buckets in found.items()}

    return transact(db, read)


def _existing(tr: Transaction, name: str, buckets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The buckets that the queue's configuration has: a notification of another one would never be removed."""
    if not buckets:
        return []
    try:
        config = read_config(tr.snapshot, name)
    except CqError:
        return buckets  # the caller reports what is wrong with the queue
    return [bucket for bucket in buckets if config.has_bucket(*bucket)]
