"""The seconds between two versions of a store, corrected for version jumps.

Versions advance by about a million a second. When a FoundationDB cluster recovers, they jump by about 100 million: an
age computed from versions alone is then 100 s too high. A process detects such a jump by its own clock: versions
advance much faster than time. Workers observe a version with each heartbeat.

A process does not know of jumps before the first version that it observed. So there are two ages: `age` may be too high
by these jumps, and `sure_age` ignores up to `UNSEEN_SECONDS` of the time before that version. Code uses the age whose
error does less harm.

An embedded store follows the clock of the day. If that was ahead and was set back, versions have jumped, too, by as
much as they are ahead. A process that starts then finds this out by its clock, so that nothing is removed early.

While a machine is suspended, its clock stands still. A process on it then detects a jump by mistake, and ages are too
low by the time of the suspension. Ages decide policy only, never whether or how often an update counts.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from cq import runtime
from cq.store.api import VERSIONS_PER_SECOND, is_local, seconds_since

UNSEEN_SECONDS: Final = 1_000.0
"""The part of an age that may be due to jumps unknown to this process: ten recoveries."""
_MIN_JUMP_SECONDS: Final = 5.0  # shorter differences occur without a jump
_MIN_JUMP_SHARE: Final = 0.1
_MAX_JUMPS: Final = 1_000


class _Jump(NamedTuple):
    """A jump: the time between the versions `first` and `last` was at most that of `elapsed` versions."""

    first: int
    last: int
    elapsed: int

    def skipped(self, since: int) -> int:
        """The number of skipped versions after `since`."""
        return max(0, self.last - max(self.first, since) - self.elapsed)


class VersionClock:
    """The version jumps of one store that this process has observed. Thread-safe.

    Args:
        is_local: whether the versions of the store follow the clock of the day.
    """

    def __init__(self, *, is_local: bool = False) -> None:
        self._lock = threading.Lock()
        self._ahead: tuple[_Jump, ...] | None = None if is_local else ()  # None: not compared yet
        self._first: int | None = None
        self._latest: tuple[int, float] | None = None
        self._jumps: tuple[_Jump, ...] = ()

    def observe(self, version: int, began: float | None = None) -> None:
        """Record a version that this process has received from the store.

        `began` is a time, by `runtime.monotonic`, before the store reached this version: the start of the commit with
        this version. For a read version it is None, since an idle embedded store returns an old version.
        """
        now = runtime.monotonic()
        self._compare(version)
        with self._lock:
            if self._first is None:
                self._first = version
            if self._latest is None:
                if began is not None:
                    self._latest = version, began
                return
            latest, since = self._latest
            if version <= latest:
                return
            elapsed = int((now - since) * VERSIONS_PER_SECOND)
            skipped = version - latest - elapsed
            is_jump = skipped > _MIN_JUMP_SECONDS * VERSIONS_PER_SECOND + _MIN_JUMP_SHARE * elapsed
            if is_jump:
                # A new tuple: `age` reads it without the lock.
                self._jumps = (*self._jumps, _Jump(latest, version, elapsed))[-_MAX_JUMPS:]
            if is_jump or began is not None:
                self._latest = version, since if began is None else began

    def age(self, version: int, now: int) -> float:
        """The seconds from a version to a later one; too high after jumps that this process did not observe."""
        skipped = sum(jump.skipped(version) for jump in self._jumps if version < jump.last <= now)
        return seconds_since(version + skipped, now)

    def sure_age(self, version: int, now: int) -> float:
        """Same as `age`, but without up to `UNSEEN_SECONDS` of the time before the first observed version."""
        first = min(now, self._first or now)
        if version >= first:
            return self.age(version, now)
        return self.age(first, now) + max(0.0, seconds_since(version, first) - UNSEEN_SECONDS)

    def before(self, now: int, seconds: float) -> int:
        """The version of the store `seconds` before `now`, corrected for jumps.

        Callers remove what is older. So a clock that was set back counts as a jump, too. For `age` it does not: each
        process would count from its own start, and find no worker dead that died shortly before.
        """
        version = now - int(seconds * VERSIONS_PER_SECOND)
        for jump in reversed((*self._compare(now), *self._jumps)):
            if version < jump.last <= now:
                version -= jump.skipped(jump.first)
        return version

    def _compare(self, version: int) -> tuple[_Jump, ...]:
        """A jump, if the first version that this process sees is ahead of the clock; else empty."""
        if self._ahead is None:
            clock = runtime.time_ns() * VERSIONS_PER_SECOND // 10**9
            is_ahead = version - clock > _MIN_JUMP_SECONDS * VERSIONS_PER_SECOND
            self._ahead = (_Jump(clock, version, 0),) if is_ahead else ()
        return self._ahead


_clocks: WeakKeyDictionary[Any, VersionClock] = WeakKeyDictionary()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread that does not exist in the child may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def clock_of(db: Any) -> VersionClock:
    """The clock of a database, shared by all its users in this process."""
    with _lock:
        return _clocks.setdefault(db, VersionClock(is_local=is_local(db)))
