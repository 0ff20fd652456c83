"""Pyright infers the types that the samples state, and reports each wrong use. `.ci/run` checks the same by mypy.

mypy checks the samples with all other tests: it is strict, so it also fails for an expected error that is missing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMENTS = re.compile(r"  # type: ignore.*")


def pyright(folder: Path) -> list[str]:
    """The errors of a folder with a configuration, as `file:line rule`."""
    command = [
        sys.executable,
        "-m",
        "pyright",
        "-p",
        str(folder),
        "--pythonpath",
        sys.executable,
        "--outputjson",
    ]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"], run.stdout
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1} {each.get('rule', each['message'])}"
        for each in report["generalDiagnostics"]
    ]


def test_the_samples_have_the_types_that_they_state() -> None:
    assert pyright(HERE) == []


def test_each_wrong_use_is_reported(tmp_path: Path) -> None:
    wrong = (HERE / "samples/wrong_uses.py").read_text()
    settings = json.loads((HERE / "pyrightconfig.json").read_text())
    settings["extraPaths"] = [str(HERE.parents[1])]
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/wrong_uses.py").write_text(COMMENTS.sub("", wrong))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    lines = [number for number, line in enumerate(wrong.splitlines(), 1) if COMMENTS.search(line)]

    found = {int(error.split(":")[1].split()[0]) for error in pyright(tmp_path)}

    assert sorted(found) == lines
