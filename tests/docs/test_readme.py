"""The README's example does what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_example_runs_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CQ_STORE", raising=False)
    adding, reading = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}

    exec(adding, names)  # noqa: S102
    command = Path(sys.executable).with_name("cq")
    subprocess.run([command, "worker", "mentions", "--drain"], check=True, capture_output=True, timeout=180)
    exec(reading, names)  # noqa: S102

    assert names["count"](names["db"], "hello") == 2


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text()))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (README.parent / link).exists()


def test_contributors_read_the_same_test_command() -> None:
    (command,) = re.findall(r"^python3 -m venv .* -m pytest .*$", README.read_text(), flags=re.MULTILINE)
    assert f"\n{command}\n" in README.with_name("CONTRIBUTING.md").read_text()
