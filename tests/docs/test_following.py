"""The pages followed literally: in one empty folder, in order, as a reader would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.commands import parse
from tests.docs.pages import DOCS, ROOT, Reader, blocks

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize(
    "page",
    [
        "connect/index.md",
        "connect/target.md",
        "connect/topics.md",
        "connect/webhooks.md",
        "count/application.md",
        "count/add.md",
        "count/combiners.md",
        "count/decide.md",
        "count/emitter.md",
        "count/frameworks.md",
        "count/observers.md",
        "count/testing.md",
        "count/time.md",
        "count/tops.md",
        "systems/feeds.md",
        "systems/tags.md",
    ],
)
def test_a_page_is_followed_in_an_empty_folder(reader: Reader, page: str) -> None:
    reader.follow(DOCS / page)


def test_the_page_of_an_application_has_the_code_of_the_example() -> None:
    declared, *_ = blocks(DOCS / "count/application.md", "python")

    assert declared in (DOCS / "examples/orders.py").read_text()


def follow_readme(reader: Reader) -> None:
    """Run its program in one interpreter, with a worker beside it; tests/test_first_minutes.py runs its commands."""
    adding, reading = blocks(ROOT / "README.md", "python")
    (drain,) = re.findall(r"`(cq worker \w+ --drain)`", (ROOT / "README.md").read_text())
    (expected,) = re.findall(r"^count\(.*# (\d+)$", reading, flags=re.MULTILINE)
    work = f"import subprocess; subprocess.run({shlex.split(drain)!r}, check=True)\n"
    reader.save("readme.py", f"{adding}\n{work}\n{reading}\nprint(count(db, 'hello'))\n")
    assert reader.type("python readme.py") == (0, f"{expected}\n")


def follow_tutorial(reader: Reader) -> None:
    """Begin in a clone, and go on in a folder beside it.

    Each block of commands prints the block of text that follows it on the page.
    """
    page = (DOCS / "learn/first-steps.md").read_text()
    fenced = re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    installing = fenced.pop(0)[1]
    assert reader.type(f"set -e\n{installing}") == (0, "")
    reader.folder = reader.folder.parent / "cq-tutorial"
    assert [each.name for each in reader.folder.iterdir()] == [".venv"]
    names = re.findall(r"^.*Save this as `(.*?)`:$", page, flags=re.MULTILINE)
    for name, program in zip(names, blocks(DOCS / "learn/first-steps.md", "python"), strict=True):
        reader.save(name, program)
    for (language, commands), (following, expected) in pairwise([*fenced, ("", "")]):
        if language == "sh":
            status, printed = reader.type(f"{{\n{commands}}} 2>&1")
            assert status == 0, printed
            assert without_variables(printed) == (without_variables(expected) if following == "text" else [])


def without_variables(output: str) -> list[str]:
    """The lines of an output, with marks instead of what varies, and single spaces between columns."""
    output = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "<time>", output)
    output = re.sub(r"\bworker [0-9a-f]{16}\b", "worker <id>", output)
    output = re.sub(r"\bin embedded:\S+", "in <store>", output)
    output = re.sub(r"\b\d+\.\d s\b", "<seconds>", output)
    return [" ".join(line.split()) for line in output.splitlines()]


def test_readme_and_tutorial_are_followed_from_a_clone(reader: Reader) -> None:
    reader.folder = reader.folder / "clone"
    reader.folder.mkdir()
    for each in ("README.md", "docs", "pyproject.toml"):
        (reader.folder / each).symlink_to(ROOT / each)
    follow_readme(reader)
    follow_tutorial(reader)


def commands_shown() -> Iterator[tuple[str, str]]:
    """Each command `cq ...` in the shell blocks of all pages."""
    for page in PAGES:
        if page.name == "cli.md":
            continue
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s*(?:&&|\||;)\s*", line):
                    words = shlex.split(part, comments=True)
                    if words[:1] and Path(words[0]).name == "cq":
                        yield page.name, " ".join(map(shlex.quote, words[1:]))


@pytest.mark.parametrize(("page", "command"), sorted(set(commands_shown())))
def test_commands_that_are_shown_have_the_words_that_the_command_line_takes(page: str, command: str) -> None:
    parse([word for word in shlex.split(command) if not word.startswith((">", "<"))])
