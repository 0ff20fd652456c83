"""Pyright infers the types that the samples state, and reports each wrong use. `.ci/run` checks the same by mypy.

mypy checks the samples with all other tests: it is strict, so it also fails for an expected error that is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

import cq.aio
from cq.observers.top.ranking import Ranking
from cq.windows import Window
from tests.kit.processes import run_program

HERE = Path(__file__).parent
COMMENTS = re.compile(r"  # type: ignore.*")
WRONG = (HERE / "samples/wrong_uses.py").read_text()


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str]]:
    """The file, the line and the rule of each error in the samples, and in `bare.py`: the wrong uses without comments.

    All in one run, because most of its time is for cq itself.
    """
    folder = tmp_path_factory.mktemp("typing")
    shutil.copytree(HERE / "samples", folder / "samples", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "samples/bare.py").write_text(COMMENTS.sub("", WRONG))
    settings = json.loads((HERE / "pyrightconfig.json").read_text())
    settings["extraPaths"] = [str(HERE.parents[1])]
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    options = ["-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    run = run_program(sys.executable, "-m", "pyright", *options)
    report = json.loads(run.out)
    assert report["summary"]["filesAnalyzed"] == len(os.listdir(folder / "samples")), run.out
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each.get("rule", each["message"]))
        for each in report["generalDiagnostics"]
    ]


def test_the_samples_have_the_types_that_they_state(errors: list[tuple[str, int, str]]) -> None:
    assert [error for error in errors if error[0] != "bare.py"] == []


def test_each_wrong_use_is_reported(errors: list[tuple[str, int, str]]) -> None:
    lines = [number for number, line in enumerate(WRONG.splitlines(), 1) if COMMENTS.search(line)]

    assert sorted({line for file, line, _ in errors if file == "bare.py"}) == lines


@pytest.mark.parametrize(
    "each", [cq.CombineQueue, cq.Emitter, cq.Observer, Ranking, Window, cq.aio.CombineQueue, cq.aio.Window]
)
def test_the_key_suffices_as_parameter_while_a_program_runs(each: Any) -> None:
    """As for type checkers, the type of values has a default."""
    assert get_args(each[str])[0] is str
