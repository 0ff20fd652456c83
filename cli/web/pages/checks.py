"""The page of the findings of `cq doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic
from cq.observers.monitoring.diagnosis import Check
from cq.observers.monitoring.findings import Level

_CHECKS = Topic("checks")


def checks_page() -> WebPage:
    """The page of the findings."""
    return WebPage(
        "/checks", "Checks", "/checks", (OVERVIEW, _CHECKS), (Part("verdict"), Part("checks")), _view
    )


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    found: list[Check] | None = snapshot.value(_CHECKS, list)
    checks = None if found is None else [(Level.GOOD if each.ok else Level.PROBLEM, each) for each in found]
    return {"verdict": verdict(snapshot), "checks": checks, "problem": snapshot.error(_CHECKS)}
