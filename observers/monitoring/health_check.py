"""The health check of `cq health`, for monitoring, Docker and Kubernetes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from cq.admin.queue_status import QueueStatus, read_at_present
from cq.observers.monitoring.findings import Finding, Level, find_remarks
from cq.observers.monitoring.store_overview import WorkerStatus, overview
from cq.store.api import Database, error_code

ANSWER_SECONDS: Final = 5.0
"""Time limit of the first transaction, which tells whether the store answers."""
MAX_AGE_SECONDS: Final = 60.0
"""Default limit of the age of queued updates."""


def health(db: Database, *, max_age: float = MAX_AGE_SECONDS, here: bool = False) -> list[str]:
    """The problems found, one line each; empty if the store answers, a worker is alive, and no update is too old.

    The problems of `find_remarks` are among them, such as a stopped export or a queue whose code the workers lack.

    Args:
        db: a database of either store.
        max_age: how many seconds updates may wait in an active queue, or to expire from a window.
        here: for a probe of the workers of this host: one of them must be alive. Findings that a restart of these
            workers does not change are left out.

    A worker is alive if its latest beat, by the store's versions, is at most a few beats old. A recovery of a cluster
    advances versions by a minute or two, so all workers seem dead until their next beats.
    """
    try:
        read_at_present(db, lambda tr: tr.options.set_timeout(int(ANSWER_SECONDS * 1000)))
        seen = overview(db)
    except Exception as error:
        if error_code(error) is None:
            raise
        return [f"the store does not answer within {ANSWER_SECONDS:g} s: {error}"]
    active = [queue for queue in seen.queues if not queue.paused]
    problems = [*_workers(seen.workers, here=here), *_old_updates(active, max_age)]
    for queue in active:
        late = 0.0 if queue.window is None else queue.window.overdue_seconds
        problems += _too_old(queue.name, "updates due to expire from its window have", late, max_age)
    found = [] if here else find_remarks(seen)
    urgent = [each for each in found if each.level is Level.PROBLEM and each.finding is not Finding.NO_WORKER]
    return [*problems, *map(str, urgent)]


def _workers(workers: Sequence[WorkerStatus], *, here: bool) -> list[str]:
    host = socket.gethostname()
    asked = [worker for worker in workers if not here or worker.host == host]
    if any(worker.alive for worker in asked):
        return []
    where = f" on {host}" if here else ""
    latest = min((worker.beat_seconds for worker in asked), default=None)
    beat = "none has registered" if latest is None else f"the latest beat is {latest:,.0f} s old"
    return [f"no worker is alive{where}: {beat}"]


def _old_updates(queues: Sequence[QueueStatus], max_age: float) -> list[str]:
    """The problems of queues with too old updates: one for a queue and its levels."""
    old: dict[str, dict[str, float]] = {}
    for each in queues:
        if (age := each.oldest_seconds or 0.0) > max_age:
            old.setdefault(each.level_of or each.name, {})[each.name] = age
    problems = []
    for queue, ages in old.items():
        (problem,) = _too_old(queue, "an update has", max(ages.values()), max_age)
        problems.append(problem if list(ages) == [queue] else f"{problem}, in {', '.join(ages)}")
    return problems


def _too_old(name: str, what: str, age: float, max_age: float) -> list[str]:
    """The problem of a queue, if there is one."""
    text = f"queue {name!r}: {what} waited for {age:,.0f} s, longer than {max_age:g} s"
    return [text] if age > max_age else []
