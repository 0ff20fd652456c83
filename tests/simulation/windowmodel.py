"""What a window must have, by a record of its updates that shares no code with cq.

An update is in the slice that has its time, under the length of slices that is in force when a pass takes it. It counts
from its commit on, until a width after the end of the slice. A slice that a worker may have deleted, by its clock and
under any width since then, is uncertain: for example after the width is reduced and then increased again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from cq.admin.purging import count_purging
from cq.config.queue import QueueConfig, read_config
from cq.keys import QueueKeys, version_of
from cq.keys.missed import MissedKeys
from cq.passes.plan import Limits
from cq.queue.rows import decode_row, timed
from cq.queue.set_aside import read_aside
from cq.store.api import TransactionRead
from cq.windows import Window
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Recount
from tests.simulation.scenario import check_verified

NEVER: Final = -inf
"""The end of the slice of an update that is in no slice, as the queue had no window when a pass took it."""


@dataclass
class Timed:
    """An update that is committed.

    Attributes:
        at: its time, in milliseconds.
        end: the end of its slice, in milliseconds; None until a pass takes it.
        taken: the version of this pass's commit.
        taken_at: its true time, in milliseconds.
        listed_until: until when workers keep its key in the list of keys of a window that reads merge.
    """

    version: int
    key: Any
    update: Any
    at: int
    end: float | None = None
    taken: float = inf
    taken_at: float = inf
    listed_until: float = inf


class WindowModel:
    """One queue with a window.

    Args:
        name: the name of the queue.
        skew: by how many seconds clocks may be wrong.
        merges: whether reads merge slices, which are kept for two slices more, and find keys in a list that expires.

    Attributes:
        updates: the committed updates that no purge has dropped, in commit order.
        over: the latest end of a slice that a worker may have deleted, in milliseconds.
        purged: the version of the latest purge, or of the latest removal of the window.
    """

    def __init__(self, name: str, skew: float, *, merges: bool = False) -> None:
        self.name, self.merges = name, merges
        self.skew = ceil(1000 * skew)
        self.updates: list[Timed] = []
        self.over = NEVER
        self.purged = 0

    def add(self, version: int, updates: Iterable[tuple[Any, Any, int | None]]) -> None:
        """A transaction with these updates, each with key and time, is committed; None: they have no time."""
        for key, update, at in updates:
            self.updates.append(Timed(version, key, update, at or 0, NEVER if at is None else None))

    def purge(self, version: int) -> None:
        """A purge is committed."""
        self.updates, self.purged = [], version

    def committed(self, snapshot: TransactionRead, version: int, now: int) -> None:
        """A transaction is committed: note which updates a pass has taken, and what workers may have deleted."""
        config = read_config(snapshot, self.name)
        window = config.window
        if window is None and any(each.end not in (None, NEVER) for each in self.updates):
            self.purged = version
            for each in self.updates:
                each.end = NEVER if each.end is not None else None
        queued = list(_queued(snapshot, config))
        for each in reversed(self.updates):
            if each.end is not None:
                continue
            # Passes take the updates of a key in order, so the last ones remain.
            if (each.version, each.key) in queued:
                queued.remove((each.version, each.key))
            else:
                each.end = NEVER if window is None else end_of_slice(config, each.at)
                each.taken, each.taken_at = version, now
        if window is None:
            self.over = NEVER
            return
        kept = window.width + 2 * window.slice * self.merges
        self.over = max(self.over, now + self.skew - kept)
        for each in self.updates:
            listed = each.taken_at + window.width + 3 * window.slice - 2 * self.skew
            each.listed_until = min(each.listed_until, listed)

    def inside(self, config: QueueConfig, now: float, version: float = inf) -> Iterator[tuple[Timed, float]]:
        """The updates that a reader sees at a version and a time, each with the end of its slice."""
        window = config.window
        if window is None:
            return
        for each in self.updates:
            end = (
                each.end if each.end is not None and each.taken <= version else end_of_slice(config, each.at)
            )
            # A reader of slices sees those up to a slice ahead of its clock; an adder's clock may be ahead.
            is_ahead = self.merges and end > end_of_slice(config, int(now) + window.slice)
            if each.version <= version and end + window.width > now and not is_ahead:
                yield each, end

    def uncertain(self, config: QueueConfig, now: float, version: float = inf) -> set[Any]:
        """The keys with an update inside that a worker may have deleted already."""
        return {each.key for each, end in self.inside(config, now, version) if end <= self.over}

    def unlisted(self, config: QueueConfig, now: float, present: float, version: float = inf) -> set[Any]:
        """The keys with updates inside that a worker may have deleted from a list of keys, until the present."""
        if not self.merges:
            return set()
        inside = [each for each, _ in self.inside(config, now, version)]
        return {each.key for each in inside} - {each.key for each in inside if each.listed_until > present}


class Windowed(Recount):
    """A run of a system with windows, and with a reader in the middle of everything, by another clock."""

    max_skew: ClassVar[float] = 2.0
    """With 100 s, no window would have an update that must be in it."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.limits = _small_limits(self.rng)

    @property
    def names(self) -> tuple[str, ...]:
        snapshot = self.inner.create_transaction().snapshot
        return tuple(each for name in self.queues for each in read_config(snapshot, name).names)

    def begin(self) -> None:
        super().begin()
        self.start_process("reader", "read", self._read_all)

    def _read_all(self, process: Process) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(4.0))
            self.attempt(partial(self.read, self.db(process)))

    @abstractmethod
    def read(self, db: Any) -> None:
        """Read what a user reads, and compare it with the model. Raises `Violation`."""

    def verify(self) -> None:
        """Raises `Violation` if `cq verify` finds anything."""
        for name in self.names:
            check_verified(self.inner, name)

    def check(self) -> None:
        self.look()
        self.verify()


