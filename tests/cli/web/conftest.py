"""The stores of the dashboard's tests, and their browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

import cq
from cq.store import Space
from cq.store.embedded import Database
from tests.cli.web.browsers import ARGUMENTS, CHROMIUM
from tests.conftest import cluster_url

BOTH_STORES = pytest.mark.parametrize(
    "db", ["embedded", pytest.param("cluster", marks=pytest.mark.cluster)], indirect=True
)
"""Runs a test on an embedded store and on a cluster."""


@pytest.fixture
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty store; by default an embedded one."""
    if getattr(request, "param", "") == "cluster":
        yield cq.open(cluster_url())
        return
    with Database(tmp_path / "web.db", power_safe=False) as database:
        yield Space("cq").database(database)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one module: Playwright has a running event loop, which tests of other modules must not see."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()
