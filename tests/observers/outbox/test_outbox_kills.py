"""Workers and PostgreSQL are killed again and again: the queue's sums are those of the committed transactions."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import cq
from tests.kit.postgres import PostgresServer
from tests.observers.outbox.outboxhelpers import configure, move, sql, table, values

TRANSACTIONS = 120
CHANCE = "0.06"


class Workers:
    """Two processes; each is started again when it has died."""

    def __init__(self, store: str, queue: str) -> None:
        self._command = [sys.executable, "-m", "tests.observers.outbox.outboxworker", store, queue]
        self._seed = 0
        self.deaths = 0
        self.running = [self._start(), self._start()]

    def _start(self) -> subprocess.Popen[bytes]:
        self._seed += 1
        root = Path(__file__).parents[3]
        process = subprocess.Popen(
            [*self._command, str(self._seed), CHANCE],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def restart_dead(self) -> None:
        for number, process in enumerate(self.running):
            if process.poll() is not None:
                self.deaths += 1
                _close(process)
                self.running[number] = self._start()

    def kill(self) -> None:
        for process in self.running:
            process.kill()
            _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_sums_are_those_of_the_committed_transactions(
    tmp_path: Path, name: str, postgres: PostgresServer, postgres_url: str
) -> None:
    url = f"embedded:{tmp_path / 'killed.db'}"
    db: Any = cq.open(url)
    configure(db, name)
    sql("CREATE TABLE ledger (number INTEGER, name TEXT)")
    workers = Workers(url, name)
    try:
        for number in itertools.count():
            if number >= TRANSACTIONS and workers.deaths >= 2:
                break
            place_order(postgres_url, name, number)
            if number in (40, 80):
                postgres.kill()
                postgres.start()
            if number % 20 == 0:
                workers.restart_dead()
        until_moved(workers)
    finally:
        workers.kill()
    move(db, name)
    expected = Counter(row.name for row in sql("SELECT name FROM ledger"))

    assert sum(expected.values()) >= TRANSACTIONS
    assert values(db, name) == dict(expected)
    assert table() == []
    db.close()


def until_moved(workers: Workers) -> None:
    deadline = time.monotonic() + 180
    while table():
        assert time.monotonic() < deadline
        workers.restart_dead()


def place_order(url: str, queue: str, number: int) -> None:
    """Commit a transaction of the application; after an error again, as its result may be unknown."""
    key = f"article {number % 7}"
    while True:
        engine = sa.create_engine(url)
        try:
            with engine.begin() as conn:
                conn.execute(
                    sa.text("INSERT INTO ledger VALUES (:number, :name)"), {"number": number, "name": key}
                )
                cq.outbox.add(conn, queue, {key: 1})
            return
        except sa.exc.DBAPIError:
            continue
        finally:
            engine.dispose()
