"""The page of updates and reports that were set aside, of all queues or of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cq.cli.web.pages.verdict import verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.reads import MOST_ASIDE, AsideOfQueue
from cq.cli.web.sampling.snapshot import OVERVIEW, StoreSnapshot, Topic
from cq.failure import KeyFailure
from cq.queue.set_aside import failures_by_key


@dataclass(frozen=True, slots=True)
class AsideKey:
    """A key with the updates of it that were set aside.

    Attributes:
        key: None for an unreadable row.
        failure: of its last piece, with the times and tries of all.
        updates: their number; 0 for a missed report.
    """

    key: Any
    failure: KeyFailure
    updates: int


@dataclass(frozen=True, slots=True)
class AsideTable:
    """The keys of a queue with updates or reports that were set aside; `is_cut` if there may be more."""

    queue: str
    keys: Sequence[AsideKey]
    is_cut: bool
    problem: str


def aside_page(name: str = "") -> WebPage:
    """The page of what was set aside, of one queue or of all."""
    topics = (OVERVIEW, Topic("aside", name))
    title = f"Set aside in {name}" if name else "Set aside"
    path = f"/aside/{name}" if name else "/aside"
    parts = (Part("verdict"), Part("aside"))
    return WebPage(path, title, "/aside", topics, parts, lambda snapshot: _view(snapshot, name), name)


def _view(snapshot: StoreSnapshot, name: str) -> Mapping[str, Any]:
    topic = Topic("aside", name)
    found: list[AsideOfQueue] | None = snapshot.value(topic, list)
    tables = None if found is None else [_table(each) for each in found if each.pieces or each.problem]
    return {"verdict": verdict(snapshot, name or None), "tables": tables, "problem": snapshot.error(topic)}


def _table(found: AsideOfQueue) -> AsideTable:
    keys = {piece.encoded_key: key for key, piece in found.pieces}
    failures = failures_by_key(piece for _, piece in found.pieces)
    rows = [AsideKey(keys[encoded], failure, number) for encoded, (failure, number) in failures.items()]
    return AsideTable(found.name, rows, len(found.pieces) == MOST_ASIDE, found.problem)
