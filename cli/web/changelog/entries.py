"""The events of a changelog's stream: the start, changes, resets, each with the position after it, and problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cq.encoding.json_values import to_json
from cq.feeds.messages import Message
from cq.observers.feeds.changelog import ChangelogPage, change_of

HEARTBEAT: Final = ": no change\n\n"
"""A comment, which detects closed connections."""


class Entry(NamedTuple):
    """A message of a changelog: its position, and its event; empty if the message is not a change."""

    position: bytes
    text: str


class EntryPage(NamedTuple):
    """A page of a changelog as entries; `begin` and `more` are those of `ChangelogPage`."""

    begin: bytes
    entries: list[Entry]
    more: bool

    @property
    def end(self) -> bytes:
        """The position after this page."""
        return self.entries[-1].position if self.entries else self.begin


def entries_of(page: ChangelogPage) -> EntryPage:
    """The messages of a page as entries."""
    return EntryPage(page.begin, [_entry(message) for message in page.messages], page.more)


def _entry(message: Message[Any]) -> Entry:
    change = change_of(message)
    if change is None:
        return Entry(message.id, "")
    data = {"key": to_json(change.key)}
    if change.old is not None or change.new is not None:
        data |= {"old": to_json(change.old), "new": to_json(change.new)}
    # The event has the position of its own change, not that of its page: a client that has received a part of the page
    # resumes after this part.
    return Entry(message.id, _event(message.id, data))


def start_event(position: bytes) -> str:
    """The first event of a stream: so a client that receives no change resumes from here, too."""
    return _event(position, {"position": position.hex()}, "start")


def reset_event(given: bytes, begin: bytes) -> str:
    """The event for a position that does not count any more: changes between it and `begin` may be missing."""
    reason = (
        "changes after the given position are not stored any more: read all values, then continue from here"
    )
    return _event(begin, {"given": given.hex(), "position": begin.hex(), "reason": reason}, "reset")


def problem_event(reason: str) -> str:
    """The last event of a stream that the server cannot continue; without a position, so the client keeps its own."""
    return f"event: problem\ndata: {json.dumps({'reason': reason})}\n\n"


def _event(position: bytes, data: Mapping[str, Any], name: str = "") -> str:
    # In ASCII: then no character of a value can end a line.
    kind = f"event: {name}\n" if name else ""
    return f"{kind}id: {position.hex()}\ndata: {json.dumps(data)}\n\n"
