"""The columns of `cq status` for queues and workers, and their states with levels and colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

from cq.admin.queue_status import QueueStatus
from cq.cli.shared.output import age, limits, quantity, rough
from cq.cli.shared.table import NO_VALUE, ShownColumn
from cq.observers.monitoring.findings import Level
from cq.observers.monitoring.store_overview import Overview, WorkerStatus

NO_QUEUE: Final = "no queue is configured in this store: begin with `cq configure QUEUE --combiner sum`"
_LATE_SECONDS: Final = 10.0
_LEVELS: Final = {
    "active": Level.GOOD,
    "alive": Level.GOOD,
    "paused": Level.WARNING,
    "set aside": Level.WARNING,
}
_STYLES: Final = {Level.GOOD: "", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def shown_queues(found: Overview, *, every: bool) -> list[QueueStatus]:
    """The queues for a table: without the levels that need no attention, unless there is one queue only, or `every`."""
    is_one = sum(queue.level_of is None for queue in found.queues) == 1
    return [queue for queue in found.queues if every or is_one or _is_prominent(queue, found)]


def hidden_levels(found: Overview, shown: Sequence[QueueStatus]) -> list[Text]:
    """A line with the number of levels that `shown_queues` left out; no line if it left out none."""
    hidden = len(found.queues) - len(shown)
    text = f"({quantity(hidden, 'level')} without warnings hidden: `cq status --wide` shows all)"
    return [Text(text, "dim")] if hidden else []


def _is_prominent(queue: QueueStatus, found: Overview) -> bool:
    """Whether it is no level, or a level whose state or backlog its queue does not have, too."""
    if queue.level_of is None:
        return True
    source = next((each for each in found.queues if each.name == queue.level_of), None)
    states = [] if source is None else queue_states(source, found)
    is_like_source = set(queue_states(queue, found)) <= {"active", *states}
    return not is_like_source or (queue.oldest_seconds or 0.0) > _LATE_SECONDS


def queue_columns(found: Overview) -> list[ShownColumn]:
    """The columns of queues; those shown first are at the left."""

    def lag(queue: QueueStatus) -> float | None:
        return max((each.oldest_seconds or 0.0 for each in found.links_of(queue.name)), default=None)

    return [
        ShownColumn("queue", lambda queue: queue.name, is_essential=True, is_number=False),
        ShownColumn("state", lambda queue: _states(queue_states(queue, found)), True, is_number=False),
        ShownColumn("oldest", lambda queue: age(queue.oldest_seconds), is_essential=True),
        ShownColumn("rows", lambda queue: rough(*_known(queue, queue.rows)), is_essential=True),
        ShownColumn("updates/s", lambda queue: f"{found.activity[queue.name].updates_per_second:,.1f}", True),
        ShownColumn("set aside", lambda queue: f"{queue.aside:,}", is_essential=True),
        ShownColumn("link lag", lambda queue: age(lag(queue))),
        *(_outbox_columns(found) if found.outboxes else ()),
        *(_decision_columns(found) if any("decider" in queue.settings for queue in found.queues) else ()),
        *(_EXPIRY_COLUMNS if any(queue.expiry for queue in found.queues) else ()),
        *(_LEVEL_COLUMNS if any(queue.levels for queue in found.queues) else ()),
        ShownColumn("limits", _limits, is_number=False),
        ShownColumn("bytes", lambda queue: rough(*_known(queue, queue.bytes))),
        ShownColumn("buckets", lambda queue: f"{queue.settings.get('buckets', NO_VALUE)}"),
        ShownColumn("waiting", lambda queue: f"{queue.waiting_buckets:,}"),
        ShownColumn("conflicts", lambda queue: f"{found.activity[queue.name].conflicts:,}"),
    ]


def _known(queue: QueueStatus, number: int) -> tuple[int | None, bool]:
    """A number of a queue, None if its stored data cannot be read, and whether it was counted."""
    return None if queue.problem else number, queue.exact


def _outbox_columns(found: Overview) -> Iterable[ShownColumn]:
    """The columns of outboxes, as their workers read them latest."""

    def rows(queue: QueueStatus) -> str:
        outbox = found.outboxes.get(queue.name)
        if outbox is None or outbox.rows is None:
            return NO_VALUE
        return f"{outbox.rows:,}{'' if outbox.exact else '+'}"

    def oldest(queue: QueueStatus) -> str:
        outbox = found.outboxes.get(queue.name)
        return age(None if outbox is None else outbox.oldest_seconds)

    return ShownColumn("outbox rows", rows), ShownColumn("outbox lag", oldest)


def _decision_columns(found: Overview) -> Iterable[ShownColumn]:
    """The columns of queues with a decider."""

    def refused(queue: QueueStatus) -> str:
        share = found.activity[queue.name].refused_share
        return NO_VALUE if share is None else f"{share:.1%}"

    def answered(queue: QueueStatus) -> str:
        seconds = found.activity[queue.name].answer_seconds
        return NO_VALUE if seconds is None else f"{seconds * 1000:,.1f} ms"

    return ShownColumn("refused", refused), ShownColumn("answered in", answered)


_LEVEL_COLUMNS: Final = (ShownColumn("levels", lambda queue: str(len(queue.levels) or NO_VALUE)),)
_EXPIRY_COLUMNS: Final = (
    ShownColumn("expired", lambda queue: f"{queue.expiry.expired:,}" if queue.expiry else NO_VALUE),
)
WORKER_COLUMNS: Final[Sequence[ShownColumn]] = (
    ShownColumn("worker", lambda worker: worker.id, is_essential=True, is_number=False),
    ShownColumn("state", lambda worker: _states(worker_states(worker)), True, is_number=False),
    ShownColumn("host", lambda worker: worker.host, is_essential=True, is_number=False),
    ShownColumn("pid", lambda worker: str(worker.pid), is_essential=True),
    ShownColumn(
        "passes/s", lambda worker: f"{worker.passes_per_second:,.1f}" if worker.alive else NO_VALUE, True
    ),
    ShownColumn("last beat", lambda worker: age(worker.beat_seconds), is_essential=True),
    ShownColumn("buckets", lambda worker: f"{worker.buckets:,}"),
    ShownColumn(
        "queues", lambda worker: "all" if worker.queues is None else ", ".join(worker.queues), is_number=False
    ),
    ShownColumn("does", lambda worker: ", ".join(worker.roles), is_number=False),
)


def queue_states(queue: QueueStatus, found: Overview) -> list[str]:
    """The states of a queue in words: `active`, or everything that an operator should know."""
    if queue.problem:
        return ["unreadable"]
    outbox = found.outboxes.get(queue.name)
    words = {
        "full": bool(queue.full),
        **{f"link {each.state}": each.has_failed for each in found.links_of(queue.name)},
        **({f"outbox {outbox.state}": outbox.has_failed} if outbox else {}),
        "paused": queue.paused,
        "set aside": bool(queue.aside),
    }
    return [word for word, applies in words.items() if applies] or ["active"]


def worker_states(worker: WorkerStatus) -> list[str]:
    """The state of a worker in a word."""
    return ["dead" if not worker.alive else "stuck" if worker.stuck else "alive"]


def level_of(state: str) -> Level:
    """How urgent a state is."""
    return _LEVELS.get(state, Level.PROBLEM)


def _states(words: Sequence[str]) -> Text:
    """The words, coloured by their urgency."""
    return Text(", ").join(Text(word, _STYLES[level_of(word)]) for word in words)


def _limits(queue: QueueStatus) -> str:
    return limits(queue.max_seconds, queue.max_bytes, queue.when_full) or NO_VALUE
