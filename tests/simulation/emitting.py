"""Processes that add through emitters, and what each of these may lose, and what not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import cq
from cq.store.api import error_code
from tests.simulation.application import BAD_KEY, CONCATENATE, SUMS, TEXTS, NotingQueue
from tests.simulation.hub import Process
from tests.simulation.model import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

CLOSE_SECONDS: Final = 30.0
"""How long an emitter can take to commit its increments, after the last fault and unless its process is frozen."""
_TASKS: Final = 2


@dataclass(frozen=True)
class Flushed:
    """An emitter has added these updates, in this order."""

    account: Account = field(repr=False)
    updates: tuple[tuple[str, Any], ...]


class Account:
    """What one emitter was given, and what of that is committed.

    Increments are told apart by their texts, each of which occurs once. Those of sums are all by 1: of these it is
    only known how many there are.

    Attributes:
        taken: what a call has returned for.
        refused: what a call has said that it never counts.
        is_flushed: whether the emitter has said that all it has taken is committed.
        committed: what is committed, to the queue of this name that exists now.
    """

    def __init__(self, queue: str, name: str, at_most: int) -> None:
        self.queue = queue
        self.name = name
        self.at_most = at_most
        self.given: Counter[Any] = Counter()
        self.taken: Counter[Any] = Counter()
        self.refused: Counter[Any] = Counter()
        self.is_flushed = False
        self.committed: Counter[Any] = Counter()
        self._deleted: Counter[Any] = Counter()
        self._last: dict[tuple[str, int], int] = defaultdict(int)
        self._task: dict[str, int] = {}

    def give(self, task: int, updates: list[tuple[str, Any]]) -> list[Any]:
        """Note what a task is about to emit; what it is called here."""
        found = [update if isinstance(update, str) else key for key, update in updates]
        self.given.update(found)
        self._task.update((each, task) for each in found)
        return found

    def commit(self, note: Flushed) -> None:
        """A flush is committed: no two of its tries may be. Raises `Violation`."""
        for key, update in note.updates:
            if isinstance(update, str):
                for piece in update.split(".")[:-1]:
                    self._commit_text(key, f"{piece}.")
            else:
                self.committed[key] += update

    def delete(self) -> None:
        """The queue is deleted, with the ids of its operations: a later try counts in the next queue of its name."""
        self._deleted |= self.committed
        self.committed.clear()
        self._last.clear()

    def _commit_text(self, key: str, text: str) -> None:
        task, number = self._task[text], int(text[:-1])
        self.committed[text] += 1
        if number <= self._last[key, task] and self.committed[text] == 1:
            raise Violation(f"{self.name}: {text!r} of {key!r} is committed after what was emitted later")
        self._last[key, task] = number

    def check(self) -> None:
        """Raises `Violation` when more is lost than may be, or anything counts that must not."""
        if more := self.committed - (self.given - self.refused):
            raise Violation(f"{self.name}: committed more than was emitted: {more}")
        lost = self.taken - (self.committed | self._deleted)
        may_lose = 0 if self.is_flushed else self.at_most
        if lost.total() > may_lose:
            raise Violation(f"{self.name}: lost {lost}, where {may_lose} may be")


class _Queue(NotingQueue):
    """A queue that notes what an emitter adds to it."""

    def __init__(self, name: str, account: Account) -> None:
        super().__init__(name, partial(Flushed, account), CONCATENATE if name == TEXTS else None)
        self.account = account


class Emitters:
    """The processes with emitters.

    Attributes:
        running: the emitters that are to be closed yet, with their processes.
        accounts: of all that there have been.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.hub.rng
        self.running: dict[cq.Emitter, Process] = {}
        self.accounts: list[Account] = []
        self.pause = world.plan.rng("emitters").choice((0.01, 0.1, 0.5))
        self._texts = 0

    def start(self) -> None:
        """Another process."""
        self.world.start_process("emitter", "emit", self._run)

    def close(self) -> None:
        """Close them all after the last fault: none of their increments may be lost."""
        # The caller's process is not frozen, but the thread of a frozen emitter commits only once its freeze has ended.
        frozen = (
            self.world.plan.end_seconds + self.world.frozen_seconds if "freezes" in self.world.plan else 0.0
        )
        for emitter in list(self.running):
            emitter.timeout = CLOSE_SECONDS + frozen
            self._close(emitter)

    def delete(self, queue: str) -> None:
        """A queue is deleted."""
        for account in self.accounts:
            if account.queue == queue:
                account.delete()

    def check(self) -> None:
        """Raises `Violation`."""
        for account in self.accounts:
            account.check()

    def _run(self, process: Process) -> None:
        """Emit by one emitter after the other; the last one is left open."""
        while not self.world.is_calm:
            emitter = self._made(process)
            for task in range(1, _TASKS):
                self.world.hub.start(process, "emit", lambda task=task: self._emit(emitter, task))  # type: ignore[misc]  # noqa: B023
            self._emit(emitter, 0)
            if not self.world.is_calm:
                self._close(emitter)

    def _made(self, process: Process) -> cq.Emitter:
        rng = self.rng
        name, at_most = rng.choice((TEXTS, SUMS)), rng.choice((1, 5, 30))
        account = Account(name, f"{process} {len(self.accounts)}", at_most)
        while True:
            try:
                emitter = cq.Emitter(
                    _Queue(name, account),
                    self.world.db(process),
                    every=rng.choice((0.01, 1.0)),
                    at_most=at_most,
                    timeout=rng.choice((0.5, 20.0)),
                )
                break
            except cq.errors.QueueNotConfigured:
                self.world.hub.wait(0.5)
            except Exception as error:
                if error_code(error) is None:
                    raise
        self.accounts.append(account)
        self.running[emitter] = process
        process.on_death.append(lambda: self.running.pop(emitter, None))
        return emitter

    def _emit(self, emitter: cq.Emitter, task: int) -> None:
        """Emit for a while."""
        end = self.world.hub.clock + self.rng.expovariate(1 / 5)
        while not self.world.is_calm and self.world.hub.clock < end:
            self.world.hub.wait(self.rng.expovariate(1 / self.pause))
            self._emit_some(emitter, task)

    def _emit_some(self, emitter: cq.Emitter, task: int) -> None:
        assert isinstance(emitter.queue, _Queue)
        account = emitter.queue.account
        updates = [
            self._drawn(emitter.queue.name) for _ in range(self.rng.choice((1, 1, min(3, account.at_most))))
        ]
        given = account.give(task, updates)
        try:
            if len(updates) == 1:
                emitter.emit(*updates[0])
            else:
                emitter.emit_many(updates)
        except (cq.EmitterFull, cq.errors.EmitterClosed):
            account.refused.update(given)
        else:
            account.taken.update(given)

    def _drawn(self, queue: str) -> tuple[str, Any]:
        key = self.rng.choice(self.world.adders.keys)
        if queue == SUMS:
            return key, 1
        if "bad keys" in self.world.plan and self.rng.random() < 0.1:
            key = BAD_KEY
        self._texts += 1
        return key, f"{9_000_000 + self._texts}."

    def _close(self, emitter: cq.Emitter) -> None:
        assert isinstance(emitter.queue, _Queue)
        was_calm = self.world.is_calm
        try:
            emitter.close()
        except cq.errors.FlushFailed as error:
            self.world.trace("gives up:", error)
            if was_calm:
                raise
        else:
            emitter.queue.account.is_flushed = True
        self.running.pop(emitter, None)
