"""The page of exports, forwards and outboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cq.cli.web.pages.verdict import Level, verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot
from cq.observers.monitoring.store_overview import Overview

_LEVELS: Final = {"active": Level.GOOD, "filling": Level.NOTE}


def exports_page() -> WebPage:
    """The page of exports, forwards and outboxes."""
    parts = (Part("verdict"), Part("exports"), Part("outboxes"))
    return WebPage("/exports", "Exports, forwards and outboxes", "/exports", (OVERVIEW,), parts, _view)


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    exports = list(seen.exports.values()) if seen else []
    return {
        "verdict": verdict(snapshot),
        "exports": [(_LEVELS.get(each.state, Level.PROBLEM), each) for each in exports],
        "outboxes": [
            (name, "stopped" if stopped else "failing", error)
            for name, (stopped, error) in (seen.outboxes.items() if seen else ())
            if error
        ],
    }
