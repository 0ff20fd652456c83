"""The files for contributors: they are valid, and run what CONTRIBUTING.md and `.ci/run` say."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from tests.kit.processes import run_program

ROOT = Path(__file__).parents[1]
SCHEMAS = {
    ".github/workflows/*.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/dependabot.yml": "dependabot",
}
"""{files: their schema, which check-jsonschema has}."""


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_files_for_the_code_host_are_valid(pattern: str) -> None:
    files = [str(each) for each in ROOT.glob(pattern)]
    checker = Path(sys.executable).with_name("check-jsonschema")

    assert files
    done = run_program(str(checker), "--builtin-schema", f"vendor.{SCHEMAS[pattern]}", *files)
    assert done.status == 0, done


def test_workflows_run_scripts_that_exist_on_each_version_of_python() -> None:
    workflows = {
        each.name: yaml.safe_load(each.read_text()) for each in (ROOT / ".github/workflows").glob("*.yml")
    }
    jobs = workflows["ci.yml"]["jobs"]
    versions = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    scripts = [
        word
        for flow in workflows.values()
        for job in flow["jobs"].values()
        for step in job.get("steps", [])
        for word in step.get("run", "").split()
        if word.startswith(".ci/")
    ]

    assert set(scripts) == {".ci/run", ".ci/wheel"}
    assert all(os.access(ROOT / each, os.X_OK) for each in scripts)
    for name in ("check", "installed"):
        assert {*versions} <= {*jobs[name]["strategy"]["matrix"]["python"]}


def test_hooks_before_a_commit_are_steps_of_the_whole_check() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    checks = (ROOT / ".ci/run").read_text().replace('"$scratch/venv/bin/', '".venv/bin/').replace('"', "")

    assert {hook["entry"] for hook in repository["hooks"]} == {
        line.removesuffix(" &") for line in checks.splitlines() if line.startswith(".venv/bin/")
    }


def test_recipes_run_programs_and_modules_that_exist() -> None:
    recipes = (ROOT / "justfile").read_text()
    commands = [
        shlex.split(command) for command in re.findall(r"(?:^    |&& )([^&\n]+)", recipes, flags=re.MULTILINE)
    ]
    contributing = (ROOT / "CONTRIBUTING.md").read_text()

    assert len(re.findall(r"^(\w+).*:$", recipes, flags=re.MULTILINE)) == 5
    for program, *words in commands:
        assert program == "python3" or Path(sys.executable).with_name(Path(program).name).exists(), program
        if words[:1] == ["-m"] and words[1].startswith("tests"):
            assert (ROOT / words[1].replace(".", "/")).exists()
    for name in re.findall(r"^(\w+).*:$", recipes, flags=re.MULTILINE):
        assert f"`just {name}" in contributing
