"""What all simulated systems have: processes on stores, what goes wrong with them, and how a run comes to its end.

A scenario is one small system: its actors, what they note of each transaction, and what must be true of what is
committed and of the end. To write one:

- Name it and its kinds of operations in `plan.SYSTEMS`, and its class in `run.SCENARIOS`.
- `begin` makes what lies in the stores, by `self.inner`, which has no faults, and starts the actors by
  `self.start_process(name, task, function)`. A process can die and freeze at each of its calls of the store; then
  another one takes its place. `WorkerPool` has the workers.
- An actor works through `self.db(process)`, does what may fail by `self.attempt`, waits with `self.hub.wait(seconds)`,
  draws from `self.hub.rng`, and puts what it does into `tr.notes`, in the transaction: `log` gets each transaction that
  is committed, in commit order, whether its owner ever hears of it or not, and raises `Violation` when a promise is
  broken.
- It begins nothing new once `self.is_calm`; the tasks that begin something have names of `BEGINNERS`.
- Then `settle` starts what brings all to its end, `left` says what is not done yet, and `check` compares what is stored
  with what was logged.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq.keys import QueueKeys
from cq.observers.verify.queue import verification
from cq.observers.worker.worker import Worker
from cq.store.api import error_code
from cq.store.embedded import Database
from cq.store.space import Space
from tests.simulation.hub import Hub, Process, SimMachine
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.store import CommitRequest, Faults, SimDatabase, Surroundings, WatchBoard

STORE: Final = "store"
"""The store's name in a scenario that has but one."""
LANDING: Final = "landing"
"""The name of tasks that commit after the process was given an error."""
MAX_SKEW: Final = 100.0
"""The `max_skew` of a system without another one."""
CONVERGE_SECONDS: Final = 60.0
LONG_SECONDS: Final = 600.0
BEGINNERS: Final = frozenset(
    ("add", "change", "count", "drain", "emit", "load", "read", "restart", "write", LANDING)
)
"""The names of tasks that begin something new, or commit it late."""
_LOOK_SECONDS: Final = 1.0
_MAX_BYTES: Final = 2_000_000


