"""`cq add NAME --access-log FILE`: each visit counts once, through kills and rotations."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from cq.cli.demos.harness import compare
from cq.keys import QueueKeys
from cq.observers.visits import Visits
from cq.store.transact import transact
from cq.testing import drain
from tests.cli.conftest import Cli, Here
from tests.kit.processes import SECONDS, wait_until

COMMAND = ("add", "visits", "--access-log", "access.log")


def line(page: str, visitor: str = "192.0.2.1", agent: str = "Browser/1") -> str:
    now = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S %z")
    return f'{visitor} - - [{now}] "GET {page} HTTP/1.1" 200 5 "-" "{agent}"\n'


def lifetime(db: Any) -> dict[str, int]:
    visits = Visits("visits")
    drain(db, *visits.queues)
    return {page: views for page, views in visits.lifetime.scan(db) if page}


def test_visits_of_a_log_are_counted_in_queues_that_are_created(here: Here, cli: Cli, db: Any) -> None:
    log = cli.folder / "access.log"
    missing = here(*COMMAND)
    assert (missing.status, "No such file" in missing.err) == (1, True)
    assert Visits.stored(db, "visits") is None
    log.write_text(line("/a") + "nothing\n" + line("/b", agent="Googlebot/2") + line("/a"))

    first, again = here(*COMMAND), here(*COMMAND, "--json")

    assert first.out == "counted 2 visits in 'visits', skipped 1 line\n"
    assert "configured visits 'visits': queues visits.views, " in first.err
    assert "cq: skipped 1 line, the first: neither common nor combined log format: 'nothing" in first.err
    assert again.rows() == [{"queue": "visits", "added": 0, "outside": 0, "skipped": 0}]
    assert here(*COMMAND, "--name", "another", "--bots", "").out.startswith("counted 3 visits")
    assert lifetime(db) == {"/a": 4, "/b": 1}


def test_a_pattern_is_the_format_of_the_lines(here: Here, cli: Cli, db: Any) -> None:
    (cli.folder / "access.log").write_text("192.0.2.1 1740859200.000 /a 200\n")

    ended = here(*COMMAND, "--log-format", "$remote_addr $msec $uri $status")

    assert (
        ended.out == "counted 1 visit in 'visits' (1 outside the window, so in the counts of all time only)\n"
    )
    assert here(*COMMAND, "--log-format", "$remote_addr").status == 2
    assert lifetime(db) == {"/a": 1}


def test_a_wrong_format_is_refused_before_lines_are_marked_as_done(here: Here, cli: Cli, db: Any) -> None:
    (cli.folder / "access.log").write_text("192.0.2.1 1740859200.000 /a 200\n" * 10)

    wrong = here(*COMMAND)
    right = here(*COMMAND, "--log-format", "$remote_addr $msec $uri $status")

    assert wrong.status == 2
    assert "none of the first 10 lines can be read, so none is counted: neither common nor" in wrong.err
    assert "--log-format" in wrong.err
    assert right.out.startswith("counted 10 visits")


def test_sessions_count_from_the_first_command_that_asks_for_them(here: Here, cli: Cli, db: Any) -> None:
    def add(pages: str, *options: str) -> str:
        with (cli.folder / "access.log").open("a") as file:
            file.write("".join(map(line, pages)))
        return here(*COMMAND, *options).err

    assert "sessions" not in add("a")
    assert "configured sessions of visits 'visits': queues visits.sessions, " in add("ab", "--sessions")
    assert add("a") == ""
    drain(db)

    assert transact(db, Visits("visits").sessions.get).visits == 3


@pytest.mark.parametrize("option", ["--follow", "--sessions", "--name=a", "--bots=a", "--log-format=%h"])
def test_options_of_a_log_need_one(here: Here, option: str) -> None:
    ended = here("add", "words", "a=1", option)
    assert (ended.status, "add --access-log FILE" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("option", "said"), [("--bots=(", "regular expression of bots"), ("--name=", "got an empty one")]
)
def test_a_wrong_option_creates_no_queues(here: Here, cli: Cli, db: Any, option: str, said: str) -> None:
    (cli.folder / "access.log").write_text(line("/"))
    ended = here(*COMMAND, option)
    assert (ended.status, said in ended.err) == (2, True)
    assert Visits.stored(db, "visits") is None


def position(db: Any) -> list[bytes]:
    begin = QueueKeys("visits.views").load(b"")
    return transact(db, lambda tr: [row.value for row in tr.snapshot.get_range(begin, begin + b"\xff")])


def test_a_follower_that_is_killed_and_a_log_that_is_rotated(here: Here, cli: Cli, db: Any) -> None:
    log, written = cli.folder / "access.log", Counter[str]()

    def write(text: str, mode: str = "a") -> None:
        pages = [f"/{text}/{number % 50}" for number in range(3_000)]
        written.update(pages)
        with log.open(mode) as file:
            file.write("".join(map(line, pages)))

    write("begin")
    for kill in range(4):
        before = position(db)
        follower = cli.start(*COMMAND, "--follow")
        wait_until(lambda: position(db) != before, follower)  # noqa: B023 - runs at once
        if kill % 2:
            follower.send_signal(signal.SIGKILL)
            follower.communicate(timeout=SECONDS)
        write(f"before-{kill}")
        log.rename(log.with_name(f"access.log-2026110{kill}"))
        write(f"after-{kill}", "w")
        if not kill % 2:
            follower.send_signal(signal.SIGKILL)
            follower.communicate(timeout=SECONDS)

    follower = cli.start(*COMMAND, "--follow")
    wait_until(lambda: written.total() == sum(lifetime(db).values()), follower)
    follower.send_signal(signal.SIGTERM)
    out, _ = follower.communicate(timeout=SECONDS)

    assert follower.returncode == 0
    assert out.endswith(b"in 'visits'\n")
    assert here(*COMMAND, "--json").rows()[0]["added"] == 0
    compare("the views of all time", lifetime(db), written)
