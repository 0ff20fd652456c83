"""Fixtures of all tests: databases of both stores, and names of queues that nobody else uses."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

import cq
from cq.keys import ROOT
from cq.store import Space
from cq.store.embedded import Database
from tests.kit.clocks import Clock, set_clock
from tests.kit.processes import StartedProcesses
from tests.kit.queues import put
from tests.kit.reporting_databases import (  # noqa: F401 - fixtures
    _closed,
    mariadb,
    mariadb_url,
    postgres,
    postgres_url,
    reporting_url,
    sqlite_url,
)

# The machines that run this are slow and shared: only what is asserted may fail a test. A failure prints its seed.
# $CQ_TEST_EXAMPLES asks for more examples of each property than fit into the time that all tests may take.
settings.register_profile(
    "cq",
    max_examples=int(os.environ.get("CQ_TEST_EXAMPLES", "30")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("cq")

# A shell ignores SIGINT in its background jobs, `nohup` ignores SIGHUP, and processes inherit this. So the processes
# that tests start would ignore them, too, and the tests that send them would fail. They do not inherit functions.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)


_PREFIX: Final[ContextVar[str]] = ContextVar("prefix")
_OWNERS: Final = (b"", b"test", ROOT + b"test/")
"""What begins the keys of cluster tests before their prefix: those of cq, of another program, and of another layer."""


@pytest.fixture
def processes() -> Iterator[StartedProcesses]:
    """Starts processes; those that are left are killed when the test ends."""
    with StartedProcesses() as found:
        yield found


@cache
def _day_of_session(file: str) -> int:
    """The day of this session, after it has cleared what killed sessions left in the cluster before yesterday."""
    today = int(time.time()) // 86_400

    def clear(tr: cq.Transaction) -> None:
        for owner in _OWNERS:
            tr.clear_range(owner + b"cq-test-", owner + b"cq-test-%d" % (today - 1))

    cq.transact(cq.open(f"fdb:{file}"), clear)
    return today


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put the handlers of signals back: commands in this process set their own."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _cluster_prefix(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test of a cluster a prefix of its own, and clear it afterwards: others may use the cluster."""
    file = os.environ.get("CQ_TEST_CLUSTER_FILE")
    if file is None or request.node.get_closest_marker("cluster") is None:
        yield
        return
    _PREFIX.set(f"cq-test-{_day_of_session(file)}-{secrets.token_urlsafe(4)}")
    prefix = Space(_PREFIX.get()).prefix
    of_others = [owner + prefix for owner in _OWNERS[1:]]
    cluster = cq.open(f"fdb:{file}")
    put(cluster, dict.fromkeys(of_others, b""))
    yield

    def clear(tr: cq.Transaction) -> bool:
        are_kept = all(tr.get(key).value is not None for key in of_others)
        for key in of_others:
            tr.clear(key)
        tr.clear_range_startswith(prefix)
        return are_kept

    assert cq.transact(cluster, clear), "this test, or one at the same time, cleared keys outside its prefix"


def cluster_url() -> str:
    """The URL of the cluster under test with the prefix of this test; skips the test, saying so, without a cluster."""
    file = os.environ.get("CQ_TEST_CLUSTER_FILE")
    if not file:
        pytest.skip("no cluster: CQ_TEST_CLUSTER_FILE is not set")
    return f"fdb:{file}?prefix={_PREFIX.get()}"


@pytest.fixture(params=["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database of each store."""
    if request.param == "cluster":
        yield cq.open(cluster_url())
        return
    # Commits do not wait for the disk: only tests/crash is about power failures.
    with Database(tmp_path / "test.db", power_safe=False) as database:
        yield Space("cq").database(database)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clock of the day, which stands until the test sets it."""
    with set_clock() as clock:
        yield clock


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test uses."""
    return f"test-{secrets.token_hex(6)}"
