"""Fixtures of all tests: databases of both stores, and names of queues that nobody else uses."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import cq
from tests.reporting_databases import _closed, postgres, postgres_url, reporting_url, sqlite_url  # noqa: F401 - fixtures

# The machines that run this are slow and shared: only what is asserted may fail a test. A failure prints its seed.
# $CQ_TEST_EXAMPLES asks for more examples of each property than fit into the time that all tests may take.
settings.register_profile(
    "cq",
    max_examples=int(os.environ.get("CQ_TEST_EXAMPLES", "50")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("cq")


def cluster_url() -> str:
    """The URL of the cluster under test; skips the test, saying so, when there is none."""
    file = os.environ.get("CQ_TEST_CLUSTER_FILE")
    if not file:
        pytest.skip("no cluster: CQ_TEST_CLUSTER_FILE is not set")
    return f"fdb:{file}"


@pytest.fixture(params=["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database of each store; a cluster's may hold queues of other tests."""
    if request.param == "cluster":
        yield cq.open(cluster_url())
        return
    database: Any = cq.open(f"embedded:{tmp_path / 'test.db'}")
    yield database
    database.close()


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test uses."""
    return f"test-{secrets.token_hex(6)}"
