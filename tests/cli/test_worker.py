"""`cq worker`: it wakes, drains, stops when told, runs an application's code, and survives its own death."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq import admin
from cq.admin.queue_status import is_drained
from cq.cli.shared.exit_status import LEFT
from cq.observers.monitoring.findings import Finding, find_remarks
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import Member
from tests.cli.conftest import Cli, Here
from tests.cli.workers import running, said, wait_for, wait_for_workers
from tests.kit.processes import SECONDS, free_ports
from tests.kit.queues import add

APP = """
import cq

app = cq.App()
lengths = cq.CombineQueue("lengths")

def count_lengths(tr, changes):
    for change in changes:
        lengths.add(tr, {len(change.key): (change.new or 0) - (change.old or 0)})

def refuse(tr, changes):
    if any(change.key == "bad" for change in changes):
        raise ValueError("not this one")

app.queue("words", observers=[count_lengths, refuse])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_worker_combines_what_comes_until_it_is_told_to_stop(cli: Cli, db: Any, number: int) -> None:
    cq.configure(db, "words")
    worker = running(cli, "words", "--json")
    for total in (1, 2, 3):
        add(db, "words", {"a": 1})
        wait_for(db, "words", "a", total)

    worker.send_signal(number)
    out, err = worker.communicate(timeout=SECONDS)

    assert worker.returncode == 0
    assert {line.split()[2] for line in err.splitlines()} == {b"INFO"}
    assert b'"rows": 3, "reported": 3' in out


def endless(here: Here, cli: Cli, *options: str) -> subprocess.Popen[bytes]:
    """A worker in a pass that does not end."""
    (cli.folder / "endless.py").write_text(
        "import sys, threading\nimport cq\napp = cq.App()\n"
        "@app.observer('words')\n"
        "def endless(tr, changes):\n"
        "    print('in the observer', file=sys.stderr, flush=True)\n"
        "    threading.Event().wait()\n"
    )
    assert here("configure", "words", "--app", "endless:app").status == 0
    here("add", "words", "a=1")
    return running(cli, "--app", "endless:app", *options, until=b"in the observer")


def test_a_worker_told_twice_ends_at_once(here: Here, cli: Cli, db: Any) -> None:
    """The first signal waits for the pass under way: here one that never ends."""
    worker = endless(here, cli)

    worker.send_signal(signal.SIGTERM)
    # The second one counts once the handler of the first has run; another SIGTERM does no harm before.
    while worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(0.05)
        except subprocess.TimeoutExpired:
            continue

    assert worker.returncode == 128 + signal.SIGTERM
    assert not is_drained(db, "words")


def test_drain_ends_when_all_is_combined_and_says_what_it_did(here: Here) -> None:
    here("configure", "words", "--buckets", "2")
    here("configure", "others", "--combiner", "sum")
    here("add", "words", "a=1", "b=1", "c=1", "d=1")
    here("add", "others", "a=1")

    (totals,) = here("worker", "words", "--drain", "--json").rows()

    assert (totals["rows"], totals["reported"], totals["folded"], totals["aside"]) == (2, 4, 0, 0)
    assert here("get", "words", "d").out == "d\t1\n"
    assert here("get", "others", "a").status == 3


def test_code_comes_from_the_app_only_and_a_failing_key_is_set_aside(here: Here, cli: Cli) -> None:
    Path("shop.py").write_text(APP)
    here("configure", "lengths", "--key", "int")
    here("configure", "words", "--app", "shop:app")
    here("add", "words", "ab=2", "cd=1", "bad=1")

    without = cli.run("worker", "--drain")
    by_name = cli.run("worker", "words", "--drain")
    drained = cli.run("worker", "--drain", "--app", "shop:app")

    assert without.status == LEFT
    assert "start it with --app" in without.err
    assert by_name.status == 1
    assert "start it with --app" in by_name.err.splitlines()[-1]
    assert drained.status == 0
    assert "set aside 'bad': observer 'refuse': ValueError: not this one" in drained.err
    assert here("items", "lengths").out == "2\t3\n"
    assert here("status", "words", "--json").rows()[0]["aside"] == 1
    assert here("get", "words", "bad").status == 3


