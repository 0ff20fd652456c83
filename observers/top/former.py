"""The former tops of a window: the first keys of its top, copied once in each step of time.

The totals of a window, and so its top, are those of the present. A task of the workers copies the first
keys of the top, so that `trending` can compare the top with that of one width ago, and deletes the copies that are too
old for that. It costs a read of these keys and a write, at most 60 times in a width and once a second.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from cq import runtime
from cq.admin.backfill import current_generation
from cq.admin.purging import read_purging
from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.config.window import SLICES, WindowSpec
from cq.errors import CorruptData
from cq.keys import QueueKeys, below
from cq.keys.top import FormerTopKeys, TopKeys
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.top.cloud import decode_entries, first_entries
from cq.observers.top.index import NAME
from cq.observers.top.scores import descending
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

_LEAST_STEP_MS: Final = 1_000
_ROW_BYTES: Final = 70_000
"""Maximum bytes of copied rows: encoded, they are a few bytes larger each, and a value has at most 100,000."""
STEPS_LATE: Final = 2
"""How many steps older than a width a copy may be, if workers have made no copy since."""


class FormerTopTask(Task):
    """Copies the first keys of a queue's top, once in each step of time.

    Any number of workers may do so: the first one in each step makes the copy.

    Args:
        db: a database of either store.
        config: the queue's configuration.
        observer: the top in it.
    """

    def __init__(self, db: Database, config: QueueConfig, observer: ObserverConfig) -> None:
        self._db = db
        self._name = config.name
        self._n: int = observer.settings["n"]
        self._generation = observer.generation
        self._entries = TopKeys(QueueKeys(config.name), observer.generation).entries(None)
        self._former = FormerTopKeys(QueueKeys(config.name))

    def __str__(self) -> str:
        return f"the former tops of queue {self._name!r}"

    def run(self) -> float:
        """Copy the top unless this step has a copy; returns the seconds to the next step, `DONE` without a window."""
        now = runtime.time_ns() // 1_000_000
        step = transact(self._db, lambda tr: self._copy(tr, now))
        return DONE if step is None else (step - now % step) / 1000

    def _copy(self, tr: Transaction, now: int) -> int | None:
        """Copy the top; returns the milliseconds of a step, None for a queue without totals of a window."""
        config = read_config(tr, self._name)
        window = window_of_totals(tr, config)
        if window is None:
            return None
        step = step_of(window)
        here = self._former.at(now - now % step)
        copied = tr.get(here)  # with a read conflict, so that one of two workers makes the copy
        rows = tr.snapshot.get_range(*below(self._entries), limit=self._n)
        if current_generation(tr.snapshot, self._name, NAME) != self._generation or copied.present():
            return step  # in a backfill, the top is not complete
        if read_purging(tr.snapshot, config):
            return step  # the top has keys that the purge deletes, and its mark has cleared their copies
        begin, end = self._former.all()
        tr.clear_range(begin, self._former.until(now, window.width + (1 + STEPS_LATE) * step)[0])
        tr.clear_range(here, end)  # copies by a worker whose clock was ahead
        tr.set(here, first_entries(config, rows, len(self._entries), _ROW_BYTES))
        return step


class FormerTop:
    """A copy of a top: the ranks of its keys. Raises `CorruptData` unless it has the form that cq writes."""

    def __init__(self, stored: bytes) -> None:
        entries = decode_entries(stored)
        self._scores = [descending(entry.score) for entry in entries]
        if self._scores != sorted(self._scores):
            raise CorruptData("the entries of a former top are not in the order of their scores")
        self._places = {entry.key: place for place, entry in enumerate(entries)}

    def rank(self, key: Any) -> int | None:
        """1 plus the number of keys with a strictly higher score; None for a key that the copy lacks."""
        place = self._places.get(key)
        return None if place is None else 1 + bisect_left(self._scores, self._scores[place])


def read_former(tr: TransactionRead, name: str, window: WindowSpec, now: int) -> FormerTop | None:
    """The top of one width before the time `now`, in milliseconds; None if workers have not copied it.

    Exact to a step. If workers made no copy then, the latest of the two steps before. Raises `CorruptData`.
    """
    step = step_of(window)
    rows = tr.get_range(
        *FormerTopKeys(QueueKeys(name)).until(now - window.width, (1 + STEPS_LATE) * step),
        limit=1,
        reverse=True,
    )
    return next((FormerTop(row.value) for row in rows), None)


def window_of_totals(tr: TransactionRead, config: QueueConfig) -> WindowSpec | None:
    """The window whose totals a queue has; None for other queues."""
    level_of = config.level_of
    return read_config(tr, level_of.queue).window if level_of and level_of.is_window else None


def step_of(window: WindowSpec) -> int:
    """The milliseconds from one copy to the next: whole slices, at least a second and a 60th of the width.

    >>> step_of(WindowSpec(600_000, 10_000)), step_of(WindowSpec(2_000, 300))
    (10000, 1200)
    """
    least = max(_LEAST_STEP_MS, window.width // SLICES)
    return -(-least // window.slice) * window.slice
