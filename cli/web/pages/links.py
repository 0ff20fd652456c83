"""The page of links and outboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cq.cli.web.pages.bounded import first_of
from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot
from cq.observers.monitoring.findings import Level
from cq.observers.monitoring.store_overview import OutboxLag, Overview

_LEVELS: Final = {"active": Level.GOOD, "filling": Level.NOTE, "paused": Level.NOTE}


def links_page() -> WebPage:
    """The page of links and outboxes."""
    parts = (Part("verdict"), Part("links"), Part("outboxes"))
    return WebPage("/links", "Links and outboxes", "/links", (OVERVIEW,), parts, _view)


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    links = seen.links if seen else []
    return {
        "verdict": verdict(snapshot),
        "links": first_of((_LEVELS.get(each.state, Level.PROBLEM), each) for each in links),
        "outboxes": first_of([] if seen is None else (_outbox(seen, name) for name in _outboxes(seen))),
    }


def _outboxes(seen: Overview) -> list[str]:
    """The queues with an outbox that a worker has read, or that has an error."""
    failing = {name for name, (_, error) in seen.outboxes.items() if error}
    return sorted(failing | seen.outbox_lags.keys())


def _outbox(seen: Overview, name: str) -> tuple[str, Level, str, OutboxLag | None, str]:
    """The queue of an outbox, its state, its rows, and its error."""
    stopped, error = seen.outboxes.get(name, (False, ""))
    state = "stopped" if stopped else "failing" if error else "active"
    return name, Level.PROBLEM if error else Level.GOOD, state, seen.outbox_lags.get(name), error
