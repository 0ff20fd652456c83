"""The description of a worker's work, for its log: queues, buckets, links and feeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cq.observers.feeds.tasks import ROLE
from cq.observers.scheduling.members import COMBINE, EXPORTER, LINK, OUTBOX, TaskId

_MOST_NAMES: Final = 10
_NOUNS: Final[Mapping[str, str]] = {
    LINK: "links of",
    EXPORTER: "exports of",
    "publish": "clouds of",
    OUTBOX: "outboxes of",
    ROLE: "feeds",
}
"""{kind of tasks: the words before the names of their queues}."""


def describe_work(tasks: Iterable[TaskId]) -> str:
    """The buckets and queues to combine, then the other work, in one line; "nothing" without tasks.

    >>> describe_work([TaskId("combine", "words", 0), TaskId("combine", "words", 1), TaskId("link", "words", 0)])
    '2 buckets of words, links of words'
    """
    buckets = 0
    names: dict[str, set[str]] = {"": set()}
    for task in tasks:
        if task.kind == COMBINE:
            buckets += 1
            names[""].add(task.queue)
        elif task.kind in _NOUNS:
            names.setdefault(_NOUNS[task.kind], set()).add(task.queue)
    combined = names.pop("")
    parts = (
        [f"{buckets:,} {'bucket' if buckets == 1 else 'buckets'} of {_listed(combined)}"] if buckets else []
    )
    parts += [f"{noun} {_listed(names[noun])}" for noun in sorted(names)]
    return ", ".join(parts) or "nothing"


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_NAMES]
    more = len(names) - len(shown)
    last = f"{more:,} more" if more else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last
