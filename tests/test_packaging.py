"""What is shipped is what the tree holds: no module forgotten, nothing else taken along."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cq.store import foundationdb

ROOT = Path(__file__).parents[1]
TOP_FOLDERS = {"cq": "cq", "observers": "cq/observers", "cli": "cq/cli"}
"""Where each top folder's modules stand in the distribution."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from the source distribution of a copy of the tree.

    A copy, since setuptools leaves `build/` behind and ships stale modules that it finds there.
    """
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in TOP_FOLDERS:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = (tree / "dist").glob("*.whl")
    return zipfile.ZipFile(file)


def modules_in_tree() -> set[str]:
    found = {"cq/py.typed"}
    for folder, package in TOP_FOLDERS.items():
        for where, _, names in os.walk(ROOT / folder):  # walk() does not follow the links
            inside = PurePosixPath(package) / Path(where).relative_to(ROOT / folder)
            found |= {str(inside / name) for name in names if name.endswith(".py")}
    return found


def test_the_wheel_holds_exactly_the_modules_of_the_tree(wheel: zipfile.ZipFile) -> None:
    """A new subpackage fails here until pyproject.toml names it."""
    shipped = {name for name in wheel.namelist() if not PurePosixPath(name).parts[0].endswith(".dist-info")}

    assert shipped == modules_in_tree()


def test_the_wheel_has_the_licence_and_installs_one_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))

    assert wheel.read(entry_points).decode().split("\n") == ["[console_scripts]", "cq = cq.cli.main:main", ""]
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


def test_the_command_is_there_to_be_called() -> None:
    (entry_point,) = importlib.metadata.distribution("cq").entry_points

    assert callable(entry_point.load())


@pytest.mark.parametrize("link", ["observers", "cli"])
def test_the_links_are_relative_so_that_a_clone_works_anywhere(link: str) -> None:
    assert os.readlink(ROOT / "cq" / link) == f"../{link}"


def test_the_binding_is_asked_for_in_one_range_everywhere() -> None:
    """In both extras, and in the messages that say what to install."""
    extras = project()["project"]["optional-dependencies"]
    (binding,) = extras["fdb"]

    assert binding in extras["test"]
    assert f"pip install '{binding}'" == foundationdb.INSTALL_BINDING


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """`.ci/run` finds it by this pattern; two such lines, or none, would make it run something else."""
    pattern = re.search(r"grep -E '(.*)' README.md", (ROOT / ".ci/run").read_text())
    assert pattern is not None

    lines = (ROOT / "README.md").read_text().splitlines()

    assert [line for line in lines if re.search(pattern[1], line)] == [
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -n logical"
    ]
