"""Pause, resume and priority of a queue and its levels: settings that workers read and adds do not."""

from __future__ import annotations

from typing import Any

from cq import runtime
from cq.config.flags import MAX_PRIORITY, change_flags, read_flags
from cq.config.queue import read_config
from cq.durations import Span, positive_seconds
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.store.api import Database, Transaction
from cq.store.transact import transact, transactional


def pause(db: Database, name: str, reason: str = "by hand", *, duration: Span | None = None) -> None:
    """Keep workers from combining the queue until `resume`, or for a duration; adds and reads continue.

    The duration is in seconds, text such as `"10m"`, or a `timedelta`; None: until `resume`.

    Its levels are paused in the same transaction; the name of a level pauses this level alone. Running
    workers notice it within about a second, and combine updates until then. `cq status` shows the `reason`. Raises
    `QueueNotConfigured`, and `InvalidConfiguration` for a wrong argument.
    """
    if not isinstance(reason, str):
        raise InvalidConfiguration(f"expected the reason of a pause to be text, got: {codec.brief(reason)}")
    until = None if duration is None else runtime.time() + positive_seconds(duration)
    transact(db, lambda tr: _change(tr, name, paused=True, reason=reason, until=until))


@transactional
def pause_failing(tr: Transaction, name: str, reason: str) -> None:
    """Pause a queue whose keys fail, without its levels: these may be sound. Raises `QueueNotConfigured`."""
    read_config(tr, name)
    change_flags(tr, name, paused=True, reason=reason, until=None)


def resume(db: Database, name: str) -> None:
    """End a pause; workers continue at once.

    Its levels continue, too, whatever paused them; the name of a level resumes this level alone. Raises
    `QueueNotConfigured`.
    """
    transact(db, lambda tr: _change(tr, name, paused=False, reason="", until=None))


def prioritize(db: Database, name: str, priority: int) -> None:
    """Set the queue's share of the workers' time, 1 to 100, relative to other queues with work; the default is 10.

    Each of its levels gets the same share; the name of a level sets that of this level alone. Raises
    `QueueNotConfigured`, and `InvalidConfiguration` if `priority` is outside of its range.
    """
    checked_priority(priority)
    transact(db, lambda tr: _change(tr, name, priority=priority))


def checked_priority(priority: object) -> int:
    """The priority, checked; raises `InvalidConfiguration`."""
    if type(priority) is not int or not 1 <= priority <= MAX_PRIORITY:
        raise InvalidConfiguration(
            f"expected a priority of 1 to {MAX_PRIORITY}, got: {codec.brief(priority)}"
        )
    return priority


def copy_flags(tr: Transaction, source: str, level: str) -> None:
    """Give a new level the pause and the priority of its queue; the limits of the queue include its levels."""
    flags = read_flags(tr, source)
    change_flags(
        tr, level, paused=flags.paused, reason=flags.reason, until=flags.until, priority=flags.priority
    )


def _change(tr: Transaction, name: str, **changes: Any) -> None:
    """Change flags of a queue and its levels."""
    # With a conflict range: a deleted queue must not keep flags. Levels come and go only with a change of it.
    for each in read_config(tr, name).names:
        change_flags(tr, each, **changes)
