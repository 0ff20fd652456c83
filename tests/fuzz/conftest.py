"""Failures of searches show their seeds."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.fuzz import inputs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with which seed the search goes on from where it has failed."""
    report = yield
    if report.failed and inputs.latest:
        report.sections.append(("seed", f"CQ_FUZZ_SEED={inputs.latest[-1]}"))
    return report
