"""The simulation runs beside the other tests, in a process of its own, and what came of it is asked for last."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

SECONDS = 40
"""For how long seeds are run; then come the canaries."""


@dataclass
class Background:
    """The simulation's process, and what it prints."""

    process: subprocess.Popen[str]
    output: IO[str]

    def wait(self) -> tuple[int, str]:
        """Exit status and output, once it has ended."""
        status = self.process.wait()
        self.output.seek(0)
        return status, self.output.read()


_running = pytest.StashKey[Background]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start it when it is going to be asked for, and ask last."""
    last = [item for item in items if "background" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in last] + last


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start it, once it is known which tests were chosen."""
    is_asked = any("background" in getattr(item, "fixturenames", ()) for item in session.items)
    if not is_asked or session.config.option.collectonly:
        return
    options = ["--seconds", str(SECONDS), "--seeds", "1000000", "--canaries", "--processes", "1"]
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the tests run
    session.config.stash[_running] = Background(
        subprocess.Popen(
            ["nice", "-n", "10", sys.executable, "-m", "tests.simulation", *options],  # noqa: S607
            cwd=Path(__file__).parents[2],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        ),
        output,
    )


@pytest.fixture
def background(request: pytest.FixtureRequest) -> Background:
    """The simulation that runs beside the tests."""
    return request.config.stash[_running]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End it when the tests end early."""
    if (found := config.stash.get(_running, None)) is not None:
        found.process.kill()
        found.process.wait()
        found.output.close()
