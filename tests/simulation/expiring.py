"""The system of expiries: keys that are updated for a while, and deleted when they have had no update for a period.

The model has each committed update with its time. A key that loses its value has expired, or it had the value when the
queue was purged, as all updates are positive. No update of an expired key may be younger than the period, and all that
its new value can have are updates committed after the read version of the pass that deleted it. Now and then each
value, with the updates that wait, must be that of the updates since the latest deletion of its key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq.admin.purging import purging_buckets
from cq.config.expiry import KEY, ExpirySpec
from cq.config.queue import read_config
from cq.keys import QueueKeys, below
from cq.keys.expiry import ExpiryKeys
from cq.keys.missed import MissedKeys
from cq.passes.plan import Limits
from cq.verify.layout import parse
from cq.verify.queue import verify
from tests.simulation.hub import Process
from tests.simulation.model import Added, Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount
from tests.simulation.store import CommitRequest

SUMS: Final = "sums"
PEAKS: Final = "peaks"
HOURS: Final = "hours"
_COMBINED: Final[dict[str, Callable[[Iterable[int]], int]]] = {SUMS: sum, PEAKS: max, HOURS: sum}
_LAST: Final = 5


@dataclass(frozen=True)
class Told:
    """A pass reports a change."""

    queue: str
    change: cq.Change


@dataclass(frozen=True)
class Update:
    """A committed update."""

    version: int
    at: float
    number: int


@dataclass
class Expected:
    """What must be in a queue.

    Attributes:
        updates: {key: its updates since it was last deleted}.
        values: {key: value} as stored after the latest commit.
        view: {key: value} as reported.
        aside: {key: updates set aside} after the latest commit.
        purged: keys whose value a purge has not deleted yet.
        shortest: the shortest period so far.
    """

    updates: dict[Any, list[Update]] = field(default_factory=dict)
    values: dict[Any, int] = field(default_factory=dict)
    view: dict[Any, int] = field(default_factory=dict)
    aside: dict[Any, list[int]] = field(default_factory=dict)
    purged: set[Any] = field(default_factory=set)
    shortest: float = 1e9


class Expiries(Recount):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (SUMS, PEAKS, HOURS)
    adders: ClassVar[tuple[int, int]] = (1, 2)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.expected = {name: Expected() for name in self.queues}
        self.keys = "abcdefgh"[: self.rng.randint(1, 8)]
        self.limits = Limits(
            read_bytes=self.rng.choice((100, 2_000, 240_000)),
            load_bytes=self.rng.choice((200, 200_000)),
            write_bytes=self.rng.choice((1_000, 400_000)),
            max_report=self.rng.choice((1, 3, 1_000)),
        )

    def make(self) -> None:
        for name in self.queues:
            self.app().configure(
                self.inner,
                name,
                key=(str, int) if name == HOURS else str,
                combiner="maximum" if name == PEAKS else "sum",
                buckets=self.rng.randint(1, 3),
                expire=self._drawn_spec(name),
                audit=name == SUMS and "audit" in self.plan,
            )

    def app(self) -> cq.App:
        """The observers, which note what they are told; the queue of peaks has none."""
        app = cq.App()
        for name in (SUMS, HOURS):

            def told(tr: Any, changes: list[cq.Change], name: str = name) -> None:
                tr.notes += [Told(name, change) for change in changes]

            app.queue(name, observers=[cq.Observer("told", 1, told)])
        return app

    def _drawn_spec(self, name: str) -> ExpirySpec:
        return self._spec(name, self.rng.choice((1, 5, 20)))

    def _spec(self, name: str, seconds: int) -> ExpirySpec:
        self.expected[name].shortest = min(self.expected[name].shortest, seconds)
        return ExpirySpec(seconds, self.rng.randint(1, seconds), KEY if name == HOURS else "update")

    def drawn(self) -> Added:
        rng = self.hub.rng
        name = rng.choice(self.queues)
        keys: list[Any] = [rng.choice(self.keys) for _ in range(rng.randint(1, 3))]
        if name == HOURS:
            keys = [(key, int(self.now) // 5 * 5 - 5 * rng.randint(0, 2)) for key in keys]
        return Added(name, tuple((key, rng.randint(1, 3)) for key in keys), self.new_operation())

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        def switch(name: str) -> None:
            cq.configure(db, name, expire=False)
            self.hub.wait(self.hub.rng.expovariate(1 / 2.0))
            cq.configure(db, name, expire=self._drawn_spec(name))

        return {
            "period": lambda name: cq.configure(db, name, expire=self._drawn_spec(name)),
            "switch": switch,
        }

    # What is committed

    def count(self, note: Added | Purged | Told, version: int) -> None:
        if isinstance(note, Added):
            for key, number in note.updates:
                of_key = self.expected[note.queue].updates.setdefault(key, [])
                of_key.append(Update(version, self.now, number))
        elif isinstance(note, Purged):
            expected = self.expected[note.queue]
            expected.purged, expected.updates = set(expected.values), {}

    def committed(self, tr: CommitRequest) -> None:
        """Compare the deletions and reports of a transaction with what there is."""
        for name, expected in self.expected.items():
            before, after = expected.values, self.stored(name)
            self._note_retried(name)
            for key in before.keys() - after.keys() - expected.purged:
                self._deleted(name, key, tr.read_version)
            for note in tr.notes:
                if isinstance(note, Told) and note.queue == name:
                    self._told(expected, note.change)
            expected.values = after
            expected.purged &= after.keys()

    def _note_retried(self, name: str) -> None:
        """An update that was set aside and is queued again has the version of the retry."""
        expected = self.expected[name]
        before, expected.aside = expected.aside, self.aside(name)
        for key, numbers in before.items():
            updates = expected.updates.get(key, [])
            for number in (Counter(numbers) - Counter(expected.aside.get(key, ()))).elements():
                position = next((at for at, each in enumerate(updates) if each.number == number), None)
                if position is not None:  # else it was purged
                    updates.append(replace(updates.pop(position), version=self.version))

    def _deleted(self, name: str, key: Any, read_version: int) -> None:
        """Raises `Violation` if a key has expired too early."""
        expected = self.expected[name]
        updates = expected.updates.get(key, [])
        gone = [each for each in updates if each.version <= read_version]
        aside = self.aside(name).get(key, [])
        # Updates that were set aside are not combined: they stay, and do not count for the time of their key.
        expected.updates[key] = [Update(0, 0.0, number) for number in aside]
        expected.updates[key] += [each for each in updates if each.version > read_version]
        latest = key[1] if name == HOURS else max((each.at for each in gone if not aside), default=0.0)
        early = latest + expected.shortest - self.now - 2 * self.skew  # of the two workers
        if early > 0:
            raise Violation(f"{name}: {key!r} has expired {early:.3f} s too early")

    def _told(self, expected: Expected, change: cq.Change) -> None:
        """Raises `Violation` unless the old value is the one reported before, and the cause is true."""
        key, old = change.key, expected.view.pop(change.key, None)
        if old != change.old:
            raise Violation(f"{change} is reported, and the observer has {old}")
        if change.new is not None:
            expected.view[key] = change.new
        cause = "updates"  # also of a report that was missed before
        if change.new is None and key in expected.values:
            cause = "purge" if key in expected.purged else "expiry"
        if change.cause != cause:
            raise Violation(f"{change} is reported, and the cause is {cause}")

    def look(self) -> None:
        """Raises `Violation` unless values, waiting updates and reports are those of the updates."""
        for name, expected in self.expected.items():
            missed = self._missed(name)
            view, values = (
                {key: value for key, value in found.items() if key not in missed}
                for found in (expected.view, expected.values)
            )
            if name != PEAKS and view != values:
                raise Violation(f"{name}: the observer has {view}, and stored is {values}")
            if purging_buckets(self.inner, name):
                continue
            found = {key: _COMBINED[name](parts) for key, parts in self.parts(name).items()}
            of_updates = {key: [each.number for each in some] for key, some in expected.updates.items()}
            wanted = {key: _COMBINED[name](some) for key, some in of_updates.items() if some}
            if found != wanted:
                raise Violation(f"{name}: with waiting updates there is {found}, and of the updates {wanted}")

    def _missed(self, name: str) -> set[Any]:
        """The keys of which the observer missed a report."""
        snapshot = self.inner.create_transaction().snapshot
        keys, key_type = MissedKeys(name), read_config(snapshot, name).key
        rows = snapshot.get_range(*keys.of_generations())
        return {key_type.decode(parse("g4 h4 key", row.key[len(keys.prefix) + 1 :])[2]) for row in rows}

    # The end

    def finish(self, process: Process) -> None:
        """Let all keys expire."""
        for name in self.queues:
            cq.configure(self.db(process), name, expire=self._spec(name, _LAST))
        self._verify()

    def ranges(self, name: str) -> dict[str, tuple[bytes, bytes]]:
        expiry = ExpiryKeys(name)
        return {
            "values": QueueKeys(name).values(),
            **super().ranges(name),
            "entries": expiry.entries(),
            "times": below(expiry.time(b"")),
            "progress": (expiry.progress, expiry.progress + b"\0"),
        }

    def check(self) -> None:
        """Nothing is left, and the observers know it."""
        self._verify()
        for name, expected in self.expected.items():
            if expected.view:
                raise Violation(f"{name}: long after, the observer has {expected.view}")

    def _verify(self) -> None:
        for name in self.queues:
            if wrong := list(verify(self.inner, name)):
                raise Violation(f"{name}: verification finds {wrong[0]}")
