"""The sentence at the top of a page: whether all is well, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cq.admin.queue_status import QueueStatus
from cq.cli.web.pages.text import age, plural
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot
from cq.observers.monitoring.store_overview import Finding, Overview, Remark, find_remarks


class Level(StrEnum):
    """How much a finding matters. Pages show its word with its colour."""

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Advice:
    """A finding, and what to do.

    Attributes:
        level: how much it matters.
        text: the finding.
        todo: what to do, a sentence; or empty.
        command: a command that does it; or empty.
        link: the path of a page about it; or empty.
    """

    level: Level
    text: str
    todo: str = ""
    command: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The sentence at the top, and the findings behind it, the most important first."""

    level: Level
    sentence: str
    advice: Sequence[Advice] = ()


_TODO: Final[dict[Finding, tuple[Level, str, str]]] = {
    Finding.NO_WORKER: (
        Level.PROBLEM,
        "Start a worker: it combines queued updates with the values.",
        "cq worker",
    ),
    Finding.NOT_COMBINED: (Level.PROBLEM, "Start a worker for this queue.", "cq worker {name}"),
    Finding.CODE_MISSING: (
        Level.PROBLEM,
        "Start a worker with the application that has the code.",
        "cq worker --app MODULE:APP",
    ),
    Finding.UNREADABLE: (Level.PROBLEM, "Find out which stored data are damaged.", "cq verify {name}"),
    Finding.PAUSED: (
        Level.WARNING,
        "Its updates stay queued. Resume it when the reason is gone.",
        "cq resume {name}",
    ),
    Finding.FULL: (Level.PROBLEM, "Run more workers, or change the limits.", "cq worker --processes 2"),
    Finding.PROGRESS: (Level.NOTE, "Nothing to do: workers finish it.", ""),
    Finding.REFUSED: (Level.NOTE, "Add updates sooner after they happen, or configure a wider window.", ""),
    Finding.LATE: (Level.WARNING, "If it stays so, run more workers.", "cq worker --processes 2"),
    Finding.BUCKETS: (Level.NOTE, "The command is in the text.", ""),
    Finding.EXPORT: (
        Level.PROBLEM,
        "The error says what failed. Workers try again by themselves unless the export is stopped.",
        "cq export list {name}",
    ),
    Finding.OUTBOX: (
        Level.PROBLEM,
        "The error says what failed. Workers try again by themselves unless the outbox is stopped.",
        "cq outbox list {name}",
    ),
    Finding.DEAD_WORKER: (
        Level.NOTE,
        "Other workers do its work. Start another one if you still need it.",
        "",
    ),
    Finding.LEFT_ALONE: (Level.NOTE, "They are paused, or it lacks their code.", ""),
    Finding.WORKER: (Level.WARNING, "Its log has the details.", ""),
}
_SECTIONS: Final = {
    Finding.NO_WORKER: "/workers",
    Finding.EXPORT: "/exports",
    Finding.OUTBOX: "/exports",
    Finding.DEAD_WORKER: "/workers",
    Finding.LEFT_ALONE: "/workers",
    Finding.WORKER: "/workers",
}
_ORDER: Final = list(reversed(Level))


def verdict(snapshot: StoreSnapshot, queue: str | None = None) -> Verdict:
    """The verdict on the whole store, or on one queue and all that it depends on."""
    seen, error = snapshot.value(OVERVIEW, Overview), snapshot.error(OVERVIEW)
    if seen is None or error:
        what = error or "no answer yet"
        return Verdict(Level.PROBLEM, f"The store could not be read: {what}", [_unreadable()])
    queues = [each for each in seen.queues if queue in (None, each.name, each.level_of)]
    found = sorted(_advice(seen, queues, queue), key=lambda each: _ORDER.index(each.level))
    urgent = [each for each in found if each.level in (Level.PROBLEM, Level.WARNING)]
    if not seen.queues:
        return Verdict(Level.NOTE, "This store has no queue yet.", _first_steps(seen))
    facts = _facts(seen, queues)
    number = sum(each.level_of is None for each in queues)
    facts = f"{plural(number, 'queue')}: {facts}" if queue is None else facts[0].upper() + facts[1:]
    if not urgent:
        return Verdict(Level.GOOD, f"All is well. {facts}", found)
    things = plural(len(urgent), "thing needs", "things need")
    return Verdict(urgent[0].level, f"{things} your attention. {facts}", found)


def _unreadable() -> Advice:
    todo = "The numbers on this page are the last known ones. Check the store, and that its servers run."
    return Advice(Level.PROBLEM, "The store does not answer.", todo, "cq doctor")


def _first_steps(seen: Overview) -> list[Advice]:
    steps = [
        Advice(
            Level.NOTE,
            "A queue counts updates by key. Make your first one:",
            command="cq configure words --key str --value int --combiner sum",
        ),
        Advice(Level.NOTE, "Add updates to it:", command="cq add words hello=1 world=2"),
    ]
    if not any(worker.alive for worker in seen.workers):
        steps.append(Advice(Level.NOTE, "Start a worker, which combines them:", command="cq worker"))
    return steps


def _facts(seen: Overview, queues: Sequence[QueueStatus]) -> str:
    """A sentence with the most important numbers of these queues."""
    alive = sum(worker.alive for worker in seen.workers)
    oldest = max((queue.oldest_seconds or 0.0 for queue in queues), default=0.0)
    rows = sum(queue.rows for queue in queues)
    waiting = (
        f"{plural(rows, 'row is', 'rows are')} queued, the oldest for {age(oldest)}"
        if rows
        else "nothing is queued"
    )
    running = f"{plural(alive, 'worker runs', 'workers run')}" if alive else "no worker runs"
    return f"{waiting}; {running}."


def _advice(seen: Overview, queues: Sequence[QueueStatus], name: str | None) -> Iterator[Advice]:
    """The findings about these queues, and about the store; if `name` is not None, without those of other subjects.

    Those of a level include the ones of its queue.
    """
    subjects = {"", *(subject for queue in queues for subject in (queue.name, queue.level_of or ""))}
    for remark in find_remarks(seen):
        if name is None or remark.name in subjects:
            yield _of_remark(remark)
    for queue in queues:
        if queue.aside:
            text = f"Queue {queue.name} has {plural(queue.aside, 'piece')} set aside, as their updates fail"
            todo = "Read the errors, repair the cause, and retry them."
            yield Advice(Level.WARNING, text, todo, f"cq aside list {queue.name}", f"/aside/{queue.name}")


def _of_remark(remark: Remark) -> Advice:
    level, todo, command = _TODO[remark.finding]
    of_queue = f"/queues/{remark.name}" if remark.name else ""
    # The text of a pause without an end names the command, which the line below has with the queue's name.
    text = str(remark).replace(" until `cq resume`", "") if remark.finding is Finding.PAUSED else str(remark)
    return Advice(
        level,
        text[0].upper() + text[1:],
        todo,
        command.format(name=remark.name),
        _SECTIONS.get(remark.finding, of_queue),
    )
