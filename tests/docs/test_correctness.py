"""The pages for reviewers and readers of the code name functions, tests and canaries that there are."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cq

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("understand/correctness.md", "understand/architecture.md")]
NAMES = sorted({name for page in PAGES for name in re.findall(r"`([A-Za-z_][\w.]*)`", page.read_text())})
FUNCTIONS = [
    name
    for name in NAMES
    if "." in name and not name.startswith("canaries.") and not name.endswith((".py", ".md"))
]
TESTS = [name for name in NAMES if name.startswith("test_")]
CANARIES = [name.removeprefix("canaries.") for name in NAMES if name.startswith("canaries.")]


@cache
def functions_in(path: Path) -> set[str]:
    """The names of the functions that a file, or all files below a folder, define."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return {
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def test_the_page_names_some_of_each() -> None:
    assert min(len(FUNCTIONS), len(TESTS), len(CANARIES)) > 15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_named_exists(name: str) -> None:
    found: Any = cq
    for part in name.removeprefix("cq.").split("."):
        fields = getattr(found, "__dataclass_fields__", {})
        # A module before a name that its package imports: both may have the same name.
        if hasattr(found, "__path__") and find_spec(f"{found.__name__}.{part}"):
            found = importlib.import_module(f"{found.__name__}.{part}")
            continue
        assert hasattr(found, part) or part in fields, part
        found = getattr(found, part, None)


@pytest.mark.parametrize("name", TESTS)
def test_a_test_that_is_named_exists(name: str) -> None:
    assert name in functions_in(ROOT / "tests")


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_that_is_named_exists(name: str) -> None:
    canaries = [*(ROOT / "tests" / "simulation").glob("*canaries.py")]
    if not canaries:
        pytest.skip("the simulation is not there")
    assert any(name in functions_in(file) for file in canaries)


def test_every_room_is_in_the_picture() -> None:
    picture = PAGES[1].read_text()
    rooms = {
        folder.name
        for top in ("cq", "observers", "cli")
        for folder in (ROOT / top).iterdir()
        if folder.is_dir() and not folder.is_symlink() and folder.name != "__pycache__"
    }

    assert {room for room in rooms if not re.search(rf"\b{room}\b", picture)} == set()


def test_promises_have_one_numbering() -> None:
    """The pages have the same promises under the same numbers; README lists the first ones."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"^(?:## )?(\d+)\. ", text, re.MULTILINE)]

    correctness = (ROOT / "docs/understand/correctness.md").read_text().partition("## Invariants that")[2]
    guarantees = [
        line
        for line in (ROOT / "docs/understand/guarantees.md").read_text().splitlines()
        if line[:3] == "## "
    ]
    readme = (ROOT / "README.md").read_text().partition("## What it promises")[2].partition("\n## ")[0]
    headings = [line for line in correctness.splitlines() if line[:3] == "## "]
    everywhere = numbers("\n".join(headings))

    assert everywhere == list(range(1, len(everywhere) + 1))
    assert numbers("\n".join(guarantees)) == everywhere
    assert numbers(readme) == everywhere[: len(numbers(readme))]
    targets = re.findall(r"guarantees\.md#(\d+)-", correctness)
    assert [int(each) for each in targets] == everywhere[: len(targets)]
