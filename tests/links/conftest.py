"""A broker of Kafka for all tests of links, and the drivers of targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.links.drivers import Driver, made
from tests.links.kafkahelpers import Broker, running


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker that runs as long as the tests."""
    with running() as found:
        yield found


@pytest.fixture
def driver(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    """The driver of a kind of targets."""
    driver = made(request.param, request, tmp_path, monkeypatch)
    with driver.ending:
        yield driver
