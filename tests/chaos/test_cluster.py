"""On a cluster of several processes everything is killed and paused, the servers too: all counts once.

Every update is added, every request decided and every message delivered once. Adders, workers that combine, publish a
cloud and send, FoundationDB's servers and PostgreSQL go down and come back at random. $CQ_TEST_FDBSERVER is the path
of `fdbserver`; $CQ_TEST_CHAOS_SECONDS sets another time than a minute.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import cq
from cq.observers.links.spec import table
from cq.observers.top import CloudReader, top
from tests.chaos.cluster import PROCESSES, Cluster
from tests.cli.conftest import Cli
from tests.crash.adder import VIEWS, WORDS
from tests.crash.processes import (
    Crash,
    assert_counted,
    assert_decided,
    assert_delivered,
    configure_stock_and_chat,
    expected_values,
)
from tests.kit.postgres import PostgresServer
from tests.kit.reporting_databases import new_schema

SERVER: Final = os.environ.get("CQ_TEST_FDBSERVER")
TIME: Final = float(os.environ.get("CQ_TEST_CHAOS_SECONDS", "60"))
VARIABLE: Final = "CQ_TEST_CHAOS_URL"


class ClusterCrash(Crash):
    """Crashes that hit the servers of a cluster, too, for a given time."""

    def __init__(self, cli: Cli, postgres: PostgresServer, seed: int, cluster: Cluster) -> None:
        super().__init__(cli, postgres, seed)
        self.cluster = cluster
        self.hits = 0
        self._killed: list[int] = []
        self._paused: list[int] = []

    def is_expected(self, status: int) -> bool:
        """An adder may fail, too, if the cluster does not answer within the timeout; it repeats its operation ids."""
        return status in (-signal.SIGKILL, 1)

    def _kinds(self) -> Iterator[Callable[[], None]]:
        hits = [
            *(self._kill_adder, self._kill_worker, self._stop_one, self._kill_server, self._freeze_server),
            *(
                self._kill_one_process,
                self._kill_one_process,
                self._pause_one_process,
                self._kill_all_processes,
            ),
        ]
        deadline = time.monotonic() + TIME
        while time.monotonic() < deadline:
            self.hits += 1
            yield self.draw.choice(hits)

    def _go_on(self) -> None:
        super()._go_on()
        for number in self._killed:
            self.cluster.start_process(number)
        for number in self._paused:
            self.cluster.send_signal(number, signal.SIGCONT)
        self._killed, self._paused = [], []

    def _kill_one_process(self) -> None:
        self._killed = [self.draw.randrange(PROCESSES)]
        self.cluster.kill(self._killed[0])

    def _kill_all_processes(self) -> None:
        """As when the power of all machines fails; what was committed is on their disks."""
        self._killed = list(range(PROCESSES))
        for number in self._killed:
            self.cluster.kill(number)

    def _pause_one_process(self) -> None:
        self._paused = [self.draw.randrange(PROCESSES)]
        self.cluster.send_signal(self._paused[0], signal.SIGSTOP)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A new cluster."""
    if SERVER is None:
        pytest.skip("no server to start: CQ_TEST_FDBSERVER is not set")
    folder = Path(tempfile.mkdtemp(prefix="cq-fdb-"))
    found = Cluster(Path(SERVER), folder)
    try:
        found.start()
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_whatever_is_killed_or_paused_every_update_counts_once(
    cluster: Cluster, cli: Cli, postgres: PostgresServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.url = cli.environment["CQ_STORE"] = cluster.url
    url = new_schema(postgres.url)
    monkeypatch.setenv(VARIABLE, url)
    cli.environment[VARIABLE] = url
    db: Any = cq.open(cluster.url)
    for queue, key in ((WORDS, str), (VIEWS, int)):
        linked = [table(queue, url_env=VARIABLE)]
        cq.configure(db, queue, key=key, buckets=3, observers=[top(5)], links=linked)
        assert cli.run("link", "init", queue).status == 0
    configure_stock_and_chat(db)
    crash = ClusterCrash(cli, postgres, seed, cluster)
    added = crash.run()
    expected = expected_values(seed, added)
    assert_counted(cli, db, expected)
    assert_decided(db, seed, added)
    assert_delivered(db, added)
    for queue, values in expected.items():
        checked = cli.run("verify", queue)
        assert checked.status == 0, checked
        cloud = cq.transact(db, lambda tr, queue=queue: CloudReader(queue).read(tr.snapshot))  # type: ignore[misc]
        highest = sorted(values.values(), reverse=True)[:5]
        assert [entry.score for entry in cloud.entries] == highest
    assert crash.hits > TIME / 10
