"""The pages of the dashboard except those of queues: their parts, and the sentence at the top that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cq.admin.queue_status import QueueStatus
from cq.cli.shared.output import quantity
from cq.cli.web.reads import AsideOfQueue, CellsReading
from cq.cli.web.sampler import OVERVIEW, StoreSnapshot, Topic
from cq.cli.web.text import age, first_of
from cq.observers.feeds.tasks import FeedStatus
from cq.observers.monitoring.diagnosis import Check
from cq.observers.monitoring.findings import OF_SYSTEMS, OF_WORKERS, Finding, Level, Remark, find_remarks
from cq.observers.monitoring.link_status import LinkStatus
from cq.observers.monitoring.store_overview import Overview, WorkerStatus


class Verdict(NamedTuple):
    """The sentence at the top, the findings behind it, the most important first, and the number of further ones."""

    level: Level
    sentence: str
    advice: Sequence[Remark] = ()
    more: int = 0


_SECTIONS: Final = {
    **dict.fromkeys((Finding.NO_WORKER, *OF_WORKERS), "/workers"),
    **dict.fromkeys(OF_SYSTEMS, "/links"),
    Finding.FEED: "/feeds",
}
_MAX_ADVICE: Final = 20
_ORDER: Final = list(reversed(Level))


def verdict(snapshot: StoreSnapshot, queue: str | None = None) -> Verdict:
    """The verdict on the whole store, or on one queue and all that it depends on."""
    seen, error = snapshot.value(OVERVIEW, Overview), snapshot.error(OVERVIEW)
    if seen is None or error:
        what = (
            f"{error or 'no answer yet'}. The numbers on this page are the last known ones: run `cq doctor`"
        )
        return Verdict(Level.PROBLEM, f"The store could not be read: {what}")
    queues = [each for each in seen.queues if queue in (None, each.name, each.level_of)]
    found = sorted(_advice(seen, queues, queue), key=lambda each: _ORDER.index(each.level))
    urgent = [each for each in found if each.level in (Level.PROBLEM, Level.WARNING)]
    if not seen.queues:
        return Verdict(Level.NOTE, "This store has no queue yet.")
    if not queues:
        return Verdict(Level.WARNING, f"The queue {queue} was deleted.")
    facts = _facts(seen, queues)
    number = sum(each.level_of is None for each in queues)
    facts = f"{quantity(number, 'queue')}: {facts}" if queue is None else facts[0].upper() + facts[1:]
    if not urgent:
        return Verdict(Level.GOOD, f"All is well. {facts}", *first_of(found, _MAX_ADVICE))
    things = quantity(len(urgent), "thing needs", "things need")
    return Verdict(urgent[0].level, f"{things} your attention. {facts}", *first_of(found, _MAX_ADVICE))


def _facts(seen: Overview, queues: Sequence[QueueStatus]) -> str:
    """A sentence with the most important numbers of these queues."""
    alive = sum(worker.alive for worker in seen.workers)
    oldest = max((queue.oldest_seconds or 0.0 for queue in queues), default=0.0)
    rows = sum(queue.rows for queue in queues)
    waiting = (
        f"{quantity(rows, 'row is', 'rows are')} queued, the oldest for {age(oldest)}"
        if rows
        else "nothing is queued"
    )
    running = f"{quantity(alive, 'worker runs', 'workers run')}" if alive else "no worker runs"
    return f"{waiting}; {running}."


def _advice(seen: Overview, queues: Sequence[QueueStatus], name: str | None) -> list[Remark]:
    """The findings about these queues, and about the store; if `name` is not None, without those of other subjects.

    Those of a queue include the ones of its links, and those of a level the ones of its queue.
    """
    subjects = {"", *(subject for queue in queues for subject in (queue.name, queue.level_of or ""))}
    subjects |= {link.name for queue in queues for link in seen.links_of(queue.name)}
    return [remark for remark in find_remarks(seen) if name is None or remark.name in subjects]


def page_of_remark(remark: Remark) -> str:
    """The path of a page about a finding; empty for none."""
    page = "aside" if remark.finding is Finding.ASIDE else "queues"
    return _SECTIONS.get(remark.finding, f"/{page}/{remark.name}" if remark.name else "")


# The pages


LOOKUP: Final = "lookup"
"""The part that does not change while the page is open."""
NAVIGATION: Final = (
    ("/", "Queues"),
    ("/workers", "Workers"),
    ("/links", "Links"),
    ("/aside", "Set aside"),
    ("/feeds", "Feeds"),
    ("/cells", "Cells"),
    ("/checks", "Checks"),
)
"""(path, name) of the sections."""


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page.

    Attributes:
        path: its address.
        title: its heading.
        section: the entry of the navigation that it belongs to, by its path.
        parts: the templates below the verdict, from top to bottom.
        view: the variables of these templates, from a snapshot.
        topics: what it needs from the store; the last one is its own subject.
        queue: the queue that it is about; empty for none.
    """

    path: str
    title: str
    section: str
    parts: tuple[str, ...]
    view: Callable[[StoreSnapshot], Mapping[str, Any]]
    topics: tuple[Topic, ...] = (OVERVIEW,)
    queue: str = ""

    def variables(self, snapshot: StoreSnapshot) -> dict[str, Any]:
        """The variables of all parts."""
        problem = snapshot.error(self.topics[-1])
        return {"verdict": verdict(snapshot, self.queue or None), "problem": problem, **self.view(snapshot)}


