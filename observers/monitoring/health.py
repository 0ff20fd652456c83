"""Whether all is well: for `cq health`, which monitoring, Docker and Kubernetes call."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from cq import runtime
from cq.admin.status import CLOCK
from cq.config.queue import queue_names, read_flags
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.observers.scheduling.members import Member, read_members
from cq.queue.rows import oldest_by_bucket
from cq.store.api import VERSIONS_PER_SECOND, Database, Transaction, TransactionRead, error_code
from cq.store.transact import transact_versioned
from cq.windows.statistics import read_statistics

ANSWER_SECONDS: Final = 5.0
"""How long the store may take for everything."""
MAX_AGE_SECONDS: Final = 60.0
"""For how long updates may wait, unless told otherwise."""


def health(db: Database, *, max_age: float = MAX_AGE_SECONDS, here: bool = False) -> list[str]:
    """What is wrong, a line each; empty when the store answers, a worker lives, and nothing waits for too long.

    Args:
        db: a database of either store.
        max_age: for how many seconds updates may wait in a queue that is not paused, and what has left a window.
        here: whether a worker must live on this host.

    A worker lives if its last beat, by the store's versions, is not older than a few beats. A recovery of a cluster
    moves versions on by a minute or two: until their next beats all workers seem dead then.
    """
    try:
        found, now = transact_versioned(db, _read)
    except Exception as error:
        if error_code(error) is None:
            raise
        return [f"the store does not answer within {ANSWER_SECONDS:g} s: {error}"]
    waiting = [*_waiting(found.oldest, now, max_age), *_overdue(found.overdue, max_age)]
    return [*_workers(found.members, now, here=here), *found.broken, *waiting]


class _HealthReading(NamedTuple):
    """What was read: of queues that are not paused, by name.

    Attributes:
        members: the workers.
        oldest: the version of a queue's oldest update.
        overdue: for how many seconds what has left a queue's window has waited to be taken out.
        broken: which queues cannot be read.
    """

    members: list[Member]
    oldest: dict[str, int]
    overdue: dict[str, float]
    broken: list[str]


def _read(tr: Transaction) -> _HealthReading:
    tr.options.set_timeout(int(ANSWER_SECONDS * 1000))
    tr.add_write_conflict_key(CLOCK)
    found = _HealthReading(read_members(tr.snapshot), {}, {}, [])
    for name in queue_names(tr.snapshot):
        try:
            if read_flags(tr.snapshot, name).is_paused(runtime.time()):
                continue
            version = _oldest(tr.snapshot, name)
        except CorruptData as error:
            found.broken.append(f"queue {name!r} cannot be read: {error}")
            continue
        if version is not None:
            found.oldest[name] = version
        found.overdue[name] = read_statistics(tr.snapshot, name).overdue_seconds
    return found


def _oldest(tr: TransactionRead, name: str) -> int | None:
    versions = oldest_by_bucket(tr, QueueKeys(name)).values()
    return min((version for version in versions if version is not None), default=None)


def _workers(members: list[Member], now: int, *, here: bool) -> list[str]:
    host = socket.gethostname()
    asked = [member for member in members if not here or member.host == host]
    if any(member.is_alive(now) for member in asked):
        return []
    where = f" on {host}" if here else ""
    latest = min((member.age(now) for member in asked), default=None)
    beat = "none has registered" if latest is None else f"the latest beat is {latest:,.0f} s old"
    return [f"no worker is alive{where}: {beat}"]


def _waiting(oldest: dict[str, int], now: int, max_age: float) -> list[str]:
    ages = {name: (now - version) / VERSIONS_PER_SECOND for name, version in oldest.items()}
    return [
        f"queue {name!r}: an update has waited for {age:,.0f} s, longer than {max_age:g} s"
        for name, age in ages.items()
        if age > max_age
    ]


def _overdue(overdue: dict[str, float], max_age: float) -> list[str]:
    return [
        f"queue {name!r}: what has left its window has waited for {age:,.0f} s to be taken out, "
        f"longer than {max_age:g} s"
        for name, age in overdue.items()
        if age > max_age
    ]
