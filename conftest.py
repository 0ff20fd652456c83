"""Settings of pytest for the whole project."""

from __future__ import annotations

import os
import random
import uuid
from collections import defaultdict
from collections.abc import Generator
from typing import Any

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


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass on whether the run draws samples: a process of pytest-xdist does not see the command line."""
    node.workerinput["draws_samples"] = _draws_samples(node.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tests run with a share of their cases."""
    sampled = "tests marked `sampled` run with some of their cases, drawn anew: CQ_TEST_ALL=1 runs all"
    return [sampled] if _draws_samples(config) else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw samples, and skip tests that need a cluster if CQ_TEST_CLUSTER_FILE is not set."""
    _draw_samples(config, items)
    if os.environ.get("CQ_TEST_CLUSTER_FILE"):
        return
    skip = pytest.mark.skip(reason="needs a cluster: set CQ_TEST_CLUSTER_FILE")
    for item in items:
        # Not `item.keywords`, which has the name of the project's folder, too.
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(skip)


def _draws_samples(config: pytest.Config) -> bool:
    """Whether this run takes a share of the cases of `sampled` tests: it does unless its command names tests."""
    in_process: dict[str, Any] | None = getattr(config, "workerinput", None)
    if in_process is not None:
        return bool(in_process["draws_samples"])
    names = (
        config.args_source is pytest.Config.ArgsSource.ARGS or config.option.keyword or config.option.markexpr
    )
    return not (names or os.environ.get("CQ_TEST_ALL"))


def _draw_samples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases of tests marked `sampled(n)`: one in `n` stays, and at least one. Each run draws other cases.

    Tests marked `sampled(n, among=NAME)` with the same name share one draw. A run of all cases takes half as long
    again; many runs of a share find the same defects.
    """
    if not _draws_samples(config):
        return
    # All processes of a run draw the same cases.
    rng = random.Random(getattr(config, "workerinput", {}).get("testrunuid") or uuid.uuid4().hex)
    groups: dict[tuple[str, bool, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            group = sampled.kwargs.get("among", item.nodeid.partition("[")[0])
            groups[group, item.get_closest_marker("cluster") is not None, sampled.args[0]].append(item)
    left: set[pytest.Item] = set()
    for (_, _, share), cases in groups.items():
        left.update(rng.sample(cases, len(cases) - max(1, len(cases) // share)))
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]
