"""A page: its address, the topics that it needs, and its parts, which are replaced when their content changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cq.cli.web.pages.verdict import verdict
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic

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
