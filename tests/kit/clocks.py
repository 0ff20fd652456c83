"""A machine whose clock of the day is set by the test; all else is the real one's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cq import runtime

START: float = 1_700_000_000.0


class Clock(runtime.Machine):
    """Attributes: now: seconds since 1970."""

    def __init__(self) -> None:
        self.now = START

    def time_ns(self) -> int:
        return round(self.now * 1000) * 1_000_000


@contextmanager
def set_clock() -> Iterator[Clock]:
    """Until the end of the block, time is what the test says."""
    clock = Clock()
    with runtime.using(clock):
        yield clock


class Standing(Clock):
    """A machine on which no time passes, so nothing gets too old on a slow one."""

    def monotonic(self) -> float:
        return 0.0


class Stopped(runtime.Machine):
    """Time passes only while a thread sleeps, and when the test says so."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Jumping(runtime.Machine):
    """The real one, of which time can be made to pass; embedded stores follow its clock of the day.

    Attributes:
        passed: seconds by which both clocks are ahead.
        jumped: seconds by which the clock of the day is ahead in addition: versions have jumped.
    """

    def __init__(self) -> None:
        self.passed = self.jumped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed

    def time_ns(self) -> int:
        return super().time_ns() + int((self.passed + self.jumped) * 1e9)


@contextmanager
def jumping() -> Iterator[Jumping]:
    """Until the end of the block, time passes, and versions jump, when the test says so."""
    clock = Jumping()
    with runtime.using(clock):
        yield clock