def test_a_key_set_aside_is_shown_with_the_frames_of_the_applications_code(here: Here, cli: Cli) -> None:
    Path("shop.py").write_text(APP)
    here("configure", "lengths", "--key", "int")
    here("configure", "words", "--app", "shop:app")
    here("add", "words", "bad=1")
    drained = cli.run("worker", "--drain", "--app", "shop:app")
    here("add", "words", "bad=2")
    here("worker", "--drain", "--app", "shop:app")

    shown = here("aside", "show", "words", "bad")
    first, second = here("aside", "show", "words", "bad", "--json").rows()
    (listed,) = here("aside", "list", "words", "--json").rows()

    frame = 'shop.py:13 in refuse: raise ValueError("not this one")'
    assert frame in drained.err
    assert frame in shown.out
    assert "observer refuse@1; 1 failed try" in shown.out
    assert (first["code"], first["tries"], first["first"] <= first["last"]) == ("observer refuse@1", 1, True)
    assert first["trace"][-1].endswith(frame)
    assert f"process {listed['worker'].split()[1]} on " in listed["worker"]
    assert (listed["updates"], listed["tries"]) == (2, 2)
    assert (listed["first"], listed["last"]) == (first["first"], second["last"])


def test_a_drain_combines_what_it_can_and_fails_only_for_queues_that_were_named(here: Here, cli: Cli) -> None:
    for queue in ("first", "middle", "last"):
        here("configure", queue, "--combiner", "sum")
        here("add", queue, "a=1")
    here("pause", "middle")

    by_name = cli.run("worker", "middle", "last", "--drain")
    combined = here("get", "last", "a")
    of_all = cli.run("worker", "--drain")

    assert (combined.status, here("get", "first", "a").status, here("get", "middle", "a").status) == (0, 0, 3)
    assert of_all.status == LEFT
    assert "queue 'middle' is paused (by hand)" in of_all.err
    assert of_all.err.endswith("cq worker: left undone: queue 'middle'\n")
    assert by_name.status == 1
    assert by_name.err.splitlines()[-1] == (
        "cq: queued updates cannot be combined: queue 'middle' is paused (by hand)"
    )


@pytest.mark.usefixtures("impatient")
def test_a_link_without_its_url_is_left_and_named(here: Here, cli: Cli) -> None:
    here("configure", "words", "--export", "word_counts")
    here("add", "words", "a=1")

    drained = cli.run("worker", "--drain")

    assert drained.status == LEFT
    first, last = [line for line in drained.err.splitlines() if "WARNING" in line]
    assert "link 'export' of queue 'words' is left to other workers: $CQ_REPORTING_URL is not set" in first
    assert (
        "link 'export' of queue 'words': left with work to do: InvalidConfiguration: $CQ_REPORTING_URL is not set"
        in last
    )
    assert drained.err.endswith("cq worker: left undone: link 'export' of queue 'words'\n")
    assert cli.run("worker", "--drain", "--processes", "2").status == LEFT
    assert here("worker", "--drain", "--only", "combine").status == 0
    (totals,) = here("worker", "--drain", "--json").rows()
    assert [line.partition("$")[0] for line in totals["left"]] == [
        "link 'export' of queue 'words': InvalidConfiguration: "
    ]
    assert here("get", "words", "a").out == "a\t1\n"
    (status,) = here("link", "list", "--json").rows()
    assert status["state"] == "failing"
    assert status["waiting_buckets"] == 1
    os.environ["CQ_REPORTING_URL"] = "sqlite:///reports.db"  # `here` puts it back
    assert here("link", "init", "words").status == 0
    assert here("worker", "--drain").status == 0, "another worker can do it"
    (status,) = here("link", "list", "--json").rows()
    assert (status["state"], status["waiting_buckets"]) == ("active", 0)


