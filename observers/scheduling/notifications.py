"""Which tasks are notified, and watches for those that are not: at one read version, so that no news get lost.

A watch is made in a transaction that only reads, at the read version at which the notification was found absent. It
fires within milliseconds of the commit that changes the notification.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cq.keys import after
from cq.observers.scheduling.task import Job
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact


def find_notified(snapshot: TransactionRead, jobs: Iterable[Job]) -> list[Job]:
    """The jobs whose notification is present; one range read for all buckets of a queue."""
    groups: dict[bytes, dict[bytes, Job]] = {}
    for job in jobs:
        key = job.task.notification
        if key is not None:
            groups.setdefault(job.task.notification_prefix or key, {})[key] = job
    ranges = [(group, snapshot.get_range(min(group), after(max(group)))) for group in groups.values()]
    return [group[row.key] for group, rows in ranges for row in rows if row.key in group]


def find_or_watch(db: Database, jobs: Sequence[Job], watches: int) -> tuple[list[Job], list[tuple[Job, Any]]]:
    """The jobs that are notified, and at most so many of the others that are not watched yet, with a watch each."""

    def read(tr: Transaction) -> tuple[list[Job], list[tuple[Job, Any]]]:
        notified = find_notified(tr.snapshot, jobs)
        found = set(notified)
        silent = [
            (job, key)
            for job in jobs
            if (key := job.task.notification) is not None and job not in found and job.watch.is_free
        ]
        return notified, [(job, tr.watch(key)) for job, key in silent[: max(0, watches)]]

    return transact(db, read)
