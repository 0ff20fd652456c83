"""Settings of pytest for the whole project."""

from __future__ import annotations

import os

import pytest

# Pytest collects them as cq.observers and cq.cli, through the links. Under their own names it would import them twice.
collect_ignore = ["observers", "cli"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a cluster if CQ_TEST_CLUSTER_FILE is not set."""
    if os.environ.get("CQ_TEST_CLUSTER_FILE"):
        return
    skip = pytest.mark.skip(reason="needs a cluster: set CQ_TEST_CLUSTER_FILE")
    for item in items:
        if "cluster" in item.keywords:
            item.add_marker(skip)