@pytest.mark.usefixtures("impatient")
def test_an_outbox_that_fails_or_lacks_its_url_is_left_and_named(
    here: Here, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_OUTBOX_URL", "sqlite:///reports.db")
    here("configure", "words", "--value", "int")
    assert here("outbox", "init", "words").status == 0
    with closing(sqlite3.connect("reports.db")) as application, application:
        application.execute("DELETE FROM cq_outbox_progress")

    stopped = here("worker", "--drain")
    assert stopped.status == LEFT
    assert stopped.err.endswith("cq worker: left undone: link 'outbox' of queue 'words'\n")
    assert here("link", "rebase", "words", "outbox").status == 0
    assert here("worker", "--drain").status == 0
    monkeypatch.delenv("CQ_OUTBOX_URL")
    without = cli.run("worker", "--drain")
    assert without.status == LEFT
    assert (
        "link 'outbox' of queue 'words': left with work to do: InvalidConfiguration: $CQ_OUTBOX_URL is not"
        in without.err
    )


def test_a_drain_that_is_stopped_says_so(here: Here, cli: Cli) -> None:
    drain = endless(here, cli, "--drain", "--grace", "0.1")
    drain.terminate()
    said = drain.communicate(timeout=60)[1]
    assert drain.returncode == LEFT
    assert b"the drain: left with work to do: it was stopped before" in said


def test_a_worker_that_was_killed_is_replaced_by_the_command_that_started_it(
    here: Here, cli: Cli, db: Any
) -> None:
    (cli.folder / "shop.py").write_text("import cq\n\napp = cq.App()\n")
    cli.environment["CQ_APP"] = "shop:app"
    here("configure", "words", "--value", "int")
    worker = running(cli, "words")
    wait_for_workers(db, 1)
    worker.kill()
    worker.wait()
    with patch.object(
        Member, "is_alive", lambda member, version: False
    ):  # its beats become old in some seconds
        (dead,) = [each for each in find_remarks(overview(db)) if each.finding is Finding.DEAD_WORKER]
    assert dead.command == "cq worker words --app shop:app"
    assert dead.todo == "No other worker does all of its work: start another one."


def test_a_worker_whose_store_was_replaced_ends(here: Here, cli: Cli, db: Any) -> None:
    here("configure", "words", "--value", "int")
    worker = running(cli, "words")
    wait_for_workers(db, 1)
    store = cli.folder / "cli.db"
    shutil.copy(store, cli.folder / "copy.db")
    (cli.folder / "copy.db").replace(store)
    said = worker.communicate(timeout=SECONDS)[1].decode()
    assert worker.returncode == 1
    assert "was removed or replaced while the store was in use: close the store and open it again" in said
    assert "Traceback" not in said


class TestProcesses:
    """`--processes`: a parent that starts those again that die, and ends with all of them."""

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_those_that_die_or_stop_are_started_again_and_all_end_with_the_parent(
        self, cli: Cli, db: Any, number: int
    ) -> None:
        cq.configure(db, "words")
        parent = running(cli, "--processes", "2", "--concurrency", "2", "--", "words", until=b"2 processes")
        first = wait_for_workers(db, 2)
        os.kill(first[0].pid, number)
        again = wait_for_workers(db, 2, without={first[0].pid})
        assert len({each.pid for each in again} & {each.pid for each in first}) == 1
        assert {each.queues for each in again} == {frozenset({"words"})}
        add(db, "words", {"a": 1})
        wait_for(db, "words", "a", 1)

        parent.send_signal(signal.SIGTERM)
        out, err = parent.communicate(timeout=SECONDS)
        assert parent.returncode == 0, (out, err)
        assert wait_for_workers(db, 0, without={first[0].pid}) == []

    def test_they_stop_when_the_parent_is_killed(self, cli: Cli, db: Any) -> None:
        parent = running(cli, "--processes", "2", until=b"2 processes")
        wait_for_workers(db, 2)
        parent.kill()
        parent.communicate(timeout=SECONDS)
        assert wait_for_workers(db, 0) == []

    def test_what_is_wrong_is_said_once(self, cli: Cli) -> None:
        found = cli.run("worker", "missing", "--processes", "3")
        assert found.status == 1
        assert found.err.count("\n") == 1
        assert "'missing' is not configured" in found.err


def test_steps_that_come_to_no_end_are_left_after_a_time(here: Here, cli: Cli, db: Any) -> None:
    worker = endless(here, cli, "--grace", "0.2")
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=SECONDS)

    assert worker.returncode == 0
    assert b"have not ended" in err
    assert wait_for_workers(db, 0) == []
    assert not is_drained(db, "words")


