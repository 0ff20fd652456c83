"""What `cq doctor` looks at, and what it says of each thing that can be wrong."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cq
from cq import admin, links, runtime
from cq.config.queue import LOCAL_BUCKETS
from cq.errors import StoreUnreachable
from cq.observers.links.targets import receiver as webhook_receiver
from cq.observers.monitoring import diagnosis, doctor_cluster, doctor_embedded
from cq.observers.monitoring.diagnosis import Check, doctor
from cq.store.embedded import Database as Embedded
from cq.testing import drain
from tests.config.versions import needs_another
from tests.conftest import cluster_url
from tests.kit.queues import add
from tests.kit.workers import SECONDS
from tests.links.webhookhelpers import SECRET, serving
from tests.observers.monitoring.clusters import IN_ORDER
from tests.store.binding import Binding

EMBEDDED = ["python", "cq", "store file", "room"]
STATUS_CHECKS = ["redundancy", "space", "throttling", "clients", "messages"]
CLUSTER = ["python", "cq", "binding", "client library", "cluster file"]
OF_WORDS = ["queue words", "workers", "shards of words"]
ALL_OF_A_CLUSTER = [*CLUSTER, "store", "versions", *STATUS_CHECKS, *OF_WORDS]


@pytest.fixture(autouse=True)
def binding(monkeypatch: pytest.MonkeyPatch) -> Binding:
    """The same machine for all tests: with a binding, and no library."""
    found = Binding(refusal=Exception("Unable to locate the FoundationDB API shared library!"))
    monkeypatch.setitem(sys.modules, "fdb", found)
    monkeypatch.setattr(doctor_cluster, "version", lambda name: "7.3.69")
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of an embedded store that is not there yet."""
    return f"embedded:{tmp_path / 'test.db'}"


@pytest.fixture
def db(url: str) -> Iterator[Any]:
    """The store of `url`."""
    database: Any = cq.open(url)
    yield database
    database.close()


def looks(url: str) -> dict[str, Check]:
    """{name: check}, each of one line."""
    checks = {check.name: check for check in doctor(url)}
    assert [check for check in checks.values() if "\n" in check.message] == []
    return checks


def wrong(url: str) -> dict[str, str]:
    """{name: what to do} of what is not as it should be."""
    return {name: check.message for name, check in looks(url).items() if not check.ok}


# The embedded store


def test_a_store_that_is_in_order_is_said_to_be(db: Any, url: str) -> None:
    cq.configure(db, "words")

    checks = looks(url)

    assert list(checks) == [*EMBEDDED, "store", "clock", "queue words", "workers"]
    assert all(check.ok for check in checks.values())
    assert checks["store"].message == "it answers; queues: 1"
    assert checks["queue words"].message == "active, buckets: 1"


def test_a_store_that_is_not_there_yet_is_no_failure_and_is_not_made(url: str, tmp_path: Path) -> None:
    checks = looks(url)

    assert list(checks) == EMBEDDED
    assert all(check.ok for check in checks.values())
    assert "does not exist yet" in checks["store file"].message
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_is_named(db: Any, url: str, tmp_path: Path) -> None:
    db.close()
    with (tmp_path / "test.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)

    assert "is damaged" in wrong(url)["store"]


def test_a_url_that_names_no_store_is_said(tmp_path: Path) -> None:
    assert "names no store: write embedded:PATH" in wrong("cq.db")["store"]


def test_a_full_disk_is_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000_000))

    assert "100.0 MB are free in " in wrong(url)["room"]


@pytest.mark.usefixtures("db")
def test_a_file_near_its_limit_is_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_embedded, "_max_file_bytes", lambda: 10_000)

    assert "SQLite takes 10.0 kB" in wrong(url)["store file"]


def test_a_clock_that_was_set_back_is_said_and_is_no_fault(db: Any, url: str) -> None:
    cq.configure(db, "words")

    class HourBefore(runtime.Machine):
        def time_ns(self) -> int:
            return super().time_ns() - 3600 * 10**9

    with runtime.using(HourBefore()):
        found = looks(url)["clock"]
        assert found.ok
        assert " s ahead of this machine's clock" in found.message


# A cluster


@pytest.fixture
def cluster_file(tmp_path: Path) -> str:
    """A well-formed one."""
    file = tmp_path / "fdb.cluster"
    file.write_text("test:abc@127.0.0.1:4500\n")
    return str(file)


