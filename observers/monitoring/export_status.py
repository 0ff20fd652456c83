"""The status of exports: their backlog, its age, and failures."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from cq.admin.backfill import current_generation
from cq.admin.queue_status import current_version
from cq.config.queue import queue_names, read_config
from cq.errors import CqError, QueueNotConfigured
from cq.keys.export import ExportKeys
from cq.observers.export.queue import BUCKETS, oldest_versions
from cq.observers.export.spec import EXPORTERS
from cq.observers.export.state import (
    export_names,
    read_control,
    read_entries_aside,
    read_failures,
    read_view,
)
from cq.observers.forward.observer import NAME as FORWARD
from cq.observers.kafka.observer import NAME as KAFKA
from cq.observers.webhook.observer import NAME as WEBHOOK
from cq.store.api import Database, Transaction, seconds_since
from cq.store.sizes import count_rows
from cq.store.transact import transact

_MOST_ASIDE: Final = 1_000


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """The status of an export queue.

    Attributes:
        name: of the queue.
        table: the table, for a forward the target queue and the environment variable with the URL of its store, for a
            webhook the environment variable with its URL, for Kafka the topic and the variable with the brokers'
            addresses; None if the exporter is the application's.
        waiting_buckets, buckets: number of buckets with entries, and of all.
        rows, bytes: number and size of the packed rows in the queue.
        exact: whether these were counted; else they are estimates, up to a few times off.
        oldest_seconds: age of the oldest entry in the queue, None if it is empty.
        aside: entries set aside (at most 1,000 are counted).
        state: `active`; `filling` during a backfill, or until rows of earlier generations are swept; `failing`;
            `stopped`; `unreadable`, if stored data of the export cannot be read.
        error: the latest error, empty if the export does not fail.
        failing_since: time of the first failure, in seconds since 1970.
        tries: number of consecutive failures.
    """

    name: str
    table: str | None
    waiting_buckets: int
    buckets: int
    rows: int
    bytes: int
    exact: bool
    oldest_seconds: float | None
    aside: int
    state: str
    error: str
    failing_since: float | None
    tries: int


def export_status(db: Database, name: str | None = None) -> list[ExportStatus]:
    """The status of one export queue, or of all; raises `QueueNotConfigured` if `name` does not exist."""
    names = transact(db, lambda tr: export_queues(tr, name))
    now = current_version(db)
    found = []
    for each in names:
        try:
            found.append(transact(db, partial(read_export_status, name=each, now=now)))
        except CqError as error:
            if name is not None:
                raise
            # A status with the error, so that the others are shown.
            nothing = ExportStatus(each, None, 0, BUCKETS, 0, 0, False, None, 0, "unreadable", "", None, 0)
            found.append(replace(nothing, error=str(error)))
    return found


def export_queues(tr: Transaction, name: str | None = None) -> list[str]:
    """The names of export queues with stored data and of combine queues with an export; or only `name`.

    Raises `QueueNotConfigured` if `name` does not exist.
    """
    stored = export_names(tr.snapshot)
    if name is not None:
        if name not in stored:
            read_config(tr.snapshot, name)  # raises if there is no such queue
        return [name]
    names = set(stored)
    for each in queue_names(tr.snapshot):
        with suppress(CqError):  # the status of the queue itself reports the error
            if _configured(tr, each)[0] is not None:
                names.add(each)
    return sorted(names)


def read_export_status(tr: Transaction, name: str, now: int) -> ExportStatus:
    """The status of one export queue, of which `export_queues` gives the names, at the version `now`."""
    snapshot, keys = tr.snapshot, ExportKeys(name)
    oldest = oldest_versions(snapshot, keys)
    rows, size, exact = count_rows(snapshot, *keys.all_rows())
    failures = read_failures(snapshot, keys).values()
    stopped = read_view(snapshot, keys, ())().stopped
    worst = max(failures, key=lambda failure: failure.tries, default=None)
    aside = sum(1 for _, _ in zip(range(_MOST_ASIDE), read_entries_aside(snapshot, keys), strict=False))
    table, filling = _configured(tr, name)
    return ExportStatus(
        name=name,
        table=table,
        waiting_buckets=len(oldest),
        buckets=BUCKETS,
        rows=rows,
        bytes=size,
        exact=exact,
        oldest_seconds=seconds_since(min(oldest), now) if oldest else None,
        aside=aside,
        state="stopped" if stopped else "failing" if worst else "filling" if filling else "active",
        error=stopped or (worst.error if worst else ""),
        failing_since=min((failure.since for failure in failures), default=None),
        tries=worst.tries if worst else 0,
    )


def _configured(tr: Transaction, name: str) -> tuple[str | None, bool]:
    """The target table, queue, webhook or topic of a combine queue's export, and whether it is still being filled."""
    try:
        config = read_config(tr.snapshot, name)
    except QueueNotConfigured:
        return None, False
    observer: Any = next((each for each in config.observers if each.name in EXPORTERS), None)
    if observer is None:
        return None, False
    settings = observer.settings
    if observer.name == FORWARD:
        table = f"{settings.get('into', name)} in ${settings['url_env']}"
    elif observer.name == WEBHOOK:
        table = f"webhook in ${settings['url_env']}"
    elif observer.name == KAFKA:
        table = f"topic {settings['topic']} in ${settings['url_env']}"
    else:
        table = ".".join(str(settings[part]) for part in ("schema", "table") if part in settings)
    backfilled = current_generation(tr.snapshot, name, observer.name) == observer.generation
    swept = read_control(tr.snapshot, ExportKeys(name)).swept >= observer.generation
    return table, not (backfilled and swept)
