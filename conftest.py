"""Settings of pytest for the whole project."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

# Pytest collects them as cq.observers and cq.cli, through the links. Under their own names it would import them twice.
collect_ignore = ["observers", "cli"]

# Tests start hundreds of processes. With this variable, which images for containers often set, each one would compile
# all modules of cq anew, which takes longer than most commands run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Run one more process than there are cores: tests often wait, for processes that start and for timers."""
    cores = yield
    return cores + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a cluster if CQ_TEST_CLUSTER_FILE is not set."""
    if os.environ.get("CQ_TEST_CLUSTER_FILE"):
        return
    skip = pytest.mark.skip(reason="needs a cluster: set CQ_TEST_CLUSTER_FILE")
    for item in items:
        # Not `item.keywords`, which has the name of the project's folder, too.
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(skip)
