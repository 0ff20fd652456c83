"""`cq demo visits`: every look equals a recount, though its processes are killed, and what differs is found."""

from __future__ import annotations

import gzip
import signal
import tracemalloc
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import cq
from cq.cli.demos.visits import VisitRecount, read_log
from cq.intake.access_log import Visit
from cq.observers.sessions import SessionCounts
from cq.observers.visits import Visits
from tests.cli.conftest import Cli, Here
from tests.kit.processes import SECONDS, wait_until

COMMON = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache.gif?a=1 HTTP/1.0" 200 2326\n'
VISIT = Visit(971_211_336.0, "/apache.gif", "192.0.2.7")


@pytest.mark.parametrize("packed", [False, True])
def test_a_long_line_is_read_in_pieces_and_the_next_one_as_it_is(
    tmp_path: Path, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "access.log"
    content = COMMON + b"x" * 30_000_000 + b"\n" + COMMON
    path.write_bytes(gzip.compress(content, 1) if packed else content)

    tracemalloc.start()
    try:
        found = list(read_log(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == [(VISIT, COMMON)] * 2
    assert "skipped, the first one as neither common nor combined log format" in capsys.readouterr().err
    assert peak < 6_000_000


@pytest.mark.sampled(3, among="demos")
def test_every_look_equals_a_recount_whoever_is_killed(cli: Cli, demo_db: Any) -> None:
    options = "--number 1500 --speed 800 --kill-every 0.5 --seed 5 --chart visits.svg --json"

    ended = cli.run("demo", "visits", *options.split())

    assert (ended.status, ended.err.splitlines()[1:]) == (0, ["seed 5"])
    (found,) = ended.rows()
    assert found["seed"] == 5
    assert 1_400 < found["visits"] <= 1_510
    assert found["kills"] > 0
    assert found["bots"] > 0
    assert len(found["looks"]) > 1
    assert found["sessions"]["visits"] == found["visits"]
    assert 0 < found["sessions"]["bounces"] < found["sessions"]["sessions"] == found["visitors"]
    visits = Visits("demo_visits")
    lifetime = dict(visits.lifetime.scan(demo_db))
    assert lifetime[""] == found["visits"] == sum(lifetime.values()) - lifetime[""]
    assert sorted(lifetime.values())[-2] == found["lifetime"][0][1]
    assert cq.transact(demo_db, visits.within) == {}
    assert ET.parse(cli.folder / "visits.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


def test_lines_that_are_skipped_are_named_and_a_log_without_visits_is_refused(here: Here, cli: Cli) -> None:
    (cli.folder / "access.log").write_text("one\n" * 7)

    ended = here("demo", "visits", str(cli.folder / "access.log"), "--seed", "1")

    assert (ended.status, ended.out) == (2, "")
    assert "access.log: 7 lines skipped, the first one as" in ended.err
    assert "cq: the log has no visits" in ended.err
    ended = here("demo", "visits", "--chart", "none/visits.svg")
    assert (ended.status, ended.err) == (1, "cq: No such file or directory: none/visits.svg\n")


def read_places(db: Any) -> list[int]:
    """The numbers of visits that two servers have counted."""
    keys = [b"demo_visits/position/%d" % number for number in range(2)]
    return cq.transact(db, lambda tr: [int(tr.get(key).value or 0) for key in keys])


@pytest.mark.sampled(3, among="demos")
def test_an_interrupt_leaves_the_recounted_visits_and_the_chart(cli: Cli, demo_db: Any) -> None:
    hours = (
        b'192.0.2.%d - - [01/Mar/2025:%02d:00:%02d +0000] "GET / HTTP/1.0" 200 1\n' % (second, hour, second)
        for hour in range(20)
        for second in range(50)
    )
    (cli.folder / "access.log").write_bytes(b"".join(hours))
    demo = cli.start("demo", "visits", "access.log", "--speed", "200", "--chart", "visits.svg", "--seed", "3")
    assert demo.stderr is not None
    assert demo.stderr.readline() == b"the replay takes about 5 min 42 s, and then 3.0 s\n"
    wait_until(lambda: read_places(demo_db)[0], demo)

    demo.send_signal(signal.SIGINT)

    _, err = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, err.decode()
    counted = sum(read_places(demo_db))
    assert f"\n{counted:,} visits of 1 page" in err.decode()
    assert dict(Visits("demo_visits").lifetime.scan(demo_db))[""] == counted < 1_000
    assert ET.parse(cli.folder / "visits.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


# The recount


def test_sessions_are_recounted_by_visitor_and_day() -> None:
    recount = VisitRecount()
    for at in (90_000, 86_300, 93_599, 91_799):  # one on the day before, and the last one a whole gap later
        for visitor in ("ann", "bob"):
            recount.add(Visit(float(at), "/", visitor), None)

    assert recount.sessions(1_800) == SessionCounts(6, 4, 8, 3_598)
