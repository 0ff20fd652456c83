"""Crashes, lost and late calls, two workers at once and rebases, at any moment: every change has its effect once.

Nothing may stop the link: operators rebase it at any time, but neither side is set back. Broken variants must be found.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cq import links
from cq.keys import after
from cq.keys.link import Position
from cq.links import Changes, LinkFailed
from cq.observers.links.failure_note import NotedTask
from cq.observers.links.operate import OpenLink
from cq.observers.links.sender import Sender
from cq.observers.links.task import LinkTask
from cq.store.transact import transact
from tests.kit.faults import Died, Passing
from tests.kit.stores import db as db
from tests.links.drivers import FIRST, KINDS, LINK, Case, Driver, MemoryDriver, SqlDriver
from tests.links.linkhelpers import Workers, combine, found, link_tasks, run_killed, waits, work

KEYS = ("a", "b", "c")
ROUNDS = 20
CANARY_SEEDS = 25
SECONDS = 60.0


class Network(Passing):
    """A target behind a network that loses calls and answers, and keeps copies of the former."""

    def __init__(self, drill: Drill, target: Any) -> None:
        super().__init__(target)
        self.drill = drill

    def apply(self, changes: Changes) -> Any:
        draw = self.drill.rng.random()
        if draw < 0.1 and not self.drill.is_calm:
            self.drill.late.append(changes)
            raise LinkFailed("no answer")
        answer = self.inner.apply(changes)
        if draw < 0.2 and not self.drill.is_calm:
            raise LinkFailed("no answer")
        return answer


class Drill:
    """One run: entries are added to a link's log, and sent by workers that fail in all ways; then by one that does not.

    Attributes:
        added: {key: all values added, in order}.
        late: changes that the network has lost, and may deliver later.
    """

    def __init__(self, db: Any, case: Case, seed: int) -> None:
        self.db, self.case = db, case
        self.rng = random.Random(seed)
        self.added: dict[str, list[int]] = {}
        self.late: list[Changes] = []
        self.is_calm = False
        self._stops: list[str] = []
        self._depth = 0
        case.link_to(FIRST)
        combine(db, case.name)
        work(db, case.name, LINK, case.driver.app)
        if isinstance(case.driver, SqlDriver):
            case.driver.note_history(FIRST)

    def _opened(self) -> OpenLink:
        return found(self.db, self.case.name, LINK, self.case.driver.app)

    # Workers

    def _tasks(self) -> list[LinkTask]:
        with link_tasks(self.db, self.case.name, LINK, self.case.driver.app) as made:
            tasks = [task for task in made if isinstance(task, LinkTask)]
        target: Any = tasks[0]._target
        target.signal, target.batch_entries = self._at, self.rng.choice((1, 2, 5, 50))
        sender = Sender(self.db, self._opened().sender.source, Network(self, target))  # type: ignore[arg-type]
        for task in tasks:
            task.signal = self._at
            task._isolator._send = sender.send
        return tasks

    def _at(self, point: str) -> None:
        """Between two steps of a worker others act, or it dies."""
        if self.is_calm:
            return
        draw = self.rng.random()
        if draw < 0.05:
            raise Died
        if (
            draw < 0.15 and self._depth < 2 and point not in ("locked", "applied")
        ):  # these hold the target's locks
            self._depth += 1
            self._act()
            self._depth -= 1

    def _act(self) -> None:
        doing: list[Callable[[], object]] = [self._add, self._work, self._work, self._deliver_late]
        if self.rng.random() < 0.2:
            self._opened().rebase()
        self.rng.choice(doing)()

    def _add(self) -> None:
        pairs = []
        for _ in range(self.rng.randint(1, 4)):
            key = self.rng.choice(KEYS)
            history = self.added.setdefault(key, [])
            history.append(len(history) + 1)
            # What a link sends to a queue that sums are differences.
            pairs.append((key, history[-1] if self.case.driver.repeats else 1))
        transact(self.db, lambda tr: links.add(tr, self.case.name, pairs, LINK))

    def _work(self) -> None:
        depth = self._depth
        try:
            for task in self._tasks():
                while task.run() == 0.0:
                    pass
        except Died:
            self._depth = depth

    def _deliver_late(self) -> None:
        if self.late:
            self._opened().target.apply(self.late.pop(self.rng.randrange(len(self.late))))

    def run(self) -> str:
        """Run; returns what is wrong, or an empty text."""

        def stopped(task: Any, error: Exception) -> float:
            self._stops.append(str(error))
            return 1.0

        with patch.object(NotedTask, "_stop", stopped):
            for _ in range(ROUNDS):
                self._add()
                self._work()
                if self.rng.random() < 0.1:
                    with suppress(Died):
                        self._opened().rebase()
        if self._stops:
            return f"it stops without a cause: {self._stops[0]}"
        self.is_calm = True
        for task in self._tasks():
            while task.run() == 0.0:
                pass
            if task.problem:
                return task.problem
        while self.late:
            self._deliver_late()
        return "entries wait" if waits(self.db, self.case.name, LINK) else self._wrong()

    def _wrong(self) -> str:
        expected = {key: history[-1] for key, history in self.added.items()}
        values = self.case.driver.values(FIRST)
        if values != expected:
            return f"{values} instead of {expected}"
        if not self.case.driver.has_history:
            return ""
        history = self.case.driver.history(FIRST)
        if isinstance(self.case.driver, SqlDriver):  # of a batch, it writes the last entry of each key
            is_right = all(each == sorted(set(each)) for each in history.values())
        else:
            is_right = history == self.added
        return "" if is_right else f"{history} instead of {self.added}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("driver", KINDS, indirect=True)
def test_every_change_has_its_effect_once_in_order(db: Any, name: str, driver: Driver) -> None:
    drill = Drill(db, Case(db, name, driver), seed=0)
    assert drill.run() == ""
    assert drill.added.keys() == set(KEYS)


# Broken variants


def clears_rows_without_the_position() -> Any:
    """The transaction that clears entries does not store the position of the last one."""

    def clear(self: LinkTask, tr: Any, read: Any) -> None:
        tr.clear_range(self.keys.rows(self.bucket)[0], after(read.queued.last_key))

    return patch.object(LinkTask, "_clear", clear)


def skips_the_rest_after_a_conflict() -> Any:
    """After another position than expected a worker takes the whole batch for applied."""
    return patch.object(Sender, "_progress", lambda self, batch, stored: batch.last)


def takes_a_conflict_for_success() -> Any:
    """A worker takes a refusal for a success."""
    apply = Sender._apply

    def ignore(self: Sender, *args: Any) -> None:
        apply(self, *args)

    return patch.object(Sender, "_apply", ignore)


def accepts_another_epoch() -> Any:
    """A worker takes the target's position of another epoch for one of its own."""
    progress = Sender._progress

    def accept(self: Sender, batch: Any, stored: Position) -> Any:
        return progress(self, batch, Position(batch.epoch, stored.sequence))

    return patch.object(Sender, "_progress", accept)


