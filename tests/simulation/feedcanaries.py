"""Variants of feeds that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from cq.observers.feeds import deliver
from cq.observers.feeds.trim import FeedTrimTask
from tests.simulation.store import Reads, SimTransaction


def delivers_without_the_lock() -> Any:
    """Two deliveries to one group do not conflict."""
    get = Reads.get

    def weak(self: Reads, key: bytes) -> Any:
        is_lock = isinstance(self, SimTransaction) and key.startswith(b"cq/f/feed/h")
        return get(self.snapshot if is_lock else self, key)

    return patch.object(Reads, "get", weak)


def delivers_to_members_of_now() -> Any:
    """A message reaches those who are members when it is delivered."""
    return patch.object(deliver, "is_member", lambda events, message: events[-1].joined)


def clears_notes_blindly() -> Any:
    """A step takes away that a receiver or a group has work, though more has come since it has read."""

    def clear(self: SimTransaction, key: bytes, value: bytes) -> None:
        self.inner.clear(key)

    return patch.object(SimTransaction, "compare_and_clear", clear, create=True)


def removes_without_a_word() -> Any:
    """Messages that are too many are removed without a note of it."""

    def remove(self: Any, tr: Any, receiver: bytes, until: bytes, number: int) -> None:
        tr.clear_range(*self.keys.messages_through(receiver, until))
        tr.clear_range(*self.keys.numbers_through(receiver, number))

    return patch.object(FeedTrimTask, "_remove", remove)


FEEDING: Final[dict[Callable[[], Any], int]] = {
    delivers_without_the_lock: 60,
    delivers_to_members_of_now: 20,
    clears_notes_blindly: 60,
    removes_without_a_word: 20,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