def end_of_slice(config: QueueConfig, at: int) -> int:
    """The end of the slice with a time, in milliseconds."""
    step = config.window.slice if config.window else 1
    return (at // step + 1) * step


def is_settled(snapshot: TransactionRead, name: str) -> bool:
    """Whether no purge is under way, and no update or report of the slices and the totals is set aside."""
    config = read_config(snapshot, name)
    parts = [each for each in config.level_names if each in (config.slices_name, config.totals_name)]
    configs = [read_config(snapshot, each) for each in (name, *config.level_names)]
    return not any(count_purging(snapshot, each) for each in configs) and not any(
        read_aside(snapshot, each, limit=1) or missed_any(snapshot, each) for each in parts
    )


def read_items(window: Window[Any, Any], snapshot: TransactionRead, now: float) -> list[tuple[Any, Any]]:
    """The keys in a window with their totals, with all that is queued; the same without it if nothing is queued."""
    found = window.items(snapshot, pending=True, now=now).items
    config = read_config(snapshot, window.name)
    queues = [QueueKeys(each) for each in (config.name, config.slices_name, config.totals_name)]
    ranges = [bounds for each in queues for bounds in (each.all_rows(), each.all_staged())]
    if not any(snapshot.get_range(*bounds, limit=1).to_list() for bounds in ranges):
        combined = window.items(snapshot, now=now).items
        if combined != found:
            raise Violation(
                f"nothing is queued, and {window.name} has {combined}, with queued updates {found}"
            )
    return found


def missed_any(snapshot: TransactionRead, name: str) -> bool:
    """Whether an observer of a queue has missed a report."""
    return bool(snapshot.get_range(*MissedKeys(name).of_generations(), limit=1).to_list())


def _small_limits(rng: Random) -> Limits:
    """Limits of passes that often take only a part of what is queued, of one row, and that stage updates."""
    write_bytes = rng.choice((300, 1_000, 200_000))
    return Limits(
        read_bytes=rng.choice((200, 2_000, 240_000)),
        write_bytes=write_bytes,
        observer_bytes=write_bytes,
        repack_bytes=write_bytes // 2,
    )


def _queued(snapshot: TransactionRead, config: QueueConfig) -> Iterator[tuple[int, Any]]:
    """(version, key) of each queued update with a time."""
    for found in snapshot.get_range(*QueueKeys(config.name).all_rows()):
        row = decode_row(found.key, found.value)
        version = version_of(row.versionstamp)
        for encoded, _, _ in timed([row]):
            yield version, config.key.decode(encoded)


def milliseconds(seconds: float) -> int:
    """Times count in milliseconds, rounded up; what a float of today's seconds cannot tell is no part of one."""
    return ceil(round(seconds * 1000, 3))
