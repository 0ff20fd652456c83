"""The store of the searches; their failures show their seeds."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cq.store.embedded import Database
from tests.cli.conftest import VARIABLES
from tests.fuzz import inputs, stores


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A store that does not wait for the disk: what is fed to cq is the same on either kind."""
    with Database(tmp_path / "fuzz.db", power_safe=False) as database:
        yield database


@pytest.fixture
def place(db: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store, as commands find it in a folder and an environment of its own."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("CQ_STORE", f"embedded:{db.path}")
    monkeypatch.chdir(db.path.parent)
    return db


@pytest.fixture
def full(place: Any) -> Any:
    """The same, with something of everything in it."""
    stores.make(place)
    return place


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with which seed the search goes on from where it has failed."""
    report = yield
    if report.failed and inputs.latest:
        report.sections.append(("seed", f"CQ_FUZZ_SEED={inputs.latest[-1]}"))
    return report
