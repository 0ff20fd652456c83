"""The page of the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.cli.web.pages.bounded import first_of
from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot
from cq.observers.monitoring.findings import Level
from cq.observers.monitoring.store_overview import Overview, WorkerStatus


def workers_page() -> WebPage:
    """The page of the workers."""
    return WebPage("/workers", "Workers", "/workers", (OVERVIEW,), (Part("verdict"), Part("workers")), _view)


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    workers = first_of([] if seen is None else ((*_state(worker), worker) for worker in seen.workers))
    return {"verdict": verdict(snapshot), "workers": workers}


def _state(worker: WorkerStatus) -> tuple[Level, str]:
    if not worker.alive:
        return Level.NOTE, "dead"
    if worker.stuck:
        return Level.PROBLEM, "stuck"
    return (Level.WARNING, "has had errors") if worker.error else (Level.GOOD, "alive")
