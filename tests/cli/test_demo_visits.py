"""`cq demo visits`: every look equals a recount, though its processes are killed."""

from __future__ import annotations

import itertools
import signal
import time
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import cq
from cq import runtime
from cq.cli.demos.harness.crew import DemoCrew
from cq.cli.demos.visits.access_log import write_log
from cq.cli.demos.visits.demo import VisitDemo
from cq.cli.demos.visits.replay import ReplayClock
from cq.config.window import WindowSpec
from cq.observers.visits import Visits
from tests.cli.conftest import SECONDS, Cli, Here


def test_every_look_equals_a_recount_whoever_is_killed(cli: Cli, demo_db: Any) -> None:
    options = ["--number", "1500", "--speed", "800", "--kill-every", "0.5", "--seed", "5"]
    ended = cli.run("demo", "visits", *options, "--chart", "visits.svg", "--json")

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    assert (found["seed"], found["lines_skipped"], found["skipped"]) == (5, 0, [])
    assert 1_400 < found["visits"] <= 1_500
    assert found["kills"] > 0
    assert len(found["looks"]) > 1
    assert [each["page"] for each in found["unique"]] == ["*", *(page for page, _ in found["lifetime"])]
    assert all(abs(each["error_percent"]) < 10 for each in found["unique"])
    assert [each["measure"] for each in found["responses"]] == ["bytes", "seconds"]
    assert found["responses"][1]["responses"] == found["visits"]
    assert 0 < found["responses"][1]["p50"] < found["responses"][1]["p99"]
    assert [each["rank"] for each in found["trending"]][:1] == [1]
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


def read_places(db: Any) -> list[int]:
    """The numbers of visits that two servers have counted."""
    keys = [b"demo_visits/position/%d" % number for number in range(2)]
    return cq.transact(db, lambda tr: [int(tr.get(key).value or 0) for key in keys])


def test_an_interrupt_leaves_the_recounted_visits_and_the_chart(cli: Cli, demo_db: Any) -> None:
    write_log(cli.folder / "access.log", Random(3), visits=2_000, seconds=100_000.0)
    demo = cli.start("demo", "visits", "access.log", "--speed", "200", "--chart", "visits.svg", "--seed", "3")
    assert demo.stderr is not None
    assert demo.stderr.readline().startswith(
        b"the replay takes about 7.9 minutes at 200 times the log's speed; "
    )
    deadline = time.monotonic() + SECONDS
    while not read_places(demo_db)[0]:
        assert time.monotonic() < deadline, "no visit is counted"
        assert demo.poll() is None, "it has ended"
        time.sleep(0.01)

    demo.send_signal(signal.SIGINT)

    _, err = demo.communicate(timeout=SECONDS)
    places = read_places(demo_db)
    assert demo.returncode == 130
    assert f"\nended early: {sum(places):,} of " in err.decode()
    assert "counted, as recounted" in err.decode()
    assert dict(Visits("demo_visits").lifetime.scan(demo_db))["*"] == sum(places)
    assert ET.parse(cli.folder / "visits.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("seconds", "speed", "line"),
    [
        (4_000, 100.0, None),
        (
            86_400,
            10.0,
            "the replay takes about 2.4 hours at 10 times the log's speed; --speed 1000 takes about 87 seconds",
        ),
        (864_000, 1_000.0, "the replay takes about 14 minutes at 1,000 times the log's speed"),
    ],
)
def test_a_long_replay_has_its_duration_and_a_faster_speed(
    seconds: float, speed: float, line: str | None
) -> None:
    pace = ReplayClock.at_speed(WindowSpec(600_000, 10_000), speed, first=7.0)

    assert pace.about_duration(7.0 + seconds) == line


def test_a_replay_of_weeks_reaches_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    weeks = itertools.count(0.0, 7 * 86_400.0)
    monkeypatch.setattr(runtime, "monotonic", lambda: next(weeks))
    looks = iter([False, False, True])

    DemoCrew({}, Random(1)).run(lambda: next(looks), VisitDemo.seconds)

    assert next(looks, None) is None
    assert next(weeks) > 2 * 7 * 86_400.0