def test_a_worker_does_only_what_it_is_told_to(here: Here, cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    worker = running(cli, "--only", "publish", "--only", "link")
    (found,) = wait_for_workers(db, 1)
    assert found.roles == {"publish", "link"}
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=SECONDS)
    wrong = here("worker", "--only", "nothing")
    assert wrong.status == 2
    assert "expected roles of combine, link, publish, deliver, outbox, got: nothing" in wrong.err


def test_systemd_is_told_that_it_is_ready_and_lives(cli: Cli, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(SECONDS)
        environment = {**cli.environment, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000"}
        worker = running(cli, env=environment)
        assert told.recv(100) == b"READY=1"
        assert told.recv(100) == b"WATCHDOG=1"
        worker.send_signal(signal.SIGTERM)
        while (state := told.recv(100)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1"


class TestLog:
    """`--log`: a line an event."""

    def test_every_line_is_json(self, here: Here, cli: Cli, db: Any) -> None:
        (cli.folder / "shop.py").write_text(APP)
        assert here("configure", "words", "--app", "shop:app").status == 0
        cq.configure(db, "lengths", key=int)
        add(db, "words", {"bad": 1, "ab": 1})
        ended = cli.run("worker", "--drain", "--app", "shop:app", "--log", "json", "--verbose")
        lines = [json.loads(line) for line in ended.err.splitlines()]
        assert ended.status == 0
        assert lines[0]["event"] == "worker_started"
        assert lines[-1]["event"] == "worker_stopped"
        (aside,) = (line for line in lines if line["event"] == "key_set_aside")
        assert (aside["level"], aside["queue"], aside["key"]) == ("warning", "words", "'bad'")
        assert sum(line["updates"] for line in lines if line["event"] == "pass_done") >= 3

    def test_passes_are_shown_only_when_asked_for(self, cli: Cli, db: Any) -> None:
        cq.configure(db, "words")
        add(db, "words", {"a": 1})
        assert "with 1 updates" in cli.run("worker", "--drain", "--verbose").err
        add(db, "words", {"a": 1})
        assert "with 1 updates" not in cli.run("worker", "--drain").err


class TestMetrics:
    """`--metrics`."""

    def test_a_worker_serves_what_it_does_and_what_waits(self, cli: Cli, db: Any) -> None:
        cq.configure(db, "words")
        cq.configure(db, "paused")
        admin.pause(db, "paused")
        add(db, "paused", {"a": 1})
        worker = cli.start("worker", "--metrics", "0", "--log", "json", "--verbose")
        address = said(worker, "metrics_served")["address"]
        assert address.startswith("127.0.0.1:")
        said(worker, "queue_measured", queue="paused")
        add(db, "words", {"a": 1, "b": 1})
        said(worker, "pass_done")

        found = scraped(address)

        assert 'cq_updates_total{queue="words"}' in found
        assert found['cq_waiting_buckets{queue="paused"}'] == 1
        assert found['cq_left_alone{queue="paused"}'] == 1
        assert found["cq_owned_buckets"] == 1
        assert found["cq_workers"] == 1

    def test_each_process_serves_its_own(self, cli: Cli, db: Any) -> None:
        cq.configure(db, "words")
        first = free_ports(2)
        parent = cli.start("worker", "--processes", "2", "--metrics", f"127.0.0.1:{first}", "--log", "json")
        served = {said(parent, "metrics_served")["address"] for _ in range(2)}
        assert served == {f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"}
        assert all("cq_workers" in scraped(address) for address in served)

    @pytest.mark.parametrize("more", [[], ["--processes", "2"]], ids=["one", "several"])
    def test_an_address_in_use_ends_it_with_a_line(self, cli: Cli, more: list[str]) -> None:
        with socket.socket() as used:
            used.bind(("127.0.0.1", 0))
            used.listen()
            ended = cli.run("worker", "--metrics", str(used.getsockname()[1]), *more)
        assert ended.status == 1
        (line,) = (line for line in ended.err.splitlines() if line.startswith("cq: "))
        assert "Address already in use" in line

    def test_a_missing_package_ends_it_so_that_no_supervisor_starts_it_again(
        self, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        ended = here("worker", "--metrics", "0")
        assert ended.status == 2
        assert "run `pip install 'combine-queue[metrics]'`" in ended.err


def scraped(address: str) -> dict[str, float]:
    """{name and labels: value} of the metrics served there."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }
