"""The page of the feeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.cli.web.pages.bounded import first_of
from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic
from cq.observers.feeds.tasks import FeedStatus

_FEEDS = Topic("feeds")


def feeds_page() -> WebPage:
    """The page of the feeds."""
    return WebPage("/feeds", "Feeds", "/feeds", (OVERVIEW, _FEEDS), (Part("verdict"), Part("feeds")), _view)


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    found: list[FeedStatus] | None = snapshot.value(_FEEDS, list)
    return {
        "verdict": verdict(snapshot),
        "feeds": None if found is None else first_of(found),
        "problem": snapshot.error(_FEEDS),
    }
