"""A queue that needs a feature which this version lacks: one line that says so, whatever the command."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from tests.cli.conftest import Here
from tests.config.versions import needs_another
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
