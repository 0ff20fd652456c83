"""The example programs run, and print what they say that they print."""

from __future__ import annotations

import logging
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.processes import run_program

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
TESTS = [example for example in EXAMPLES if example.name.startswith("test_")]
PROGRAMS = [example for example in EXAMPLES if example not in TESTS]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of workers, which gets its level back: an example changes it."""
    found = logging.getLogger("cq.worker")
    level = found.level
    yield found
    found.setLevel(level)


@pytest.mark.usefixtures("logger")
@pytest.mark.parametrize("example", PROGRAMS, ids=lambda example: example.stem)
def test_an_example_prints_what_it_says(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, said = example.read_text().split("# Prints:\n")

    runpy.run_path(str(example), run_name="__main__")

    assert capsys.readouterr().out == "".join(line.removeprefix("# ") for line in said.splitlines(True))


@pytest.mark.parametrize("example", TESTS, ids=lambda example: example.stem)
def test_an_example_of_tests_passes(example: Path, tmp_path: Path) -> None:
    """Elsewhere, so that it does without this project's settings of pytest."""
    shutil.copy(example, tmp_path)
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", example.name]

    ended = run_program(*command, cwd=tmp_path)

    assert ended.status == 0, ended


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_shown_somewhere(example: Path) -> None:
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]

    assert any(f"examples/{example.name}" in page for page in pages)
