"""The health check of `cq health`, for monitoring, Docker and Kubernetes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from cq.admin.queue_status import QueueStatus, read_at_present, status
from cq.durations import Span, span_of
from cq.observers.monitoring.findings import MAX_AGE_SECONDS, Finding, Level, Remark, find_remarks
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import Member, read_members
from cq.plain_text import message_of
from cq.store.api import Database, Transaction, error_code

ANSWER_SECONDS: Final = 5.0
"""Time limit of its transactions, which tell whether the store answers."""


def health(db: Database, *, max_age: Span = MAX_AGE_SECONDS, here: bool = False) -> list[str]:
    """The problems found, one line each; empty if the store answers, a worker is alive, and no update is too old.

    The problems of `find_remarks` are among them, such as a stopped export or a queue whose code the workers lack.

    Args:
        db: a database of either store.
        max_age: how long updates may wait in an active queue, or to expire from a window.
        here: for a probe of the workers of this host: one of them must be alive. Findings that a restart of these
            workers does not change are left out.

    A worker is alive if its latest beat, by the store's versions, is at most a few beats old. A recovery of a cluster
    advances versions by a minute or two, so all workers seem dead until their next beats.
    """
    try:
        members, now = read_at_present(db, _read_members)
        if here:
            queues, findings = status(db), list[Remark]()
        else:
            seen = overview(db)
            queues, findings = seen.queues, find_remarks(seen)
    except Exception as error:
        if error_code(error) is None:
            raise
        return [f"the store does not answer within {ANSWER_SECONDS:g} s: {message_of(error)}"]
    problems = _workers(members, now, here=here)
    problems += _old_updates([each for each in queues if not each.paused], span_of(max_age))
    problems += [
        str(each)
        for each in findings
        if each.level is Level.PROBLEM and each.finding is not Finding.NO_WORKER
    ]
    return problems


def _read_members(tr: Transaction) -> list[Member]:
    tr.options.set_timeout(int(ANSWER_SECONDS * 1000))
    return read_members(tr.snapshot)


def _workers(members: list[Member], now: int, *, here: bool) -> list[str]:
    host = socket.gethostname()
    asked = [member for member in members if not here or member.host == host]
    if any(member.is_alive(now) for member in asked):
        return []
    where = f" on {host}" if here else ""
    latest = min((member.age(now) for member in asked), default=None)
    beat = "none has registered" if latest is None else f"the latest beat is {latest:,.0f} s old"
    return [f"no worker is alive{where}: {beat}"]


def _old_updates(queues: Sequence[QueueStatus], max_age: float) -> list[str]:
    """The problems of queues with too old updates: one for a queue and its levels, and one for each late window."""
    old: dict[str, dict[str, float]] = {}
    for each in queues:
        if (age := each.oldest_seconds or 0.0) > max_age:
            old.setdefault(each.level_of or each.name, {})[each.name] = age
    problems = []
    for queue, ages in old.items():
        problem = _too_old(queue, "an update has", max(ages.values()), max_age)
        problems.append(problem if list(ages) == [queue] else f"{problem}, in {', '.join(sorted(ages))}")
    return problems + [
        _too_old(
            each.name, "updates due to expire from its window have", each.window.overdue_seconds, max_age
        )
        for each in queues
        if each.window is not None and each.window.overdue_seconds > max_age
    ]


def _too_old(name: str, what: str, age: float, max_age: float) -> str:
    return f"queue {name!r}: {what} waited for {age:,.0f} s, longer than {max_age:g} s"
