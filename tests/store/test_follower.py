"""A follower of a read: its newest result with its age, however many ask for it."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.errors import InvalidConfiguration
from cq.observers.top import Ranking, top
from cq.store import FollowedRead, ReadFollower
from cq.testing import drain
from cq.windows import Window
from tests.kit.clocks import jumping
from tests.kit.faults import TIMED_OUT, TOO_OLD, WrappedDatabase, error_class
from tests.kit.processes import run_code
from tests.kit.queues import add

SECONDS = 60.0


class FailingStore(WrappedDatabase):
    """A database that fails while it has a failure."""

    failure: Exception | None = None

    def create_transaction(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().create_transaction()


def after(follower: ReadFollower[Any], reading: FollowedRead[Any]) -> FollowedRead[Any]:
    """The first reading after this one, also of the same value."""
    while follower.latest is None or follower.latest.at <= reading.at:
        follower.wait(reading.version, 0.01)
    return follower.latest


def test_a_window_a_top_and_a_series_are_followed(db: Any, name: str) -> None:
    queue = cq.configure(db, name, key=str, window=(600, 10), rollup="1m:1h", observers=[top()])
    window, ranking = Window[str](name), Ranking[str, int](name)

    def read(tr: Any) -> tuple[Any, ...]:
        keys = [entry.key for entry in ranking.page(tr, 3).entries]
        return window.get(tr, "a"), keys, sum(value for _, value in queue.series(tr, "a", last="1h", fill=0))

    add(db, name, {"a": 2, "b": 1})
    drain(db)
    with ReadFollower(db, read, every=0.01) as follower, ThreadPoolExecutor(3) as pool:
        first = follower.wait(0, SECONDS)
        assert first is not None
        waiting = [pool.submit(follower.wait, first.version, SECONDS) for _ in range(2)]
        task = pool.submit(asyncio.run, follower.wait_async(first.version, SECONDS))
        add(db, name, {"a": 3, "c": 9})
        drain(db)
        while (found := after(follower, first)).value[::2] != (5, 5):  # the window and the series, in turn
            pass
        got = [each.result() for each in (*waiting, task)]
        assert None not in got

    assert (first.value, found.value) == ((2, ["a", "b"], 2), (5, ["c", "a", "b"], 5))
    assert found.version > first.version


def test_a_result_that_stays_keeps_its_version_and_gets_a_new_time(db: Any) -> None:
    with ReadFollower(db, lambda tr: tr.get(b"cq/some").value, every=0.01) as follower:
        first = follower.wait(0, SECONDS)
        assert first is not None
        second = after(follower, first)

        assert (first.value, second.value, second.version) == (None, None, first.version)
        assert 0 <= second.age < SECONDS
        assert follower.wait(first.version, 0.01) is None
    assert follower.is_closed
    assert follower.wait(first.version) is None


def test_the_latest_stays_while_the_store_cannot_be_read(db: Any) -> None:
    store: Any = FailingStore(db)
    with ReadFollower(store, lambda tr: tr.get(b"cq/some").value, every=0.01) as follower:
        first = follower.wait(0, SECONDS)
        assert first is not None
        store.failure = store.error(TIMED_OUT)
        while not follower.problem:
            follower.wait(first.version, 0.01)
        assert follower.latest is not None
        assert follower.latest.value is None
        db.transact(lambda tr: tr.set(b"cq/some", b"thing"))
        store.failure = None
        found = follower.wait(first.version, SECONDS)

        assert found is not None
        assert found.value == b"thing"
        after(follower, found)
        assert not follower.problem


def test_a_read_that_takes_longer_than_a_transaction_lives_is_a_problem(db: Any) -> None:
    def read(tr: Any) -> Any:
        clock.passed += 6.0
        raise error_class(db)(TOO_OLD)

    with jumping() as clock, ReadFollower(db, read, every=0.01) as follower:
        while not follower.problem:
            follower.wait(0, 0.01)
        assert "it took 6.0 s, and a transaction lives 5 s" in follower.problem


def test_a_read_that_ends_its_thread_is_a_problem_and_read_again(db: Any) -> None:
    errors = [SystemExit(3), GeneratorExit()]

    def read(tr: Any) -> Any:
        if errors:
            raise errors.pop()
        return "read"

    with ReadFollower(db, read, every=0.01) as follower:
        found = follower.wait(0, SECONDS)
        assert found is not None
        assert found.value == "read"


@pytest.mark.parametrize("every", [0, -1.0, float("nan"), float("inf"), "soon", True, None])
def test_what_is_no_time_between_reads_is_refused(db: Any, every: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="a positive duration"):
        ReadFollower(db, lambda tr: None, every=every)


FORKS = """
import os, sys
import cq
from cq.store import ReadFollower

with ReadFollower(cq.open(sys.argv[1]), lambda tr: tr.get(b"a").value) as follower:
    version = follower.wait(timeout=60).version
    if os.fork() == 0:
        print(follower.wait(version), follower.is_closed, follower.problem)
        follower.close(timeout=600)
        sys.exit()
    os.wait()
    print(follower.is_closed, repr(follower.problem))
"""


def test_a_follower_is_closed_in_a_forked_child_which_lacks_its_thread(tmp_path: Path) -> None:
    # New versions of Python warn of any fork beside threads.
    ignoring = {**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    found = run_code(FORKS, f"embedded:{tmp_path / 'a.db'}", env=ignoring)
    assert found.err == ""
    child, parent = found.out.splitlines()
    assert child.startswith("None True this follower was made before the process was forked: open the store")
    assert parent == "False ''"
