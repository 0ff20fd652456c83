"""What crash tests share: their seed, and processes that run one of the scripts beside this file."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import cli as cli
from tests.cli.conftest import db as db
from tests.cli.conftest import here as here
from tests.kit.processes import SECONDS, StartedProcesses
from tests.kit.reporting_databases import postgres as postgres

ROOT: Final = Path(__file__).parents[2]
ROUNDS: Final = int(os.environ.get("CQ_TEST_CRASH_ROUNDS", "2"))
"""How much is tried; $CQ_TEST_CRASH_ROUNDS sets more."""


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What everything random of the test is drawn from: $CQ_TEST_CRASH_SEED, else any; a failure shows it."""
    found = int(os.environ.get("CQ_TEST_CRASH_SEED") or random.SystemRandom().randrange(1_000_000))
    request.node.add_report_section("setup", "seed", f"CQ_TEST_CRASH_SEED={found}")
    return found


class Scripts(StartedProcesses):
    """Processes that run scripts of this folder."""

    def start(self, script: str, *args: object, **settings: str) -> subprocess.Popen[bytes]:
        """A process, with these settings in its environment."""
        environment = {**self.environment, **settings}
        return self.python(
            "-m", f"tests.crash.{script}", *args, env=environment, stdin=subprocess.PIPE, stderr=None
        )

    def run(self, script: str, *args: object) -> tuple[int, bytes]:
        """A process to its end: its status, and what it has printed."""
        process = self.start(script, *args)
        out, _ = process.communicate(timeout=SECONDS)
        return process.returncode, out


@pytest.fixture
def scripts() -> Iterator[Scripts]:
    """Starts scripts of this folder."""
    with Scripts() as found:
        yield found
