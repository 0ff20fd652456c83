"""The pages followed literally: in one empty folder, in order, as a reader would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
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
