"""The pages of updates and reports that were set aside: which queues have some, and the keys of one queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.cli.web.pages.bounded import first_of
from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.reads import AsideOfQueue
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic
from cq.observers.monitoring.store_overview import Overview


def all_aside_page() -> WebPage:
    """The page of the queues with updates or reports that were set aside."""
    return WebPage(
        "/aside", "Set aside", "/aside", (OVERVIEW,), (Part("verdict"), Part("all_aside")), _view_all
    )


def aside_page(name: str) -> WebPage:
    """The page of what was set aside in one queue."""
    return WebPage(
        f"/aside/{name}",
        f"Set aside in {name}",
        "/aside",
        (OVERVIEW, Topic("aside", name)),
        (Part("verdict"), Part("aside")),
        lambda snapshot: _view(snapshot, name),
        name,
    )


def _view_all(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    return {
        "verdict": verdict(snapshot),
        "queues": None if seen is None else first_of(each for each in seen.queues if each.aside),
    }


def _view(snapshot: StoreSnapshot, name: str) -> Mapping[str, Any]:
    topic = Topic("aside", name)
    return {
        "verdict": verdict(snapshot, name),
        "name": name,
        "found": snapshot.value(topic, AsideOfQueue),
        "problem": snapshot.error(topic),
    }