class Scenario(ABC):
    """One run of one system.

    Args:
        plan: what happens in it.
        folder: for its files.
        trace: called with each thing worth telling.

    Attributes:
        max_skew: seconds by which the clock of a process is wrong at most, in plans with "clocks differ".
        inner: the store itself, without faults; of the first one, where there are several.
        is_calm: whether nothing goes wrong any more, and nothing new is begun.
        violations: the promises that were seen broken.
    """

    max_skew: ClassVar[float] = MAX_SKEW
    stores: ClassVar[tuple[str, ...]] = (STORE,)
    """The names of its stores."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.hub = Hub(plan.seed)
        self.machine = SimMachine(self.hub)
        self.rng = plan.rng("world")
        self.is_calm = False
        self.violations: list[str] = []
        self.inners = {name: self.open_store(name) for name in self.stores}
        self.inner = self.inners[self.stores[0]]
        self.faults = Faults(
            read_error=plan.chance("reads fail", 0.05),
            late=plan.chance("calls are late", 0.02),
            conflict=plan.chance("conflicts", 0.3),
            unknown=plan.chance("unknown commits", 0.3),
            timeout=plan.chance("timeouts", 0.1),
            other_cluster=plan.chance("the cluster changes", 0.1),
            lands_late=plan.chance("commits land late", 1.0),
            too_large=plan.chance("too large", 0.1),
            watch_late=plan.chance("watches are late", 0.6),
            watch_early=plan.chance("watches fire early", 0.3),
            watch_error=plan.chance("watches fail", 0.3),
        )
        self.sky = Process("sky")
        self._boards = {name: WatchBoard() for name in self.stores}
        self._trace = trace
        self._numbers = 0
        self._databases: dict[Process, dict[str, SimDatabase]] = {}
        self.hub.trace = self.trace
        self.hub.on_doom = self._die
        self.hub.on_freeze = self.freeze

    def open_store(self, name: str) -> Any:
        """The store itself, without faults; every third seed has all of its keys below another prefix."""
        db = Database(self.path_of(name), power_safe=False)
        return Space(f"of-{name}" if self.plan.seed % 3 == 2 else "cq").database(db)

    def path_of(self, name: str) -> Path:
        """The file of a store."""
        return self.folder / f"{name}.db"

    # What a system is

    @abstractmethod
    def begin(self) -> None:
        """Make what lies in the stores, and start everybody."""

    @abstractmethod
    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """A transaction is committed. Raises `Violation`."""

    def refused(self, store: str, tr: CommitRequest, code: int) -> None:  # noqa: B027 - most need nothing
        """The store itself has refused a commit."""

    @abstractmethod
    def settle(self) -> None:
        """Nothing goes wrong any more, and nothing new is begun: start what brings all to its end."""

    @abstractmethod
    def left(self) -> str:
        """What is not done yet; empty when everything is."""

    def unsettled(self) -> str:
        """What is done, but not yet as it should be soon."""
        return ""

    @abstractmethod
    def check(self) -> None:
        """Compare what is stored with what was logged. Raises `Violation`."""

    def around(self) -> AbstractContextManager[object]:
        """What is to be in force while it runs."""
        return nullcontext()

    # A run

    def start(self) -> None:
        """Begin, with everything drawn from the plan's seed."""
        random.seed(self.plan.seed)  # what libraries draw from
        self.begin()
        self.hub.start(self.sky, "jump", self._jump)

    def end(self) -> None:
        """Let everything be done, and check it. Raises `Violation`."""
        self.calm()
        self._wait(self.plan.end_seconds + self.frozen_seconds, self._begun)
        self.settle()
        self._wait(self.plan.end_seconds + self.frozen_seconds, self.left)
        self._wait(CONVERGE_SECONDS + self.frozen_seconds, self.unsettled)
        if self.hub.failures:
            where, error = self.hub.failures[0]
            raise Violation(f"{where} has raised {error!r}") from error
        if self.violations:
            raise Violation(self.violations[0])
        self.check()

    @property
    def frozen_seconds(self) -> float:
        """How long after the last fault a process may still be frozen."""
        return LONG_SECONDS if "long freezes" in self.plan else 0.0

    def close(self) -> None:
        """End what is left of it."""
        self.hub.end()
        for inner in self.inners.values():
            inner.close()

    def calm(self) -> None:
        """Let nothing go wrong any more."""
        self.is_calm = True
        self.faults.calm()
        for process in self._databases:
            process.dies_in = process.freezes_in = None
            process.frozen_until = 0.0

    def happens(self, what: str, most: float) -> bool:
        """Whether a fault happens now that happens with at most this probability."""
        return what in self.plan and not self.is_calm and self.hub.rng.random() < self.plan.chance(what, most)

    def trace(self, *what: object) -> None:
        """Tell of something, with the time and the task."""
        task = self.hub.current
        who = f"{task.process}/{task.name}" if task else "-"
        self._trace(f"{self.hub.clock:9.3f} {who:28} {' '.join(map(str, what))}")

    def _wait(self, seconds: float, left: Callable[[], str]) -> None:
        """Give turns until nothing is left; raises `Violation` after so many seconds."""
        deadline = self.hub.clock + seconds
        while what := left():
            if self.violations or self.hub.failures:
                return
            if self.hub.clock > deadline:
                raise Violation(f"not done after {seconds:.0f} s without faults: {what}")
            look = self.hub.clock + _LOOK_SECONDS
            self.hub.start(self.sky, "look", lambda: None, _LOOK_SECONDS)
            self.hub.run(lambda: self.hub.clock >= look)  # noqa: B023

    def _begun(self) -> str:
        """What processes other than workers have begun, and commits that have not arrived yet."""
        tasks = [task for task in self.hub.tasks if task.process.is_alive and task.name in BEGINNERS]
        return ", ".join(f"{task.process}/{task.name}" for task in tasks)

    # Processes

    def process(self, name: str) -> Process:
        """A new process, with its own view of the stores."""
        self._numbers += 1
        process = Process(f"{name}-{self._numbers}")
        rng = self.hub.rng
        if "clocks differ" in self.plan:
            process.skew = rng.uniform(-self.max_skew, self.max_skew)
        if "deaths" in self.plan and not self.is_calm and rng.random() < 0.8:
            process.dies_in = 1 + int(rng.expovariate(1 / 300))
        if "freezes" in self.plan and not self.is_calm and rng.random() < 0.5:
            process.freezes_in = 1 + int(rng.expovariate(1 / 300))
        self._databases[process] = {name: self._seen_by(process, name) for name in self.stores}
        return process

    def start_process(self, name: str, task: str, work: Callable[[Process], object]) -> None:
        """Start a process with one task; another one takes its place when it dies."""
        process = self.process(name)
        process.reborn = lambda: self.start_process(name, task, work)
        self.hub.start(process, task, lambda: work(process))

    def worker(
        self, process: Process, identity: str, app: cq.App | None = None, store: str = "", **options: Any
    ) -> Worker:
        """A worker on a store as a process sees it."""
        return Worker(self.db(process, store), app, grace=5.0, identity=identity, **options)

    def attempt(self, act: Callable[[], object], *refusals: type[Exception]) -> Exception | None:
        """Do something that the store may fail, or that one of these errors may refuse; returns the error."""
        try:
            act()
        except refusals as error:
            self.trace("refused:", error)
            return error
        except Exception as error:
            if error_code(error) is None:
                raise
            return error
        return None

    def db(self, process: Process, store: str = "") -> SimDatabase:
        """A store as a process sees it: the first one, unless another one is named."""
        return self._databases[process][store or self.stores[0]]

    def died(self, process: Process) -> None:  # noqa: B027 - most need nothing
        """A process has died: what it held in other systems than the stores is dropped there."""

    def _seen_by(self, process: Process, store: str) -> SimDatabase:
        around = Surroundings(
            self.hub.rng,
            self.hub.wait,
            lambda seconds, call: self.hub.start(process, "network", call, seconds),
            lambda seconds, call: self.hub.start(self.sky, LANDING, call, seconds),
            self._commit,
            lambda tr, version: self._committed(store, tr, version),
            lambda tr, code: self.refused(store, tr, code),
            self.trace,
        )
        return SimDatabase(self.inners[store], self.faults, around, self._boards[store])

    def _die(self, process: Process) -> None:
        """A process dies, and another one takes its place."""
        self.hub.kill(process)
        self.died(process)
        for db in self._databases[process].values():
            db.drop()
        if not self.is_calm:
            self.hub.start(Process("parent"), "restart", process.reborn, self.hub.rng.expovariate(1 / 3))

    def freeze(self, process: Process) -> None:
        """A process stands still for a while, and then goes on as if nothing had happened."""
        is_long = "long freezes" in self.plan and self.hub.rng.random() < 0.3
        seconds = LONG_SECONDS if is_long else self.hub.rng.expovariate(1 / 15)
        self.trace("stands still:", process, f"for {seconds:.1f} s")
        process.frozen_until = self.hub.clock + seconds

    def _jump(self) -> None:
        """The stores' clock goes ahead now and then, as a cluster's versions do when it recovers."""
        while "clock jumps" in self.plan and not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / 10))
            self.hub.jumped += self.hub.rng.uniform(0, 100)

    # What is committed

    def _commit(self, inner: Any) -> None:
        self.machine.in_store = True
        try:
            inner.commit().wait()
        finally:
            self.machine.in_store = False

    def _committed(self, store: str, tr: CommitRequest, version: int) -> None:
        """Every commit that has happened, in order; its owner may never hear of it."""
        where = f"in {store}, " if len(self.stores) > 1 else ""
        self.trace("commits", version, f"({where}read {tr.read_version})", *tr.notes)
        try:
            if tr.size > _MAX_BYTES:
                raise Violation(f"a transaction of {tr.size:,} bytes has been committed")
            self.log(store, tr, version)
        except Violation as violation:
            self.violations.append(str(violation))


def first_row(snapshot: Any, ranges: Mapping[str, tuple[bytes, bytes]]) -> str:
    """The first row of the first range that has one, with the name of the range; empty without any."""
    for what, bounds in ranges.items():
        if found := snapshot.get_range(*bounds, limit=1).to_list():
            return f"{what}: {found}"
    return ""


def ranges_of(name: str) -> dict[str, tuple[bytes, bytes]]:
    """{name: range of keys} of a queue in which nothing is left once everything is done."""
    keys = QueueKeys(name)
    return {"rows": keys.all_rows(), "notifications": keys.notifications(), "set aside": keys.aside()}


def check_verified(db: Any, name: str, **options: Any) -> None:
    """Raises `Violation` if `cq verify` finds anything in a queue."""
    found = verification(db, name, **options).run()
    if differences := [f"{each.kind}: {each.what}" for each in found]:
        raise Violation(f"cq verify finds in {name}: {differences}")
