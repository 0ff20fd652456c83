"""The health check of `cq health`, for monitoring, Docker and Kubernetes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cq import runtime
from cq.admin.queue_status import read_at_present
from cq.config.flags import read_flags
from cq.config.queue import queue_names, read_config
from cq.durations import Span, span_of
from cq.errors import CqError
from cq.keys import QueueKeys
from cq.observers.monitoring.findings import MAX_AGE_SECONDS, Finding, Level, find_remarks
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import Member, read_members
from cq.plain_text import message_of
from cq.queue.rows import oldest_by_bucket
from cq.store.api import VERSIONS_PER_SECOND, Database, Transaction, error_code
from cq.store.bounded_reads import read_each
from cq.windows.window import read_statistics

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
        (members, names), now = read_at_present(db, _read)
        queues = [each for each in read_each(db, names, _read_queue, _keys) if each is not None]
        findings = [] if here else find_remarks(overview(db))
    except Exception as error:
        if error_code(error) is None:
            raise
        return [f"the store does not answer within {ANSWER_SECONDS:g} s: {message_of(error)}"]
    seconds = span_of(max_age)
    problems = _workers(members, now, here=here)
    problems += _old_updates(queues, now, seconds)
    for queue in queues:
        what = "updates due to expire from its window have"
        problems += _too_old(queue.name, what, queue.overdue_seconds, seconds)
    problems += [
        str(each)
        for each in findings
        if each.level is Level.PROBLEM and each.finding is not Finding.NO_WORKER
    ]
    return problems


class _QueueReading(NamedTuple):
    """The ages in a queue.

    Attributes:
        name: the queue.
        source: the queue that it is a level of; for other queues their own name.
        oldest: version of its oldest update; None if it is empty.
        overdue_seconds: how long due updates have waited to expire from its window.
    """

    name: str
    source: str
    oldest: int | None
    overdue_seconds: float


def _read(tr: Transaction) -> tuple[list[Member], list[str]]:
    """The workers, and the names of the queues."""
    tr.options.set_timeout(int(ANSWER_SECONDS * 1000))
    return read_members(tr.snapshot), queue_names(tr.snapshot)


def _keys(name: str) -> tuple[bytes, ...]:
    return QueueKeys(name).config, QueueKeys(name).flags


def _read_queue(tr: Transaction, name: str) -> _QueueReading | None:
    """The ages in a queue; None if it is paused, or cannot be read: that is a finding of its own."""
    tr.options.set_timeout(int(ANSWER_SECONDS * 1000))
    snapshot = tr.snapshot
    with suppress(CqError):
        if not read_flags(snapshot, name).is_paused(runtime.time()):
            config = read_config(snapshot, name)
            source = name if config.level_of is None else config.level_of.queue
            oldest = oldest_by_bucket(snapshot, QueueKeys(name)).values()
            versions = [each for each in oldest if each is not None]
            overdue = read_statistics(snapshot, config).overdue_seconds
            return _QueueReading(name, source, min(versions, default=None), overdue)
    return None


def _workers(members: list[Member], now: int, *, here: bool) -> list[str]:
    host = socket.gethostname()
    asked = [member for member in members if not here or member.host == host]
    if any(member.is_alive(now) for member in asked):
        return []
    where = f" on {host}" if here else ""
    latest = min((member.age(now) for member in asked), default=None)
    beat = "none has registered" if latest is None else f"the latest beat is {latest:,.0f} s old"
    return [f"no worker is alive{where}: {beat}"]


def _old_updates(queues: Sequence[_QueueReading], now: int, max_age: float) -> list[str]:
    """The problems of queues with too old updates: one for a queue and its levels."""
    old: dict[str, dict[str, float]] = {}
    for each in queues:
        age = 0.0 if each.oldest is None else (now - each.oldest) / VERSIONS_PER_SECOND
        if age > max_age:
            old.setdefault(each.source, {})[each.name] = age
    problems = []
    for queue, ages in old.items():
        (problem,) = _too_old(queue, "an update has", max(ages.values()), max_age)
        problems.append(problem if list(ages) == [queue] else f"{problem}, in {', '.join(ages)}")
    return problems


def _too_old(name: str, what: str, age: float, max_age: float) -> list[str]:
    """The problem of a queue, if there is one."""
    text = f"queue {name!r}: {what} waited for {age:,.0f} s, longer than {max_age:g} s"
    return [text] if age > max_age else []
