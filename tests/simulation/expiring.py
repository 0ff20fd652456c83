"""The system of expiries: keys that are updated for a while, and deleted when they have had no update for a period.

The model has each committed update with its time. A key that loses its value has expired, or it had the value when the
queue was purged, as all updates are positive. No update of an expired key may be younger than the period, and all that
its new value can have are updates committed after the read version of the pass that deleted it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq.admin.purge import is_purging
from cq.config.expiry import KEY, ExpirySpec
from cq.config.queue import read_config
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.keys.expiry import ExpiryKeys
from cq.keys.missed import MissedKeys
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.queue.missed_reports import retry_missed
from cq.queue.set_aside import read_aside, retry_aside
from cq.store.api import error_code
from cq.store.transact import transact
from cq.verify.queue import verify
from tests.simulation.actors import WorkerPool
from tests.simulation.hub import START_NS, Process
from tests.simulation.model import Added, Violation
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario
from tests.simulation.store import CommitRequest

SUMS: Final = "sums"
PEAKS: Final = "peaks"
HOURS: Final = "hours"
QUEUES: Final = (SUMS, PEAKS, HOURS)
_COMBINED: Final[dict[str, Callable[[Iterable[int]], int]]] = {SUMS: sum, PEAKS: max, HOURS: sum}
_MOST_SKEW: Final = 200.0
_LOOK_COMMITS: Final = 8
_LAST: Final = 5


@dataclass(frozen=True)
class Purged:
    """A queue is purged."""

    queue: str


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
        purged: keys whose value a purge has not deleted yet.
        shortest: the shortest period so far.
        is_exact: whether no update was set aside, so that all are in the value or queued.
    """

    updates: dict[Any, list[Update]] = field(default_factory=dict)
    values: dict[Any, int] = field(default_factory=dict)
    view: dict[Any, int] = field(default_factory=dict)
    purged: set[Any] = field(default_factory=set)
    shortest: float = 1e9
    is_exact: bool = True


