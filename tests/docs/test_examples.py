"""The example programs run, and print what they say that they print."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_prints_what_it_says(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, said = example.read_text().split("# Prints:\n")

    runpy.run_path(str(example), run_name="__main__")

    assert capsys.readouterr().out == "".join(line.removeprefix("# ") for line in said.splitlines(True))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_shown_somewhere(example: Path) -> None:
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]

    assert any(f"examples/{example.name}" in page for page in pages)
