"""A broker of Kafka for all tests of links."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.links.kafkahelpers import Broker, running


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker that runs as long as the tests."""
    with running() as found:
        yield found
