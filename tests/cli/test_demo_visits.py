"""`cq demo visits`: every look equals a recount, though its processes are killed."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import cq
from cq.observers.visits import Visits
from tests.cli.conftest import Cli, Here


def test_every_look_equals_a_recount_whoever_is_killed(cli: Cli, demo_db: Any) -> None:
    options = ["--number", "1500", "--speed", "800", "--kill-every", "0.5", "--seed", "5"]
    ended = cli.run("demo", "visits", *options, "--chart", "visits.svg", "--json")

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    assert (found["seed"], found["lines_skipped"], found["skipped"]) == (5, 0, [])
    assert 1_400 < found["visits"] <= 1_500
    assert found["kills"] > 0
    assert len(found["looks"]) > 1
    visits = Visits("demo_visits")
    lifetime = dict(visits.lifetime.scan(demo_db))
    assert lifetime["*"] == found["visits"] == sum(lifetime.values()) - lifetime["*"]
    assert sorted(lifetime.values())[-2] == found["lifetime"][0][1]
    assert cq.transact(demo_db, visits.within) == {}
    assert ET.parse(cli.folder / "visits.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


def test_lines_that_are_skipped_are_named_and_a_log_without_visits_is_refused(here: Here, cli: Cli) -> None:
    (cli.folder / "access.log").write_text("one\n" * 7)

    ended = here("demo", "visits", str(cli.folder / "access.log"), "--seed", "1")

    assert (ended.status, ended.out) == (2, "")
    assert "cq: the log has no visits" in ended.err
