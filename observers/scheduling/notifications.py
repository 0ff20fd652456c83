"""Search for notified tasks, and watches on the other tasks' notifications.

A watch is made in a transaction that only reads, at the read version at which the notification was absent, so a
notification set in between fires the watch. It fires within milliseconds of the commit that changes the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cq.keys import after
from cq.observers.scheduling.task import Job
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact


def find_notified(snapshot: TransactionRead, jobs: Iterable[Job]) -> list[Job]:
    """The jobs whose notification is present, by one range read for all tasks with the same prefix."""
    groups: dict[bytes, dict[bytes, Job]] = {}
    for job in jobs:
        key = job.task.notification
        if key is not None:
            groups.setdefault(job.task.notification_prefix or key, {})[key] = job
    # All reads start before the first is awaited.
    ranges = [(group, snapshot.get_range(min(group), after(max(group)))) for group in groups.values()]
    return [group[row.key] for group, rows in ranges for row in rows if row.key in group]


def find_or_watch(db: Database, jobs: Sequence[Job], watches: int) -> tuple[list[Job], list[tuple[Job, Any]]]:
    """The notified jobs, and new watches on the notifications of up to `watches` other, unwatched jobs."""

    def read(tr: Transaction) -> tuple[list[Job], list[tuple[Job, Any]]]:
        notified = find_notified(tr.snapshot, jobs)
        found = set(notified)
        unwatched = [
            (job, key)
            for job in jobs
            if (key := job.task.notification) is not None and job not in found and job.watch.is_free
        ]
        return notified, [(job, tr.watch(key)) for job, key in unwatched[: max(0, watches)]]

    return transact(db, read)
