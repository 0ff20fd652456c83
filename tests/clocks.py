"""A machine whose clock of the day is set by the test; all else is the real one's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cq import machine

START: float = 1_700_000_000.0


class Clock(machine.Machine):
    """Attributes: now: seconds since 1970."""

    def __init__(self) -> None:
        self.now = START

    def time_ns(self) -> int:
        return round(self.now * 1000) * 1_000_000


@contextmanager
def set_clock() -> Iterator[Clock]:
    """Until the end of the block, time is what the test says."""
    clock = Clock()
    with machine.used(clock):
        yield clock