_FEEDS, _CELLS, _CHECKS = Topic("feeds"), Topic("cells"), Topic("checks")
_LINK_LEVELS: Final = {"active": Level.GOOD, "filling": Level.NOTE, "paused": Level.NOTE}


def _workers(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    return {"workers": seen and first_of((*_state(worker), worker) for worker in seen.workers)}


def _state(worker: WorkerStatus) -> tuple[Level, str]:
    if not worker.alive:
        return Level.NOTE, "dead"
    if worker.stuck:
        return Level.PROBLEM, "stuck"
    return (Level.WARNING, "has had errors") if worker.error else (Level.GOOD, "alive")


def _links(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    if seen is None:
        return {"links": None, "outboxes": None}

    def leveled(links: Iterable[LinkStatus]) -> Iterator[tuple[Level, LinkStatus]]:
        return ((_LINK_LEVELS.get(each.state, Level.PROBLEM), each) for each in links)

    return {"links": first_of(leveled(seen.links)), "outboxes": first_of(leveled(seen.outboxes.values()))}


def _all_aside(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    return {"queues": None if seen is None else first_of(each for each in seen.queues if each.aside)}


def _feeds(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    found: list[FeedStatus] | None = snapshot.value(_FEEDS, list)
    return {"feeds": None if found is None else first_of(found)}


def _cells(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    found = snapshot.value(_CELLS, CellsReading)
    return {"cells": found and first_of(found.cells), "moves": found and first_of(found.moves)}


def _checks(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    found: list[Check] | None = snapshot.value(_CHECKS, list)
    return {"checks": found and first_of((Level.GOOD if each.ok else Level.PROBLEM, each) for each in found)}


SECTIONS: Final = {
    page.path: page
    for page in (
        WebPage("/workers", "Workers", "/workers", ("workers",), _workers),
        WebPage("/links", "Links and outboxes", "/links", ("links", "outboxes"), _links),
        WebPage("/aside", "Set aside", "/aside", ("all_aside",), _all_aside),
        WebPage("/feeds", "Feeds", "/feeds", ("feeds",), _feeds, (OVERVIEW, _FEEDS)),
        WebPage("/cells", "Cells", "/cells", ("cells",), _cells, (OVERVIEW, _CELLS)),
        WebPage("/checks", "Checks", "/checks", ("checks",), _checks, (OVERVIEW, _CHECKS)),
    )
}
"""{path: the page}, except the pages of queues."""


def aside_page(name: str) -> WebPage:
    """The page of what was set aside in one queue."""
    path, topic = f"/aside/{name}", Topic("aside", name)

    def view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
        return {"name": name, "found": snapshot.value(topic, AsideOfQueue)}

    return WebPage(path, f"Set aside in {name}", "/aside", ("aside",), view, (OVERVIEW, topic), name)
