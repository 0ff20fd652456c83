"""Processes of all kinds that are killed, stopped and continued at random: adders, workers, and PostgreSQL."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import sqlalchemy as sa

import cq
from cq.feeds import Feed
from cq.observers.links.registry import opened_link
from cq.observers.scheduling.members import read_members
from cq.queue.answers import DECIDED, read_answers
from cq.testing import assert_drained, assert_values
from tests.cli.conftest import Cli
from tests.crash.adder import CHAT, STOCK, TOLD_TOGETHER, VIEWS, WORDS, ask, updates
from tests.crash.conftest import ROUNDS
from tests.kit.postgres import PostgresServer
from tests.kit.processes import ROOT, SECONDS
from tests.links.sqlhelpers import reporting_of

ADDERS: Final = 3
WORKERS: Final = 2
HITS: Final = 4 * ROUNDS
MEMBERS: Final = ("ann", "ben")
"""Of the group that the adders send to."""
STEP: Final = 100
"""After so many additions the next process is hit."""
STILL_SECONDS: Final = 1.0
"""For how long nobody adds, since all wait for a process that is stopped, before the next one is hit all the same."""


class Adder:
    """An adder that is started again where it was."""

    def __init__(self, name: str, start: Callable[..., subprocess.Popen[bytes]]) -> None:
        self.name, self._start = name, start
        self.added = 0
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, most: int, progress: Callable[[], None] = lambda: None) -> int:
        """Start it, and count what it adds; its exit status."""
        self.process = process = self._start(self.name, self.added, most)
        assert process.stdout is not None
        for _ in process.stdout:
            self.added += 1
            progress()
        return process.wait(SECONDS)

    def settle(self) -> None:
        """Once it is killed, add what it may or may not have added and not told of."""
        assert self.run(self.added + TOLD_TOGETHER) == 0


class Crash:
    """The processes, and what happens to them."""

    def __init__(self, cli: Cli, postgres: PostgresServer, seed: int) -> None:
        self.cli, self.postgres, self.seed = cli, postgres, seed
        self.draw = random.Random(seed)
        self._progress = threading.Condition()
        self._added = 0
        self._failures: list[object] = []
        self._stopped: list[subprocess.Popen[bytes]] = []
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._adders = [Adder(f"adder {number}", self._start_adder) for number in range(ADDERS)]
        self._is_frozen = self._is_down = self._is_over = False

    def run(self) -> dict[str, int]:
        """Let it all happen, and end in good order; how often each adder has added."""
        threads = [threading.Thread(target=self._keep_adding, args=[adder]) for adder in self._adders]
        for number in range(WORKERS):
            self._start_worker(number)
        for thread in threads:
            thread.start()
        for kind in self._kinds():
            self._wait_for_additions()
            self._go_on()
            kind()
        self._wait_for_additions()
        self._go_on()
        self._is_over = True
        for adder, thread in zip(self._adders, threads, strict=True):
            while thread.is_alive():  # it may be about to be started again
                if adder.process is not None:
                    adder.process.kill()
                thread.join(0.1)
            adder.settle()
        self._wait_for_workers()
        for worker in self._workers.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers.values():
            assert worker.wait(SECONDS) == 0
        assert self._failures == []
        return {adder.name: adder.added for adder in self._adders}

    def _keep_adding(self, adder: Adder) -> None:
        while not self._is_over:
            status = adder.run(sys.maxsize, self._count)
            if not self.is_expected(status):
                self._failures.append((adder.name, status))
                return

    def is_expected(self, status: int) -> bool:
        """Whether an adder may end with this status, and is started again."""
        return status == -signal.SIGKILL

    def _start_adder(self, name: str, begin: int, end: int) -> subprocess.Popen[bytes]:
        args = self.cli.url, name, self.seed, begin, end
        return self.cli.python("-m", "tests.crash.adder", *args, cwd=ROOT, stderr=None)

    def _start_worker(self, number: int) -> None:
        with (self.cli.folder / "workers.log").open("ab") as log:
            self._workers[number] = self.cli.start("worker", "--id", f"w{number}", stdout=log, stderr=log)

    def _wait_for_workers(self) -> None:
        """Wait until all workers have registered: one that was just started does not handle signals yet."""
        wanted = {worker.pid for worker in self._workers.values()}
        db = cq.open(self.cli.url)
        deadline = time.monotonic() + SECONDS
        while not wanted <= {member.pid for member in cq.transact(db, lambda tr: read_members(tr.snapshot))}:
            assert time.monotonic() < deadline, "a worker has not started"
            time.sleep(0.01)

    def _count(self) -> None:
        with self._progress:
            self._added += 1
            self._progress.notify_all()

    def _wait_for_additions(self) -> None:
        with self._progress:
            goal = self._added + STEP
            self._progress.wait_for(lambda: self._added >= goal, STILL_SECONDS)

    # What happens

    def _kinds(self) -> Iterator[Callable[[], None]]:
        """What happens, one after the other: everything before anything happens again and again."""
        often = [self._kill_adder, self._kill_worker, self._stop_one]
        kinds = [*often, *often, *often, self._kill_server, self._freeze_server]
        for number in range(HITS):
            if number % len(kinds) == 0:
                self.draw.shuffle(kinds)
            yield kinds[number % len(kinds)]

    def _go_on(self) -> None:
        """End what was stopped or down."""
        for process in self._stopped:
            process.send_signal(signal.SIGCONT)
        self._stopped = []
        if self._is_frozen:
            self.postgres.send_signal(signal.SIGCONT)
        if self._is_down:
            self.postgres.start()
        self._is_frozen = self._is_down = False

    def _kill_adder(self) -> None:
        process = self.draw.choice(self._adders).process
        if process is not None:
            process.kill()

    def _kill_worker(self) -> None:
        number = self.draw.randrange(WORKERS)
        self._workers[number].kill()
        self._workers[number].wait(SECONDS)
        self._start_worker(number)

    def _stop_one(self) -> None:
        """Within a commit, perhaps: then all others wait for it."""
        adders = [adder.process for adder in self._adders if adder.process is not None]
        process = self.draw.choice([*adders, *self._workers.values()])
        process.send_signal(signal.SIGSTOP)
        self._stopped.append(process)

    def _kill_server(self) -> None:
        self.postgres.kill()
        self._is_down = True

    def _freeze_server(self) -> None:
        self.postgres.send_signal(signal.SIGSTOP)
        self._is_frozen = True


def configure_stock_and_chat(db: Any) -> None:
    """Create the queue that the adders ask, and the feed to whose members they send."""
    # For a day: each recovery of a cluster advances its versions by 100 s, so an hour may pass in minutes.
    cq.configure(db, STOCK, key=int, buckets=2, decider="bounded:0:100:start=10:keep=86400")
    chat = Feed[str](CHAT)
    chat.configure(db)
    for member in MEMBERS:
        cq.transact(db, lambda tr: chat.join(tr, "all", member))  # noqa: B023 - runs at once


def assert_decided(db: Any, seed: int, added: dict[str, int]) -> None:
    """Assert that each request has one answer, and that the answers have changed the stocks as the states say."""
    requests = [(adder, number) for adder, times in added.items() for number in range(times)]
    stocks = Counter(dict.fromkeys(range(3), 10))
    for begin in range(0, len(requests), 500):
        tr = db.create_transaction()  # never committed: for the tickets only
        asked = [ask(tr, seed, *each) for each in requests[begin : begin + 500]]
        tickets = [bytes.fromhex(ticket) for _, ticket in asked]
        answers = cq.transact(db, lambda tr: read_answers(tr, STOCK, tickets))  # noqa: B023 - runs at once
        for (key, _), ticket in zip(asked, tickets, strict=True):
            assert answers[ticket].outcome == DECIDED
            stocks[key] += answers[ticket].content
    assert_values(db, STOCK, dict(stocks))


def assert_delivered(db: Any, added: dict[str, int]) -> None:
    """Assert that each member has got all messages once, in the order in which they were sent to the group.

    A message may have been sent twice, as a transaction is repeated if its result is unknown.
    """
    sent = {f"{adder}/{number}" for adder, times in added.items() for number in range(times)}
    got = [_messages(db, member) for member in MEMBERS]
    for messages in got:
        assert messages == got[0]
        origins = [origin for origin, _ in messages]
        assert origins == sorted(set(origins))
        assert {body for _, body in messages} == sent


def _messages(db: Any, member: str) -> list[tuple[bytes, str]]:
    """The origins and bodies of all messages of a member of the group."""
    found: list[tuple[bytes, str]] = []
    position, more = b"", True
    while more:
        page = cq.transact(db, lambda tr: Feed[str](CHAT).read(tr, member, position, 500))  # noqa: B023
        found += [(each.origin or b"", each.body) for each in page.messages]
        position, more = page.position, page.more
    return found


def expected_values(seed: int, added: dict[str, int]) -> dict[str, dict[Any, int]]:
    """The values of both queues after so many additions of each adder."""
    words, views = Counter[str](), Counter[int]()
    for adder, times in added.items():
        for number in range(times):
            some_words, some_views = updates(seed, adder, number)
            words.update(some_words)
            views.update(some_views)
    return {WORDS: dict(words), VIEWS: {key: value for key, value in views.items() if value}}


def assert_counted(cli: Cli, db: Any, expected: dict[str, dict[Any, int]]) -> None:
    """Assert that the queues and their tables have these values once all is combined."""
    ended = cli.run("worker", "--drain")
    assert ended.status == 0, ended.err
    for queue, values in expected.items():
        assert_values(db, queue, values)
        assert _table_of(db, queue) == values
        verified = cli.run("link", "verify", queue, "--json")
        assert verified.status == 0, verified
        assert verified.rows()[-1]["rows"] == len(values)
    assert_drained(db)


def _table_of(db: Any, queue: str) -> dict[Any, int]:
    """What a link's table holds."""
    with opened_link(db, queue) as link, reporting_of(link).reading() as (conn, _):
        return dict(conn.execute(sa.text(f"SELECT key, value FROM {queue}")).all())  # noqa: S608 - a name of ours
