"""The events of this process, as tests wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cq.observers.telemetry.bus import Event, subscribe
from tests.kit.workers import SECONDS


class Events:
    """All events of this process, in their order."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.seen.append(event)
            self._changed.notify_all()

    def of(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """The fields of those of this name that have these."""
        return [
            dict(event.fields)
            for event in self.seen.copy()
            if event.name == name and fields.items() <= event.fields.items()
        ]

    def wait_for(self, name: str, **fields: Any) -> dict[str, Any]:
        """The first such event, once there is one."""
        with self._changed:
            found = self._changed.wait_for(lambda: self.of(name, **fields), SECONDS)
        assert found, f"no {name} with {fields} in {[event.name for event in self.seen]}"
        return found[0]


@pytest.fixture
def events() -> Iterator[Events]:
    """What happens during the test."""
    found = Events()
    end = subscribe(found)
    yield found
    end()
    for event in found.seen:
        assert event.fields.keys() == set(event.kind.fields)
