"""Running the real command, in processes of its own or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cli.bench.systems.backends import own_postgres
from cq.cli.demos.words import REPORTING_ENV
from cq.cli.main import main
from cq.cli.shared.settings import CONFIG_ENV, SETTINGS
from cq.observers.links.spec import TABLE_ENV
from cq.store.embedded import Database
from tests.conftest import cluster_url
from tests.kit.processes import Outcome, StartedProcesses, ended

VARIABLES = (TABLE_ENV, CONFIG_ENV, REPORTING_ENV, *(setting.variable for setting in SETTINGS))
"""What commands read of the environment, and tests set themselves."""


class Cli(StartedProcesses):
    """The command `cq` on a store of its own, in a folder of its own; by default an embedded store."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.url = url or f"embedded:{folder / 'cli.db'}"
        super().__init__(folder, {"PYTHONUNBUFFERED": "1"})
        for variable in VARIABLES:
            self.environment.pop(variable, None)
        self.environment["CQ_STORE"] = self.url
        self.program: Sequence[str] = (sys.executable, "-m", "cq")

    def start(self, *args: str | bytes, **settings: Any) -> subprocess.Popen[bytes]:
        """The command in a process that goes on."""
        return self.launch(*self.program, *args, **settings)

    def run(self, *args: str | bytes, stdin: bytes = b"", **settings: Any) -> Outcome:
        """The command in a process, to its end."""
        return ended(self.start(*args, stdin=subprocess.PIPE, **settings), stdin)


BOTH_STORES = pytest.mark.parametrize(
    "cli", ["embedded", pytest.param("cluster", marks=pytest.mark.cluster)], indirect=True
)
"""Runs a test on an embedded store and on a cluster."""


@pytest.fixture
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cli]:
    """The command in processes."""
    with Cli(tmp_path, cluster_url() if getattr(request, "param", "") == "cluster" else "") as found:
        yield found


class Here:
    """The command in this process: many times faster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *args: str) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["cq", *args])
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as exit_, modules_imported_anew():
            main()
        status = exit_.value.code
        assert isinstance(status, int)
        return Outcome(status, *self._capfd.readouterr())


@contextmanager
def modules_imported_anew() -> Iterator[None]:
    """Forget the modules of the current folder afterwards: the next command may find other ones of the same names."""
    folder, path = os.getcwd(), sys.path.copy()
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        invalidate_caches()


@pytest.fixture
def here(cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """The command in this process, on the store of `cli`."""
    monkeypatch.chdir(cli.folder)
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # so that it is put back, whatever a command does to it
        monkeypatch.delenv(variable)
    monkeypatch.setenv("CQ_STORE", cli.url)
    return Here(monkeypatch, capfd)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drains in this process wait only a second for tasks that fail repeatedly."""
    monkeypatch.setattr("cq.observers.worker.drain.PATIENCE_SECONDS", 1.0)


@pytest.fixture
def demo_db(cli: Cli) -> Iterator[Any]:
    """The store of the demos; they must leave that of `cli` alone."""
    database: Any = cq.open(f"embedded:{cli.folder / 'cq-demo.db'}")
    yield database
    database.close()
    assert not (cli.folder / "cli.db").exists()


@pytest.fixture
def db(cli: Cli) -> Iterator[Any]:
    """The store of `cli`, opened by the test itself."""
    if cli.url.startswith("fdb:"):
        yield cq.open(cli.url)
        return
    with Database(cli.folder / "cli.db", power_safe=False) as database:
        yield database


@pytest.fixture(scope="session")
def conninfo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server as the benchmark starts it."""
    with own_postgres(tmp_path_factory.mktemp("bench") / "postgres") as found:
        yield found