@pytest.mark.parametrize(
    "broken",
    [
        clears_rows_without_the_position,
        skips_the_rest_after_a_conflict,
        takes_a_conflict_for_success,
        accepts_another_epoch,
    ],
)
def test_a_broken_variant_is_found(
    db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[], Any]
) -> None:
    def wrong(seed: int) -> str:
        return Drill(db, Case(db, f"drill{seed}", MemoryDriver(tmp_path, monkeypatch)), seed).run()

    with broken():
        assert any(wrong(seed) for seed in range(CANARY_SEEDS))


# Processes


def filled(db: Any, name: str, driver: Driver) -> Case:
    """A queue whose link has sent all values."""
    case = Case(db, name, driver)
    case.link_to(FIRST)
    combine(db, name)
    work(db, name)
    return case


@pytest.mark.sampled(2)
@pytest.mark.parametrize("driver", ["sqlite", "webhook", "kafka", "queue"], indirect=True)
def test_a_process_that_is_killed_at_any_point_changes_nothing(
    db: Any, name: str, tmp_path: Path, driver: Driver
) -> None:
    case = filled(db, name, driver)
    for number, point in enumerate(("read", *driver.points, "sent", "none"), 1):
        case.put(a=number)
        combine(db, name)
        run_killed(f"embedded:{tmp_path / 'test.db'}", name, point)
    assert driver.values(FIRST) == case.expected
    assert waits(db, name, LINK) == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("driver", ["kafka", "queue"], indirect=True)
def test_nothing_is_lost_or_comes_twice_while_processes_are_killed(
    db: Any, name: str, tmp_path: Path, driver: Driver
) -> None:
    """Three processes, each of which kills itself at one point of thirty or so; for tables see test_sql_faults."""
    case = filled(db, name, driver)
    number = 0
    with Workers(f"embedded:{tmp_path / 'test.db'}", name, seed=1) as workers:
        for _ in range(3):
            workers.start(0.03)
        while workers.died < 4:
            workers.wait_ready()
            number += 1
            case.put(dict.fromkeys((*KEYS, *"defgh"), number))
            combine(db, name)
            workers.replace_dead(0.03)
    work(db, name)
    assert driver.values(FIRST) == case.expected
    if driver.has_history:
        assert all(each == sorted(set(each)) for each in driver.history(FIRST).values())
