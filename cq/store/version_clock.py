"""Seconds between two versions of a store, without the jumps of versions that this process has seen.

Versions advance by about a million a second. When a FoundationDB cluster recovers, they advance by about 100 million at
once: an age that is computed from versions alone is then 100 s too high. A process recognises such a jump by its own
clock: versions have advanced by far more than time has. Workers observe a version with each beat.

A process cannot know of jumps before the first version that it observed. So there are two ages: `age` may be too high
by these jumps, and `sure_age` does not count the first `UNSEEN_SECONDS` before that version. Code takes the one whose
error does less harm.

A machine that was suspended, whose clock stood still meanwhile, sees a jump where there was none: ages are too low by
that time then. Ages decide policy only, never whether or how often an update counts.
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from cq import runtime
from cq.store.api import VERSIONS_PER_SECOND, seconds_since

UNSEEN_SECONDS: Final = 1_000.0
"""How much of an age may be jumps that this process has not seen: ten recoveries."""
_MIN_JUMP_SECONDS: Final = 5.0  # versions of a cluster do not follow the clock exactly
_MIN_JUMP_SHARE: Final = 0.1
_MAX_JUMPS: Final = 1_000


class _Jump(NamedTuple):
    """A jump: between the versions `first` and `last` no more than `elapsed` versions' time has passed."""

    first: int
    last: int
    elapsed: int

    def skipped(self, since: int) -> int:
        """The versions that were skipped after `since`."""
        return max(0, self.last - max(self.first, since) - self.elapsed)


class VersionClock:
    """The jumps that a process has seen in the versions of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: int | None = None
        self._latest: tuple[int, float] | None = None
        self._jumps: tuple[_Jump, ...] = ()

    def observe(self, version: int, began: float | None = None) -> None:
        """Note a version that the store has given to this process by now.

        `began` is a time by `runtime.monotonic` at which the store had not reached it yet: before a commit was begun
        that has this version. For a read version it is None: an embedded store that is idle gives an old one.
        """
        now = runtime.monotonic()
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
                self._jumps = (*self._jumps, _Jump(latest, version, elapsed))[-_MAX_JUMPS:]
            if is_jump or began is not None:
                self._latest = version, since if began is None else began

    def age(self, version: int, now: int) -> float:
        """The seconds from a version to a later one; too high where versions jumped unseen by this process."""
        skipped = sum(jump.skipped(version) for jump in self._jumps if version < jump.last <= now)
        return seconds_since(version + skipped, now)

    def sure_age(self, version: int, now: int) -> float:
        """The same, but of the time before the first version observed only what exceeds `UNSEEN_SECONDS`."""
        first = min(now, self._first or now)
        if version >= first:
            return self.age(version, now)
        return self.age(first, now) + max(0.0, seconds_since(version, first) - UNSEEN_SECONDS)

    def before(self, now: int, seconds: float) -> int:
        """The version that the store had `seconds` before it had `now`, as far as this process knows of jumps."""
        version = now - int(seconds * VERSIONS_PER_SECOND)
        for jump in reversed(self._jumps):
            if version < jump.last <= now:
                version -= jump.skipped(jump.first)
        return version


_clocks: WeakKeyDictionary[Any, VersionClock] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def clock_of(db: Any) -> VersionClock:
    """The clock of a database, one for all that this process does with it."""
    with _lock:
        return _clocks.setdefault(db, VersionClock())
