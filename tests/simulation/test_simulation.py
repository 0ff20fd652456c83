"""The simulation as a part of the tests: enough seeds, every canary, and that a seed is one run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.canaries import CANARIES, forgets_to_clear_rows
from tests.simulation.plan import Plan
from tests.simulation.run import run, smaller

SECONDS: Final = 10
"""For how long seeds are run."""
PARTS: Final = 18
"""Number of tests that the canaries are divided among, for runs of the tests in parallel."""


def command(*options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_seed_is_one_run() -> None:
    first, second = (command("--seed", "4", "-v", hash_seed=each) for each in ("1", "2"))
    assert first.returncode == 0, first.stdout[-5_000:] + first.stderr
    held = [line for line in first.stdout.splitlines() if not line.startswith("held after")]
    assert len(held) > 100
    assert held == [line for line in second.stdout.splitlines() if not line.startswith("held after")]


def test_a_violation_is_told_with_a_smaller_run_of_it() -> None:
    with forgets_to_clear_rows():
        outcome = run(Plan.of(0))
        best = smaller(outcome)
    assert outcome.violation
    assert best.violation
    assert best.plan.seed == 0
    assert best.plan.on < outcome.plan.on
    assert best.plan.steps < outcome.plan.steps
    assert len(best.lines) > 5


def test_every_seed_holds() -> None:
    """Each run of the tests begins at another seed, so that many runs of them cover many seeds."""
    first = os.environ.get("CQ_SIMULATION_FIRST") or str(random.SystemRandom().randrange(1_000_000))
    done = command("--seconds", str(SECONDS), "--first", first, "--seeds", "1000000000", "--processes", "1")
    assert done.returncode == 0, f"CQ_SIMULATION_FIRST={first}\n{done.stdout}{done.stderr}"
    assert "no violation" in done.stdout


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_finds_what_it_replaces(name: str) -> None:
    """Also canaries that this run of the tests does not try."""
    with CANARIES[name]():
        pass


@pytest.mark.sampled(9)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_canary_is_caught(part: int) -> None:
    names = list(CANARIES)[part::PARTS]
    done = command("--seeds", "0", "--canaries", *names, "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("caught by seed") == len(names)
