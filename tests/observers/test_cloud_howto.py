"""The page about the cloud: its examples run and print what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cq.observers.worker import Worker
from tests.test_worker import running

PAGE = Path(__file__).parents[2] / "docs/howto/cloud.md"


def expected_output(code: str) -> str:
    """What the comment at the end of an example says that it prints."""
    _, _, said = code.partition("# Prints:\n")
    return "".join(f"{line[2:]}\n" for line in said.splitlines())


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}

    exec(examples[0], names)  # noqa: S102
    with names["db"] as db:
        with running(Worker(db, queues=["words"])):
            exec("from cq.observers.cloud import CloudReader\nCloudReader('words').wait(db, 0, 20)", names)  # noqa: S102
            Worker(db, queues=["words"]).drain()
        for example in examples[1:]:
            exec(example, names)  # noqa: S102
            assert capsys.readouterr().out == expected_output(example)