class Expiries(Scenario):
    """One run."""

    beginners: ClassVar[tuple[str, ...]] = ("add", "change", "restart")

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.expected = {name: Expected() for name in QUEUES}
        self.operations: dict[str, Added] = {}
        self.seen: set[str] = set()
        self.workers = WorkerPool(self, self._worker)
        self.pause = self.rng.choice((0.05, 0.3, 1.0))
        self.keys = "abcdefgh"[: self.rng.randint(1, 8)]
        self._tokens = self._commits = 0
        self._limits = Limits(
            read_bytes=self.rng.choice((100, 2_000, 240_000)),
            load_bytes=self.rng.choice((200, 200_000)),
            write_bytes=self.rng.choice((1_000, 400_000)),
            max_report=self.rng.choice((1, 3, 1_000)),
        )

    def begin(self) -> None:
        for name in QUEUES:
            self.app().configure(
                self.inner,
                name,
                key=(str, int) if name == HOURS else str,
                combiner="maximum" if name == PEAKS else "sum",
                buckets=self.rng.randint(1, 3),
                expire=self._drawn_spec(name),
                audit=name == SUMS and "audit" in self.plan,
            )
        for _ in range(self.rng.randint(1, 2)):
            self._start_adder()
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self._start_administrator()

    def app(self) -> cq.App:
        """The observers, which note what they are told; the queue of peaks has none."""
        app = cq.App()
        for name in (SUMS, HOURS):

            def told(tr: Any, changes: list[cq.Change], name: str = name) -> None:
                tr.notes += [Told(name, change) for change in changes]

            app.queue(name, observers=[cq.Observer("told", 1, told)])
        return app

    def _drawn_spec(self, name: str) -> ExpirySpec:
        seconds = self.rng.choice((1, 5, 20))
        self.expected[name].shortest = min(self.expected[name].shortest, seconds)
        return ExpirySpec(seconds, self.rng.randint(1, seconds), KEY if name == HOURS else "update")

    def _worker(self, process: Process, identity: str) -> Worker:
        return Worker(
            self.db(process),
            self.app(),
            concurrency=2,
            grace=5.0,
            limits=self._limits,
            identity=identity,
            beat_seconds=2.0,
        )

    @property
    def now(self) -> float:
        """The true time, in seconds since 1970."""
        return START_NS / 1e9 + self.hub.clock

    # Adders

    def _start_adder(self) -> None:
        process = self.process("adder")
        process.reborn = self._start_adder
        self.hub.start(process, "add", lambda: self._add_all(process))

    def _add_all(self, process: Process) -> None:
        rng = self.hub.rng
        while not self.is_calm:
            self.hub.wait(rng.expovariate(1 / self.pause))
            again = list(self.operations.values())
            self.add(process, rng.choice(again) if again and rng.random() < 0.3 else self._drawn())

    def _drawn(self) -> Added:
        rng = self.hub.rng
        name = rng.choice(QUEUES)
        keys: list[Any] = [rng.choice(self.keys) for _ in range(rng.randint(1, 3))]
        if name == HOURS:
            keys = [(key, int(self.now) // 5 * 5 - 5 * rng.randint(0, 2)) for key in keys]
        self._tokens += 1
        once = f"operation {self._tokens}" if "once" in self.plan and rng.random() < 0.5 else None
        note = Added(name, tuple((key, rng.randint(1, 3)) for key in keys), once)
        if once is not None:
            self.operations[once] = note
        return note

    def add(self, process: Process, note: Added) -> None:
        """Add updates."""

        def run(tr: Any) -> None:
            cq.CombineQueue(note.queue).add(tr, note.updates, once=note.once)
            tr.notes.append(note)
            if self.hub.rng.random() < 0.1:
                self.hub.wait(self.hub.rng.expovariate(1.0))

        try:
            transact(self.db(process), run)
        except Exception as error:
            if error_code(error) is None:
                raise
        else:
            self.operations.pop(note.once or "", None)

    # Changes

    def _start_administrator(self) -> None:
        process = self.process("administrator")
        process.reborn = self._start_administrator
        self.hub.start(process, "change", lambda: self._change(process))

    def _change(self, process: Process) -> None:
        rng, db = self.hub.rng, self.db(process)
        doing: dict[str, Callable[[str], object]] = {
            "purge": lambda name: self._purge(db, name),
            "rebucket": lambda name: cq.rebucket(db, name, rng.randint(1, 4)),
            "period": lambda name: cq.configure(db, name, expire=self._drawn_spec(name)),
            "switch": lambda name: cq.configure(db, name, expire=False),
            "come and go": lambda name: self._come_and_go(),
        }
        kinds = [what for what in doing if what in self.plan]
        while kinds and not self.is_calm:
            self.hub.wait(rng.expovariate(1 / 4.0))
            what, name = rng.choice(kinds), rng.choice(QUEUES)
            self.trace(what, name)
            try:
                doing[what](name)
                if what == "switch":
                    self.hub.wait(rng.expovariate(1 / 2.0))
                    cq.configure(db, name, expire=self._drawn_spec(name))
            except cq.CqError as error:
                self.trace("refused:", error)
            except Exception as error:
                if error_code(error) is None:
                    raise
            db.shape_note = None

    def _purge(self, db: Any, name: str) -> None:
        db.shape_note = Purged(name)
        cq.purge(db, name)

    def _come_and_go(self) -> None:
        if self.workers.running and self.hub.rng.random() < 0.5:
            self.workers.stop(self.hub.rng.choice(list(self.workers.running)))
        elif len(self.workers.running) < 4:
            self.workers.start()

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Note what is committed, and compare it with what there is."""
        snapshot = self.inner.create_transaction().snapshot
        for note in tr.notes:
            if isinstance(note, Added):
                self._added(note, version)
            elif isinstance(note, Purged):
                expected = self.expected[note.queue]
                expected.purged, expected.updates = set(expected.values), {}
        for name, expected in self.expected.items():
            before, after = expected.values, self._stored(snapshot, name)
            for key in before.keys() - after.keys():
                self._deleted(name, key, tr)
            for note in tr.notes:
                if isinstance(note, Told) and note.queue == name:
                    self._told(expected, note.change)
            expected.values = after
            expected.purged &= after.keys()
        self._commits += 1
        if self._commits % _LOOK_COMMITS == 0:
            for name in QUEUES:
                self._look(snapshot, name)

    def _added(self, note: Added, version: int) -> None:
        if note.once is None or note.once not in self.seen:
            self.seen.add(note.once or "")
            for key, number in note.updates:
                of_key = self.expected[note.queue].updates.setdefault(key, [])
                of_key.append(Update(version, self.now, number))

    def _stored(self, snapshot: Any, name: str) -> dict[Any, int]:
        keys, config = QueueKeys(name), read_config(snapshot, name)
        rows = snapshot.get_range(*keys.values())
        return {config.key.decode(keys.encoded_key(row.key)): codec.decode(row.value) for row in rows}

    def _deleted(self, name: str, key: Any, tr: CommitRequest) -> None:
        """Raises `Violation` if a key has expired too early."""
        expected = self.expected[name]
        if key in expected.purged:
            return
        self._note_aside(name)
        updates = expected.updates.get(key, [])
        gone = [each for each in updates if each.version <= tr.read_version]
        expected.updates[key] = [each for each in updates if each.version > tr.read_version]
        latest = key[1] if name == HOURS else max((each.at for each in gone), default=0.0)
        early = latest + expected.shortest - self.now - (_MOST_SKEW if "clocks differ" in self.plan else 0.0)
        # Updates that were set aside are not combined, and so do not count.
        if early > 0 and (expected.is_exact or name == HOURS):
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

    def _look(self, snapshot: Any, name: str) -> None:
        """Raises `Violation` unless values, queued updates and reports are those of the updates."""
        expected = self.expected[name]
        missed = snapshot.get_range(*MissedKeys(name).of_generations(), limit=1).to_list()
        if name != PEAKS and not missed and expected.view != expected.values:
            raise Violation(f"{name}: the observer has {expected.view}, and stored is {expected.values}")
        self._note_aside(name)
        expected.is_exact &= not missed
        if not expected.is_exact or is_purging(self.inner, name):
            return
        keys = sorted(expected.updates, key=repr)
        queue = cq.CombineQueue[Any, int](name)
        found = {key: queue.get(snapshot, key, pending=True) for key in keys}
        of_updates = {key: [each.number for each in expected.updates[key]] for key in keys}
        wanted = {key: _COMBINED[name](each) if each else None for key, each in of_updates.items()}
        if found != wanted:
            raise Violation(f"{name}: with queued updates there is {found}, and of the updates {wanted}")

    def _note_aside(self, name: str) -> None:
        snapshot = self.inner.create_transaction().snapshot
        self.expected[name].is_exact &= not any(read_aside(snapshot, name))

    # The end

    def settle(self) -> None:
        """All keys are to expire."""
        process = self.process("ending")
        self.workers.replace()
        while len(self.workers.running) < 2:
            self.workers.start()
        self.hub.start(process, "finish", lambda: self._finish(process))

    def _finish(self, process: Process) -> None:
        db = self.db(process)
        while self.operations:
            self.add(process, next(iter(self.operations.values())))
        for name in QUEUES:
            self.expected[name].shortest = min(self.expected[name].shortest, _LAST)
            cq.configure(db, name, expire=ExpirySpec(_LAST, 1, KEY if name == HOURS else "update"))
            self._note_aside(name)
        self._verify()
        while self.left():
            for name in QUEUES:
                for encoded in {each.encoded_key for each in transact(db, lambda tr: read_aside(tr, name))}:  # noqa: B023
                    key_type = transact(db, lambda tr: read_config(tr, name)).key  # noqa: B023
                    retry_aside(db, name, key_type.decode(encoded))
                retry_missed(db, name)
            self.hub.wait(5.0)

    def left(self) -> str:
        snapshot = self.inner.create_transaction().snapshot
        if self.operations:
            return f"operations {sorted(self.operations)}"
        for name in QUEUES:
            keys, expiry = QueueKeys(name), ExpiryKeys(name)
            ranges = {
                "values": keys.values(),
                "rows": keys.all_rows(),
                "notifications": keys.notifications(),
                "set aside": keys.aside(),
                "missed reports": MissedKeys(name).of_generations(),
                "entries": expiry.entries(),
                "times": expiry.times_of_bucket(1, 0),
            }
            for what, bounds in ranges.items():
                if found := snapshot.get_range(*bounds, limit=1).to_list():
                    return f"{what} of {name}: {found}"
            if snapshot.get(expiry.progress).present() or is_purging(self.inner, name):
                return f"former values of {name}, or a purge"
        return ""

    def check(self) -> None:
        """Nothing is left, and the observers know it."""
        self._verify()
        for name, expected in self.expected.items():
            if expected.view:
                raise Violation(f"{name}: long after, the observer has {expected.view}")

    def _verify(self) -> None:
        for name in QUEUES:
            if wrong := list(verify(self.inner, name)):
                raise Violation(f"{name}: verification finds {wrong[0]}")
