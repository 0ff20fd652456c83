"""A page: its address, the topics that it needs, and its parts, which are replaced when their content changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cq.cli.web.sampling.snapshot import StoreSnapshot, Topic


class Part(NamedTuple):
    """A part of a page: the name of its template, and whether it changes while the page is open."""

    name: str
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page.

    Attributes:
        path: its address.
        title: its heading.
        section: the entry of the navigation that it belongs to, by its path.
        topics: what it needs from the store.
        parts: from top to bottom.
        queue: the queue that it is about; empty for none.
        view: the variables of the parts' templates, from a snapshot.
    """

    path: str
    title: str
    section: str
    topics: tuple[Topic, ...]
    parts: tuple[Part, ...]
    view: Callable[[StoreSnapshot], Mapping[str, Any]]
    queue: str = ""


NAVIGATION = (
    ("/", "Queues"),
    ("/workers", "Workers"),
    ("/links", "Links"),
    ("/aside", "Set aside"),
    ("/feeds", "Feeds"),
    ("/cells", "Cells"),
    ("/checks", "Checks"),
)
"""(path, name) of the sections."""
