"""One line that says what to do: errors name pages that exist, and a queue that needs a newer cq is left alone."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest

import cq
import cq.errors
from cq.distribution import page_address
from cq.observers.monitoring.findings import Finding
from tests.cli.conftest import Here
from tests.config.versions import needs_another
from tests.docs.pages import DOCS, anchors
from tests.kit.queues import add

WANTED = "queue 'words' needs features that this version of cq lacks ('time travel'): use the version of cq"


@pytest.fixture
def words(db: Any) -> None:
    cq.configure(db, "words", buckets=1)
    add(db, "words", {"a": 1})
    needs_another(db, "words")


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    "command",
    [
        "add words a", "get words a", "get words a --pending", "items words", "top words", "status words",
        "configure words --buckets 1", "rebucket words --buckets 2", "limit words --max-age 5s", "pause words",
        "purge words --yes", "delete words --yes", "aside retry words", "verify words", "worker words --drain",
    ],
)  # fmt: skip
def test_it_is_refused_in_one_line(here: Here, command: str) -> None:
    outcome = here(*command.split())

    assert outcome.status == 1
    assert outcome.out == ""
    assert WANTED in outcome.err
    assert len(outcome.err.splitlines()) <= 1 + (command.startswith("worker"))


@pytest.mark.usefixtures("words")
def test_others_are_shown_and_worked_on(here: Here, db: Any) -> None:
    cq.configure(db, "other")
    add(db, "other", {"a": 1})

    here("worker", "--drain")

    assert here("get", "other", "a").out.split()[-1] == "1"
    outcome = here("status")
    assert WANTED in outcome.out + outcome.err
    assert "other" in outcome.out


PROBLEMS = "operate/problems.md#problems-of-an-embedded-store"


def classes(base: type[cq.CqError]) -> Iterator[type[cq.CqError]]:
    yield base
    for each in base.__subclasses__():
        yield from classes(each)


@pytest.mark.parametrize(
    "page", sorted({each.page for each in classes(cq.CqError) if each.page} | {each.page for each in Finding})
)
def test_a_page_that_an_error_or_a_finding_names_exists(page: str) -> None:
    file, _, section = page.partition("#")

    assert (DOCS / file).is_file()
    assert not section or section in anchors(DOCS / file)


def test_an_error_names_its_page_beside_its_message() -> None:
    for error in (cq.errors.NotAStore("no store"), copy(cq.errors.NotAStore("no store"))):
        assert str(error) == "no store"
        shown = traceback.format_exception_only(error)
        assert shown == ["cq.errors.NotAStore: no store\n", f"see {page_address(PROBLEMS)}\n"]
    assert not hasattr(cq.InvalidData("wrong"), "__notes__")


def test_a_command_names_the_page_in_its_line(here: Here) -> None:
    Path("text.db").write_text("no store")

    ended = here("status", "--store", "embedded:text.db")

    assert ended.status == 1
    assert ended.err.endswith(f" (see {page_address(PROBLEMS)})\n")
    assert ended.err.count("\n") == 1


def test_doctor_names_the_page_of_a_finding(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    here("add", "words", "a=1")

    assert f"(see {page_address('operate/problems.md#cqnoworker')})" in " ".join(here("doctor").out.split())