@pytest.fixture
def cluster(db: Any, cluster_file: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a cluster that answers: the embedded store plays it."""
    monkeypatch.setattr(doctor_cluster, "open_cluster", lambda path, answer_within: db)
    monkeypatch.setattr(doctor_cluster, "client_version", lambda: "7.3.69")
    monkeypatch.setattr(doctor_cluster, "read_cluster", lambda db: IN_ORDER)
    monkeypatch.setattr(doctor_cluster, "shards", lambda db, begin, end: "shards of queued updates: 1")
    return f"fdb:{cluster_file}"


def test_a_cluster_that_is_in_order_is_said_to_be(cluster: str, db: Any) -> None:
    cq.configure(db, "words")

    checks = looks(cluster)

    assert list(checks) == ALL_OF_A_CLUSTER
    assert all(check.ok for check in checks.values())
    assert checks["client library"].message == "7.3.69, which this binding can use"
    assert checks["versions"].message == (
        "the cluster is of version 7.3.43, and the client library of 7.3.69"
    )


def test_a_cluster_cannot_do_without_the_client_library(cluster_file: str) -> None:
    checks = looks(f"fdb:{cluster_file}")

    assert list(checks) == CLUSTER
    assert list(wrong(f"fdb:{cluster_file}")) == ["client library"]
    assert "install the package `foundationdb-clients`" in checks["client library"].message


def test_a_missing_binding_is_said(cluster_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setitem(sys.modules, "fdb", None)
    monkeypatch.setattr(doctor_cluster, "version", missing)

    assert "run `pip install 'combine-queue[fdb]'`" in wrong(f"fdb:{cluster_file}")["binding"]


def test_a_missing_cluster_file_is_named_together_with_the_missing_library(
    tmp_path: Path,
) -> None:
    found = wrong(f"fdb:{tmp_path / 'no.cluster'}")

    assert list(found) == ["client library", "cluster file"]
    assert "no.cluster: No such file" in found["cluster file"]


def test_a_cluster_file_that_the_client_cannot_rewrite_is_named(
    cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)

    assert "or its folder cannot be written" in wrong(cluster)["cluster file"]


def test_a_cluster_that_does_not_answer_is_said(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(path: str, answer_within: float) -> None:
        raise StoreUnreachable(f"no answer from the cluster in {path} within {answer_within:g} s")

    monkeypatch.setattr(doctor_cluster, "open_cluster", silent)

    checks = looks(cluster)

    assert list(checks) == [*CLUSTER, "store"]
    assert checks["store"].message.endswith("within 3 s")


@pytest.mark.parametrize("servers", [["7.1.61"], ["7.1.61", "7.3.43"]])
def test_versions_that_do_not_match_are_said(
    cluster: str, monkeypatch: pytest.MonkeyPatch, servers: list[str]
) -> None:
    monkeypatch.setattr(doctor_cluster, "server_versions", lambda cluster: servers)

    assert wrong(cluster)["versions"].startswith(f"the cluster is of version {', '.join(servers)}, and")


@pytest.mark.cluster
def test_a_real_cluster_is_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the binding and the library that are installed
    cq.configure(cq.open(cluster_url()), "words")
    checks = {check.name: check for check in doctor(cluster_url())}

    assert list(checks) == ALL_OF_A_CLUSTER
    assert [check for check in checks.values() if not check.ok] == []
    assert checks["redundancy"].message.startswith("storage engine ")
    assert checks["shards of words"].message.startswith("shards of queued updates: 1, the hottest with ")


# Queues and links


def test_levels_are_checked_with_their_queue(db: Any, url: str) -> None:
    cq.configure(db, "hits", rollup="1m:forever,1h:forever")
    assert looks(url)["store"].message == "it answers; queues: 1"
    checks = {check.name: check.message for check in doctor(url) if check.name.startswith("queue ")}
    assert checks == {"queue hits": f"active, buckets: {LOCAL_BUCKETS}, levels: hits.1m, hits.1h"}
    paused = (
        "paused until `cq resume`: by hand. Its updates stay queued. Resume it when the reason is gone: "
        "`cq resume {}` (see docs/operate/problems.md#warnings-of-cq-status)"
    )
    admin.pause(db, "hits.1h")
    assert wrong(url) == {"queue hits.1h": paused.format("hits.1h")}
    admin.pause(db, "hits")
    assert wrong(url) == {"queue hits": paused.format("hits")}


def test_a_queue_of_a_newer_cq_is_said(db: Any, url: str) -> None:
    cq.configure(db, "words")
    needs_another(db, "words")

    assert "use the version of cq that configured it" in wrong(url)["queue words"]


def test_a_reporting_database_that_is_down_is_said_without_its_password(
    db: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", "postgresql://user:secret@127.0.0.1:1/reports")
    cq.configure(db, "words", links=[links.table("words")])

    found = wrong(url)["link words export"]

    assert found.startswith(
        "the reporting database cannot be used: start it, or correct its URL in $CQ_REPORTING_URL"
    )
    assert "Connection refused" in found
    assert "secret" not in found


def test_a_forward_is_looked_at_and_what_is_wrong_with_it_said(
    db: Any, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cq.configure(db, "words", links=[links.queue("all")])
    monkeypatch.setenv("CQ_FORWARD_URL", f"embedded:{tmp_path}/central.db")
    assert "there is no store where $CQ_FORWARD_URL says" in wrong(url)["link words forward"]
    with Embedded(tmp_path / "central.db") as central:
        assert "'all' is not configured" in wrong(url)["link words forward"]
        cq.configure(central, "all")

    check = looks(url)["link words forward"]

    assert (check.ok, check.message) == (True, "queue 'all' of the store in $CQ_FORWARD_URL takes it")


def receivers_of_all_kinds(
    db: Any, open_silent: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The names of the checks of two webhooks and a reporting database, which accept connections and never answer."""
    for number in (1, 2):
        monkeypatch.setenv(f"CQ_SILENT_{number}", f"http://{open_silent()}/")
        cq.configure(db, f"hook{number}", links=[links.webhook(f"CQ_SILENT_{number}")])
    monkeypatch.setenv("CQ_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("CQ_REPORTING_URL", f"postgresql://user@{open_silent()}/reports")
    cq.configure(db, "words", links=[links.table("words")])
    return ["link hook1 webhook", "link hook2 webhook", "link words export"]


def test_slow_receivers_are_asked_at_the_same_time(
    db: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None answers before all have been asked; one after the other, the first one would be waited for."""
    listening: list[socket.socket] = []

    def open_silent() -> str:
        listening.append(socket.create_server(("127.0.0.1", 0)))
        listening[-1].settimeout(SECONDS)
        return f"127.0.0.1:{listening[-1].getsockname()[1]}"

    monkeypatch.setattr(webhook_receiver, "ANSWER_SECONDS", 10 * SECONDS)
    expected = receivers_of_all_kinds(db, open_silent, monkeypatch)
    found: list[str] = []
    looking = threading.Thread(target=lambda: found.extend(wrong(url)))
    looking.start()
    asked = []
    try:
        for each in listening:
            asked.append(each.accept()[0])
            assert asked[-1].recv(1)
        assert looking.is_alive()
    finally:
        for connection in (*asked, *listening):
            connection.close()
        looking.join(SECONDS)

    assert found == ["workers", *expected]  # no worker is alive


def test_a_target_of_an_application_that_hangs_is_said(
    db: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "ANSWER_SECONDS", 0.1)
    end, app = threading.Event(), cq.App()

    @app.target("hanging")
    class Hanging(links.Target):
        def apply(self, changes: links.Changes) -> None:
            raise NotImplementedError

        def check(self) -> None:
            assert end.wait(SECONDS)

    cq.configure(db, "words", links=[links.app("hanging")])
    found = {each.name: each for each in doctor(url, app)}
    end.set()

    assert not found["link words hanging"].ok
    assert "it has not answered within" in found["link words hanging"].message


@pytest.mark.parametrize("is_same", [True, False])
def test_a_failing_webhook_has_one_line_for_each_cause(
    db: Any, url: str, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    monkeypatch.setenv("CQ_WEBHOOK_SECRET", SECRET)
    with serving(lambda request, body: (503, b"")) as receiver:
        monkeypatch.setenv("CQ_WEBHOOK_URL", receiver)
        cq.configure(db, "words", links=[links.webhook()])
        add(db, "words", {"a": 1})
        drain(db, "words")
        if not is_same:
            monkeypatch.delenv("CQ_WEBHOOK_URL")
        lines = [check.message for check in doctor(url) if check.name == "link words webhook"]

    assert lines[0].startswith("is failing: LinkFailed: ")
    assert "answered 503" in lines[0]
    assert lines[1:] == ([] if is_same else ["$CQ_WEBHOOK_URL is not set: give the URL of the webhook there"])
