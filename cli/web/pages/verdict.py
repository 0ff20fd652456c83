"""The sentence at the top of a page: whether all is well, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cq.admin.queue_status import QueueStatus
from cq.cli.web.pages.text import age, first_of, plural
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot
from cq.observers.monitoring.findings import (
    OF_SYSTEMS,
    OF_WORKERS,
    Finding,
    Level,
    Remark,
    find_remarks,
)
from cq.observers.monitoring.store_overview import Overview


class Advice(NamedTuple):
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


class Verdict(NamedTuple):
    """The sentence at the top, the findings behind it, the most important first, and the number of further ones."""

    level: Level
    sentence: str
    advice: Sequence[Advice] = ()
    more: int = 0


_SECTIONS: Final = {
    **dict.fromkeys((Finding.NO_WORKER, *OF_WORKERS), "/workers"),
    **dict.fromkeys(OF_SYSTEMS, "/links"),
}
_MAX_ADVICE: Final = 20
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
        return Verdict(Level.GOOD, f"All is well. {facts}", *first_of(found, _MAX_ADVICE))
    things = plural(len(urgent), "thing needs", "things need")
    return Verdict(urgent[0].level, f"{things} your attention. {facts}", *first_of(found, _MAX_ADVICE))


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


def _of_remark(remark: Remark) -> Advice:
    page = "aside" if remark.finding is Finding.ASIDE else "queues"
    of_queue = f"/{page}/{remark.name}" if remark.name else ""
    # The text of a pause without an end names the command, which the line below has with the queue's name.
    text = str(remark).replace(" until `cq resume`", "") if remark.finding is Finding.PAUSED else str(remark)
    return Advice(
        remark.level,
        text[0].upper() + text[1:],
        remark.todo,
        remark.command,
        _SECTIONS.get(remark.finding, of_queue),
    )
