"""The pages of the sections of the dashboard, and the page of what was set aside in one queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cq.cli.web.pages.text import first_of
from cq.cli.web.pages.web_page import WebPage
from cq.cli.web.sampling.reads import AsideOfQueue, CellsReading
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic
from cq.observers.feeds.tasks import FeedStatus
from cq.observers.monitoring.diagnosis import Check
from cq.observers.monitoring.findings import Level
from cq.observers.monitoring.link_status import LinkStatus
from cq.observers.monitoring.store_overview import Overview, WorkerStatus

_FEEDS, _CELLS, _CHECKS = Topic("feeds"), Topic("cells"), Topic("checks")
_LINK_LEVELS: Final = {"active": Level.GOOD, "filling": Level.NOTE, "paused": Level.NOTE}


def _workers(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    return {"workers": first_of((*_state(worker), worker) for worker in (seen.workers if seen else ()))}


def _state(worker: WorkerStatus) -> tuple[Level, str]:
    if not worker.alive:
        return Level.NOTE, "dead"
    if worker.stuck:
        return Level.PROBLEM, "stuck"
    return (Level.WARNING, "has had errors") if worker.error else (Level.GOOD, "alive")


def _links(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    if seen is None:
        return {"links": first_of(()), "outboxes": first_of(())}

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
    checks = None if found is None else [(Level.GOOD if each.ok else Level.PROBLEM, each) for each in found]
    return {"checks": checks}


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
