"""Workers are killed while they decide: each request is decided once, and each answer is that of the state."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import cq
from cq.store.embedded import Database
from cq.verify.queue import verify
from tests.conftest import cluster_url
from tests.decisions.counter import CAP, QUEUE, app, queue
from tests.kit.processes import SECONDS, StartedProcesses

KEYS: Final = ("a", "b")
ASKERS: Final = 4
EACH: Final = 40
KILL_EVERY: Final = 60


@pytest.fixture(params=["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store of each kind."""
    if request.param == "cluster":
        yield cluster_url()
        return
    path = tmp_path / "test.db"
    with Database(path, power_safe=False):
        yield f"embedded:{path}"


class Workers:
    """Two workers; every few answers the next one is killed, and another one started."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self._workers = [start(), start()]
        self._lock = threading.Lock()
        self._answers = 0
        self.killed = 0

    def answered(self) -> None:
        with self._lock:
            self._answers += 1
            if self._answers % KILL_EVERY == 0:
                victim = self._workers.pop(0)
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                self.killed += 1
                self._workers.append(self._start())


def test_requests_are_decided_once_while_workers_are_killed(url: str, processes: StartedProcesses) -> None:
    db: Any = cq.open(url)
    app.configure_all(db)

    def start() -> subprocess.Popen[bytes]:
        command = ("-m", "cq", "worker", "--store", url, "--app", "tests.decisions.counter:app", QUEUE)
        nowhere = subprocess.DEVNULL
        return processes.python(*command, stdout=nowhere, stderr=nowhere)

    workers = Workers(start)
    answers: dict[tuple[str, int], int] = {}

    def ask(asker: int) -> None:
        for each in range(EACH):
            key, request = KEYS[each % 2], asker * EACH + each
            answers[key, request] = queue.ask_now(db, key, request, f"request {request}", timeout=SECONDS)
            workers.answered()

    threads = [threading.Thread(target=ask, args=(asker,)) for asker in range(ASKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert workers.killed >= 2
    assert len(answers) == ASKERS * EACH
    for key in KEYS:
        state = cq.transact(db, lambda tr: queue.get(tr, key))  # noqa: B023 - runs at once
        granted = {answer: request for (of, request), answer in answers.items() if of == key and answer >= 0}
        assert state is not None
        assert state["granted"] == [granted[number] for number in range(CAP)]
        refused = [answer for (of, _), answer in answers.items() if of == key and answer < 0]
        assert len(refused) == ASKERS * EACH // 2 - CAP
    assert list(verify(db, QUEUE)) == []
