"""Two workers move rows of one outbox in PostgreSQL, beside each other at every step, and die or lose transactions.

Neither database is set back, so the outbox must never stop, and each row counts once. Broken variants must be found.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import sqlalchemy as sa

from cq.observers.links.failure_note import NotedTask
from cq.observers.links.outbox.operate import opened
from cq.observers.links.outbox.table import OutboxTables
from cq.observers.links.target import LinkFailed
from tests.kit.stores import db as db
from tests.observers.outbox.outboxhelpers import (
    configure,
    insert,
    move,
    outbox_task,
    sql,
    table,
    values,
)
from tests.simulation.outboxcanaries import notes_the_batch_before_the_commit

ROUNDS = 20
SEEDS = 3
CANARY_SEEDS = 10
BAD = "INSERT INTO cq_outbox (queue, key_json, update_json) VALUES (:queue, '\"bad\"', 'one')"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
REPAIR = "UPDATE cq_outbox SET update_json = '1' WHERE update_json = 'one'"


class Killed(BaseException):
    """The worker dies at this point."""


class Drill:
    """One run.

    Attributes:
        added: {key: the sum of its rows}.
        stops: the messages of all stops.
    """

    def __init__(self, db: Any, url: str, seed: int) -> None:
        self.db = db
        self.name = f"drill{seed}"
        self.rng = random.Random(seed)
        self.added: Counter[str] = Counter()
        self.stops: list[str] = []
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        self._number = 0
        configure(db, self.name)
        self._workers = [self._worker(number) for number in range(2)]
        self._busy: set[int] = set()
        self._beside: threading.Thread | None = None

    def _worker(self, number: int) -> Any:
        return outbox_task(self.db, self.name, partial(self._at, number))

    # What happens beside a step

    def _at(self, number: int, point: str) -> None:
        """A worker has reached a point: it dies, its SQL transaction fails, the other worker has its turn, or none."""
        if self._beside is not None:
            return  # both run; what they do from here on is up to them
        draw = self.rng.random()
        if draw < 0.1:
            raise Killed
        if draw < 0.3 and point == "deleting":
            raise LinkFailed("the connection is lost")
        other = 1 - number
        if draw < 0.6 and other not in self._busy:
            if point == "deleting":  # this one holds the lock
                self._run_beside(other)
            else:
                self._run(other)

    def _run_beside(self, number: int) -> None:
        """Let a worker run until it waits for a lock in PostgreSQL, or is done; it goes on beside this one then."""
        thread = self._beside = threading.Thread(target=partial(self._run, number))
        thread.start()
        with self._engine.connect() as conn:
            while thread.is_alive() and not conn.exec_driver_sql(WAITING).scalar_one():
                thread.join(0.01)

    def _run(self, number: int) -> None:
        self._busy.add(number)
        try:
            self._workers[number].run()
        except Killed:
            self._workers[number].end()
            self._workers[number] = self._worker(number)
        finally:
            self._busy.discard(number)

    # The application

    def _insert(self) -> None:
        self._number += 1
        key = f"key {self.rng.randrange(3)}"
        draw = self.rng.random()
        if draw < 0.2:
            sql(BAD, queue=self.name)
            self.added["bad"] += 1
            return
        once = f"operation {self._number}" if draw < 0.5 else None
        for _ in range(1 if once is None else 2):
            insert(self.name, {key: 1}, once)
        self.added[key] += 1

    def _repair(self) -> None:
        sql(REPAIR)
        opened(self.db, self.name).retry()

    def run(self) -> str:
        """Run; returns what is wrong, or an empty text."""

        def stopped(task: Any, error: Exception) -> float:
            self.stops.append(str(error))
            return 0.0

        with patch.object(NotedTask, "_stop", stopped):
            for _ in range(ROUNDS):
                self._insert()
                self._run(self.rng.randrange(2))
                if self._beside is not None:
                    self._beside.join()
                    self._beside = None
                if self.rng.random() < 0.1:
                    self._repair()
        for worker in self._workers:
            worker.end()
        self._engine.dispose()
        if self.stops:
            return f"it stops without a cause: {self.stops[0]}"
        self._repair()
        move(self.db, self.name)
        if left := table():
            return f"rows are left: {left}"
        found = values(self.db, self.name)
        return "" if found == self.added else f"{found} instead of {dict(self.added)}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_workers_on_postgresql_move_each_row_once_and_never_stop(
    db: Any, postgres_url: str, seed: int
) -> None:
    drill = Drill(db, postgres_url, seed)
    assert drill.run() == ""
    assert sum(drill.added.values()) == ROUNDS


# Broken variants


def reads_the_fence_without_its_lock() -> Any:
    """A worker deletes rows although another one is deleting them, and finds them missing."""
    fence = OutboxTables.fence

    def unlocked(self: OutboxTables, conn: sa.Connection, queue: str, *, lock: bool = False) -> Any:
        return fence(self, conn, queue)

    return patch.object(OutboxTables, "fence", unlocked)


@pytest.mark.parametrize("broken", [reads_the_fence_without_its_lock, notes_the_batch_before_the_commit])
def test_a_broken_variant_stops_without_a_cause(
    db: Any, postgres_url: str, broken: Callable[[], Any]
) -> None:
    with broken():
        found = next(filter(None, (Drill(db, postgres_url, seed).run() for seed in range(CANARY_SEEDS))), "")
    assert "stops without a cause" in found
