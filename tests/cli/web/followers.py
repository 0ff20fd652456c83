"""Clients of changelogs: each reads the events of a stream, and remembers its position as browsers do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.cli.web.dashboards import SECONDS, TOKEN

TOKEN_HEADER = {"Authorization": f"Bearer {TOKEN}"}


class ChangelogEvent(NamedTuple):
    """An event: its name, its position and its data."""

    name: str
    position: str
    data: dict[str, Any]

    @property
    def change(self) -> tuple[Any, Any, Any]:
        """Key, old and new value."""
        return self.data["key"], self.data["old"], self.data["new"]


@contextmanager
def following(url: str, queue: str, position: str = "", **params: str) -> Iterator[Iterator[ChangelogEvent]]:
    """The events of a stream, of which the first is always its start; a comment has the name ":"."""
    headers = {**TOKEN_HEADER, **({"Last-Event-ID": position} if position else {})}
    with (
        httpx.Client(base_url=url, timeout=SECONDS) as client,
        client.stream("GET", f"/changelog/{queue}", params=params, headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events_of(answer.iter_lines())
        start = next(found)
        assert (start.name, start.data) == ("start", {"position": start.position})
        yield found


def events_of(lines: Iterator[str]) -> Iterator[ChangelogEvent]:
    """The events in the lines of a stream."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield ChangelogEvent(
                fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
            )
        elif "" in fields:
            yield ChangelogEvent(":", "", {})
        fields = {}
