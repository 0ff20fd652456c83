"""What operators and failures do for a while: workers are killed, added and removed, and the shape changes twice.

In the end all values are exact and nothing waits, without anybody having mended anything; and no update has waited for
longer than a bound. $CQ_TEST_SOAK_SECONDS sets another time than 6 s.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import cq
from cq import admin
from cq.admin.queue_status import is_drained, status
from cq.config.queue import read_config
from cq.observers.scheduling.members import read_members
from cq.store.transact import transact
from cq.testing import assert_drained, assert_values
from tests.cli.conftest import Cli
from tests.cli.workers import running
from tests.kit.processes import SECONDS, wait_until

TIME: Final = float(os.environ.get("CQ_TEST_SOAK_SECONDS", "6"))
OLDEST: Final = 25.0
"""For how long an update may wait, in seconds: one that is killed and not replaced is missed after 12 to 16."""
STARTS: Final = 10
"""So many times the time that processes take to start, which is long on a busy machine, an update may wait longer."""
PARENTS, PROCESSES = 2, 3


class Minute:
    """What goes on at once, until the time is over."""

    def __init__(self, cli: Cli, db: Any) -> None:
        self.cli, self.db, self.random = cli, db, random.Random(1)
        self.over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.adding = threading.Lock()
        self.oldest = 0.0
        self.killed = 0
        self.failures: list[BaseException] = []

    def add(self) -> None:
        queue, rng = cq.CombineQueue("words"), random.Random(self.random.random())
        while not self.over.wait(0.005):
            updates = Counter(f"k{rng.randrange(2_000)}" for _ in range(rng.randint(1, 30)))
            transact(self.db, lambda tr: queue.add(tr, updates))  # noqa: B023 - runs at once
            with self.adding:
                self.counts.update(updates)

    def kill(self) -> None:
        """One of the processes that live, each second."""
        while not self.over.wait(1.0):
            members = transact(self.db, lambda tr: read_members(tr.snapshot))
            self.random.shuffle(members)
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
                    self.killed += 1
                    break

    def come_and_go(self) -> None:
        """A worker more, for a while."""
        while not self.over.wait(3.0):
            more = running(self.cli)
            self.over.wait(3.0)
            more.send_signal(signal.SIGTERM)
            more.wait(SECONDS)

    def reshape(self) -> None:
        for buckets in (24, 5):
            self.over.wait(TIME / 3)
            while True:
                with suppress(cq.errors.NotNow):  # the change before is not done yet
                    admin.rebucket(self.db, "words", buckets)
                    break
                time.sleep(0.2)

    def watch(self) -> None:
        while not self.over.wait(0.5):
            (found,) = status(self.db, "words")
            self.oldest = max(self.oldest, found.oldest_seconds or 0.0)

    def run(self) -> None:
        def guarded(body: Any) -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001 - raised below
                self.failures.append(error)
                self.over.set()

        bodies = [self.add, self.add, self.kill, self.come_and_go, self.reshape, self.watch]
        threads = [threading.Thread(target=guarded, args=[body]) for body in bodies]
        for thread in threads:
            thread.start()
        end = time.monotonic() + TIME
        while (time.monotonic() < end or self.killed <= TIME / 3) and not self.over.wait(0.1):
            pass
        self.over.set()
        for thread in threads:
            thread.join()
        for failure in self.failures:
            raise failure


def test_failures_and_operators_leave_exact_values(cli: Cli, db: Any) -> None:
    cq.configure(db, "words", buckets=12)
    begun = time.monotonic()
    parents = [running(cli, "--processes", str(PROCESSES), until=b" processes, ") for _ in range(PARENTS)]
    longest = OLDEST + STARTS * (time.monotonic() - begun)
    minute = Minute(cli, db)
    minute.run()

    wait_until(lambda: is_drained(db, "words", 0.5) and config(db).former is None, seconds=longest)
    for parent in parents:
        parent.send_signal(signal.SIGTERM)
    for parent in parents:
        assert parent.wait(SECONDS) == 0
    assert_values(db, "words", minute.counts)
    assert_drained(db)
    assert config(db).buckets == 5
    assert minute.oldest < longest


def config(db: Any) -> Any:
    return transact(db, lambda tr: read_config(tr.snapshot, "words"))
