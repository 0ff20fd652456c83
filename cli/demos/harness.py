"""The common part of the demos: processes that are killed at random and begun again, and the check by a recount.

A demo is a function of its options and of a `DemoRun`. It creates its queues, has its processes run until all work is
done and settled, compares the result with a recount, and returns its figures.
"""

from __future__ import annotations

import json
import math
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final, Self, TypeVar

import cq
from cq import admin, runtime
from cq.cli.demos.command import DemoOptions
from cq.cli.shared.exit_status import FoundDifference
from cq.cli.shared.output import live_display, note, print_json, quantity
from cq.cli.shared.processes import Crew, stop_on_signals, wait_for
from cq.errors import CqError, NotReady
from cq.keys import prefix_end
from cq.observers.top.cloud import Cloud, CloudReader
from cq.observers.worker.worker import Worker
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

_LOOK_SECONDS: Final = 0.1
_SETTLING_SECONDS: Final = 10.0
_LIMIT_SECONDS: Final = 600.0
_SHOWN: Final = 5

O = TypeVar("O", bound=DemoOptions)  # noqa: E741
Figures = dict[str, Any]
"""The figures of a demo, as in its JSON, but with dataclasses instead of objects."""
DemoRole = Callable[[Event], object]
"""The work of a process, which ends when it is done or when the event is set.

It is pickled: a method of a dataclass, or a partial of a function. A process may be killed at any line. Another process
then runs the role from the start: it must find the finished work in the store.
"""
Roles = Mapping[str, DemoRole]
"""{name for messages: role}."""


class DemoFailed(CqError):
    """The demo exceeded its time limit, or its result differs from the recount."""


class DemoDiffers(DemoFailed, FoundDifference):
    """The result of the demo differs from the recount."""


# The run


@dataclass(frozen=True)
class DemoRun:
    """One run of a demo.

    Attributes:
        seed: the seed of the load and of the kills.
        kill_every: average seconds between two kills.
        folder: a folder that is deleted at the end.
        rng: random source of the load and of the kills.
        kills: number of killed processes by their kinds.
    """

    seed: int
    kill_every: float
    folder: Path
    rng: Random
    kills: Counter[str] = field(default_factory=Counter)

    def complete(
        self,
        work: Roles,
        services: Roles,
        look: Callable[[], Any],
        is_settled: Callable[[], bool],
        close: Callable[[], object] | None = None,
        seconds: float = _LIMIT_SECONDS,
    ) -> Figures:
        """Run the processes until their work is done and settled; returns the first figures of the demo.

        Args:
            work: the processes that end when their work is done.
            services: the processes that run until they are stopped.
            look: called about ten times per second from when all processes have begun until the work is done; it may
                check what must always hold. A terminal shows what it returns: a line, tables, or None for what was
                shown before.
            is_settled: whether the services have done all that follows from the work.
            close: called after `seconds` seconds, or at ^C: makes the work end. None: it ends by itself.
            seconds: without `close` the time limit of the work, and of settling it.
        """
        # After the check of the input, and before all that can fail in another way: a failed run can be repeated.
        note(f"seed {self.seed}")
        begun, stopped = runtime.monotonic(), runtime.event()
        if close is not None:
            stop_on_signals(stopped.set)
        with live_display() as display, DemoCrew({**work, **services}, self) as crew:
            crew.run(lambda: not crew.starting)
            until, closing = runtime.monotonic() + seconds, [] if close is None else [close]

            def is_worked_off() -> bool:
                if closing and (stopped.is_set() or runtime.monotonic() >= until):
                    closing.pop()()
                display.show(look())
                return crew.ended >= work.keys()

            limit = seconds if close is None else math.inf
            crew.run(is_worked_off, limit)
            # Few processes are left now. Frequent kills would never let a worker start on a busy machine.
            crew.spare(after=_SETTLING_SECONDS)
            crew.run(is_settled, limit)
        return {
            "seed": self.seed,
            "kills": self.kills.total(),
            "seconds": round(runtime.monotonic() - begun, 1),
        }


def run_demo(
    options: O, demo: Callable[[O, DemoRun], Figures], show: Callable[[Mapping[str, Any]], object]
) -> None:
    """Run a demo and print its figures, as JSON or by `show`.

    Raises `DemoDiffers` for a difference from the recount, `ProcessFailed`, and the errors of the demo.
    """
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    rng = Random(seed)  # noqa: S311 - a load and kills that can be repeated
    with TemporaryDirectory(prefix="cq-demo-") as folder:
        figures = demo(options, DemoRun(seed, options.kill_every, Path(folder), rng))
    if options.json:
        print_json(json.loads(json.dumps(figures, default=asdict)))
    else:
        show(figures)
        kills = quantity(figures["kills"], "process", "processes")
        note(f"{kills} killed in {figures['seconds']:.1f} s: all as recounted")


def run_role(role: DemoRole, stop: Event, parent: Connection) -> None:
    """Run a role in a process of a `Crew`; reports to the parent when it begins."""
    with suppress(OSError):  # the demo has ended in the meantime
        parent.send(None)
    role(stop)


class DemoCrew(Crew):
    """Processes that are killed and started again, until each has done its work.

    Args:
        roles: {name for messages: role}.
        demo: counts the kills by SIGKILL; an infinite time between them: there are none.

    Attributes:
        starting: names of the roles whose processes have not begun them yet.
        ended: names of the roles that have done all their work.
    """

    def __init__(self, roles: Roles, demo: DemoRun) -> None:
        super().__init__(roles, run_role)
        self.starting: set[str] = set()
        self.ended: set[str] = set()
        self._rng, self._kill_every, self._kills = demo.rng, demo.kill_every, demo.kills
        self._next_kill = 0.0  # at once, so that short demos have a kill, too
        self._spared = math.inf if self._kill_every < math.inf else 0.0

    def run(self, is_done: Callable[[], bool], seconds: float = _LIMIT_SECONDS) -> None:
        """Keep the processes running, and kill some of them, until `is_done`.

        Args:
            is_done: called about ten times per second; it may also show progress.
            seconds: time limit.

        Raises `DemoFailed` after the time limit, and `ProcessFailed`.
        """
        until = runtime.monotonic() + seconds
        while not is_done():
            now = runtime.monotonic()
            if now >= until:
                raise DemoFailed(f"the demo is not done after {seconds:,.0f} s")
            if self._processes and not self.starting and self._next_kill <= now < self._spared:
                # A kind first, or few workers would hardly be killed.
                kind = self._rng.choice(sorted(set(map(_kind, self._processes))))
                self._kill(
                    self._rng.choice([name for name in sorted(self._processes) if _kind(name) == kind])
                )
            wait_for(self._processes.values(), _LOOK_SECONDS)
            self._hear()

    def _hear(self) -> None:
        """Note which processes have begun their roles, and which have ended."""
        for name, process in list(self._processes.items()):
            if name in self.starting and process.connection.poll():
                self.receive(name)
                self.starting.remove(name)
                # Not before all have had some time to work: starting takes seconds on a busy machine, and with kills in
                # that time no process would ever get to its work.
                if self._kills:
                    self._next_kill = max(self._next_kill, runtime.monotonic() + self._kill_every / 2)
            if process.poll() is not None:
                while process.wait() != 0:
                    self.receive(name)  # raises the error of the process, after older messages
                del self._processes[name]
                self.starting.discard(name)
                self.ended.add(name)

    def spare(self, after: float = 0.0) -> None:
        """Stop killing processes after some seconds."""
        self._spared = runtime.monotonic() + after

    def _start(self, name: str) -> None:
        super()._start(name)
        self.starting.add(name)

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        if process.wait() == -signal.SIGKILL:  # otherwise it ended by itself just before the kill
            self._kills[_kind(name)] += 1
            self._next_kill = runtime.monotonic() + self._kill_every * self._rng.uniform(0.5, 1.5)
            self._start(name)


def _kind(name: str) -> str:
    """What a process is called without its number."""
    return name.rstrip(" 0123456789")


def numbered(what: str, roles: Iterable[DemoRole]) -> dict[str, DemoRole]:
    """Roles of one kind with their names: `{"worker 1": ..., "worker 2": ...}`."""
    return {f"{what} {number}": role for number, role in enumerate(roles, 1)}


# The work of the processes


@dataclass(frozen=True)
class Steps:
    """The steps of a role, in a file, and the number of finished ones, in the store.

    The transaction that does a step also stores the position. So a restarted process continues there, and a step whose
    commit has lost its answer is not done twice.

    Attributes:
        path: path of the file, with a line of JSON for each step.
        number: number of the steps.
        key: key of the position.
    """

    path: Path
    number: int
    key: bytes

    @classmethod
    def stored(cls, path: Path, key: bytes, steps: Iterable[Any]) -> Self:
        """Write steps to a file. A role has only the path: a process would wait for a large argument at its start."""
        lines = [json.dumps(step) + "\n" for step in steps]
        path.write_text("".join(lines), encoding="utf-8")
        return cls(path, len(lines), key)

    @classmethod
    def of_parts(cls, folder: Path, keys: bytes, parts: Iterable[Iterable[Any]]) -> list[Self]:
        """The steps of several roles, with numbers in the names of their files and in their keys."""
        return [
            cls.stored(folder / f"part-{n}", keys + b"position/%d" % n, part) for n, part in enumerate(parts)
        ]

    def __iter__(self) -> Iterator[Any]:
        with self.path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def work(
        self, db: Database, stop: Event, do: Callable[[Transaction, Sequence[Any]], object], size: int
    ) -> None:
        """Do the unfinished steps until `stop` is set: `do` is called with up to `size` of them in a transaction."""
        left = self.left(db)
        while not stop.is_set() and (steps := list(islice(left, size))):
            transact(db, partial(self.once, do, steps))

    def once(
        self,
        do: Callable[[Transaction, Sequence[Any]], object],
        steps: Sequence[tuple[int, Any]],
        tr: Transaction,
    ) -> None:
        """Do steps, given with their places, unless an earlier commit whose answer was lost has done them."""
        # With a conflict on the position: of two tries at once, only one can commit.
        if self.done(tr) == steps[0][0]:
            do(tr, steps)
            self.advance(tr, steps[-1][0] + 1)

    def left(self, db: Database) -> Iterator[tuple[int, Any]]:
        """The unfinished steps with their places."""
        return islice(enumerate(self), transact(db, self.done), None)

    def done(self, tr: TransactionRead) -> int:
        """The number of finished steps."""
        return int(tr.get(self.key).value or 0)

    def advance(self, tr: Transaction, done: int) -> None:
        """Store the number of finished steps."""
        tr.set(self.key, b"%d" % done)


def places(db: Database, steps: Sequence[Steps]) -> list[int]:
    """The numbers of finished steps of several roles, read in one transaction."""
    return transact(db, lambda tr: [each.done(tr.snapshot) for each in steps])


def shown_steps(db: Database, steps: Sequence[Steps], what: str) -> str:
    """The number of finished steps, as a line about progress."""
    return f"{sum(places(db, steps)):,} of {quantity(sum(each.number for each in steps), what)} done"


def workers(number: int, url: str, queues: Sequence[str], kind: str = "worker") -> dict[str, DemoRole]:
    """Processes with a worker for these queues of a store; without names for all its queues."""
    # With an identity: a restarted worker gets the tasks of its killed predecessor at once.
    roles = (partial(run_worker, url=url, queues=queues, identity=f"demo {each}") for each in range(number))
    return numbered(kind, roles)


def run_worker(stop: Event, *, url: str, queues: Sequence[str], identity: str | None = None) -> None:
    """Run a worker until `stop` is set."""
    worker = Worker(cq.open(url), queues=queues, identity=identity)

    def end() -> None:
        stop.wait()
        worker.stop()

    # The worker has the main thread: its errors end the process.
    runtime.start_thread(end, "stop")
    worker.run()


# The store, and the recount


def published(db: Database, queue: str) -> Cloud | None:
    """The last cloud of a queue; None if none was published, because no key has a value."""
    try:
        return transact(db, lambda tr: CloudReader(queue).read(tr.snapshot))
    except NotReady:
        return None


def delete_earlier(db: Database, prefix: bytes, queues: Iterable[str] = ()) -> None:
    """Delete the queues of earlier demos, and their own keys, which begin with a prefix."""
    for queue in queues:
        with suppress(cq.errors.QueueNotConfigured):
            admin.delete(db, queue)
    transact(db, lambda tr: tr.clear_range(prefix, prefix_end(prefix)))


def check(holds: bool, difference: str) -> None:
    """Raise `DemoDiffers` unless this holds."""
    if not holds:
        raise DemoDiffers(difference)


def compare_queue(db: Database, what: str, queue: str, recounted: Mapping[Any, Any]) -> None:
    """Compare all values of a queue with a recount; raises `DemoDiffers`."""
    compare(what, dict(cq.CombineQueue[Any, Any](queue).scan(db)), recounted)


def compare(what: str, found: Mapping[Any, Any], recounted: Mapping[Any, Any]) -> None:
    """Raise `DemoDiffers` with the first differences from the recount."""
    keys = sorted(key for key in {*found, *recounted} if found.get(key) != recounted.get(key))
    if keys:
        shown = [f"{key!r}: {found.get(key)} instead of {recounted.get(key)}" for key in keys[:_SHOWN]]
        more = f" and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else ""
        raise DemoDiffers(f"{what}: not as recounted: {', '.join(shown)}{more}")
