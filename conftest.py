"""What pytest needs to know about this tree."""

from __future__ import annotations

import os

import pytest

# They are collected as cq.observers and cq.cli, through the links; under their own names they would be
# imported a second time.
collect_ignore = ["observers", "cli"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a cluster when none is named, and say so."""
    if os.environ.get("CQ_TEST_CLUSTER_FILE"):
        return
    skip = pytest.mark.skip(reason="needs a cluster: set CQ_TEST_CLUSTER_FILE")
    for item in items:
        if "cluster" in item.keywords:
            item.add_marker(skip)
