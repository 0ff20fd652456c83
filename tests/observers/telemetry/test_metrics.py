"""Metrics: made from events, measured seldom, served where asked for and nowhere else."""

from __future__ import annotations

import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

import cq
import cq.observers.telemetry.metrics
from cq import admin, links
from cq.errors import MissingPackage
from cq.keys import QueueKeys
from cq.keys.link import LinkKeys, OutboxKeys
from cq.observers.links.registry import pause_link
from cq.observers.links.spec import table
from cq.observers.links.state import Control, LinkStop, stop
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.tasks.measure import MEASURE_SECONDS, MeasureTask
from cq.observers.tasks.timed import LimitTask
from cq.observers.telemetry.bus import Event, emit, subscribe
from cq.observers.telemetry.events import EVENTS
from cq.observers.telemetry.metrics import Address, MetricsUnavailable, prometheus_metrics, serve
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.kit.processes import free_ports
from tests.kit.queues import add, put
from tests.kit.workers import running
from tests.observers.outbox.outboxhelpers import URL_ENV
from tests.observers.outbox.outboxhelpers import configure as configure_outbox
from tests.observers.telemetry.eventlog import Events
from tests.observers.telemetry.eventlog import events as events

MEASURED = {
    "queue": "words",
    "waiting_bytes": 100,
    "waiting_buckets": 2,
    "oldest": 1.5,
}


Subscriber = Callable[[Event], None]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Subscriber:
    return prometheus_metrics(registry)


def fields_of(name: str, **fields: Any) -> Event:
    """An event with these fields, and 0 for all others."""
    return Event(name, {**dict.fromkeys(EVENTS[name].fields, 0), **fields})


class TestMetrics:
    """What events do to metrics."""

    def test_counters_add_up_by_queue_and_passes_are_timed(
        self, metrics: Subscriber, registry: CollectorRegistry
    ) -> None:
        for queue, rows in [("a", 3), ("a", 4), ("b", 1)]:
            metrics(fields_of("pass_done", queue=queue, rows=rows, seconds=0.02))

        def value(name: str, queue: str, **labels: str) -> float | None:
            return registry.get_sample_value(name, {"queue": queue, **labels})

        assert (value("cq_rows_total", "a"), value("cq_rows_total", "b")) == (7, 1)
        assert value("cq_passes_total", "a") == 2
        assert value("cq_pass_seconds_count", "a") == 2
        assert value("cq_pass_seconds_bucket", "a", le="0.01") == 0
        assert value("cq_pass_seconds_bucket", "a", le="0.025") == 2

    def test_every_event_can_be_taken_in_and_the_only_label_is_the_queue(
        self, metrics: Subscriber, registry: CollectorRegistry
    ) -> None:
        for name in EVENTS:
            metrics(fields_of(name, queue="words", bucket=3, key="secret", worker="id"))
        labels = {
            label for family in registry.collect() for sample in family.samples for label in sample.labels
        }
        assert labels == {"queue", "link", "le"}

    @pytest.mark.parametrize(("roles", "shown"), [(["combine"], 0), (["link"], None)])
    def test_a_worker_that_combines_a_queue_does_not_leave_it_alone(
        self, db: Any, name: str, metrics: Subscriber, registry: CollectorRegistry, roles: Any, shown: Any
    ) -> None:
        """So an alert can tell whether all workers leave the queue alone."""
        cq.configure(db, name)
        unsubscribe = subscribe(metrics)
        try:
            Worker(db, queues=[name], roles=roles).drain()
        finally:
            unsubscribe()
        assert registry.get_sample_value("cq_left_alone", {"queue": name}) == shown

    def test_a_queue_is_full_until_a_worker_checks_its_limits_no_more(
        self, db: Any, name: str, metrics: Subscriber, registry: CollectorRegistry
    ) -> None:
        cq.configure(db, name)
        admin.limit(db, name, max_bytes=1)
        add(db, name, {"a": 1})
        task, shown = LimitTask(db, name), []
        unsubscribe = subscribe(metrics)
        try:
            for step in (task.run, task.end, task.run):
                step()
                shown.append(registry.get_sample_value("cq_full", {"queue": name}))
        finally:
            unsubscribe()
        assert shown == [1, None, 1]


class TestMeasuring:
    """What waits, for metrics."""

    def test_what_waits_is_measured(self, db: Any, name: str, events: Events) -> None:
        cq.configure(db, name, buckets=2, links=[links.app("own")])
        add(db, name, {f"k{number}": 1 for number in range(100)})
        transact(db, lambda tr: links.add(tr, name, {"a": {"total": 1}}))
        task = MeasureTask(db)
        assert task.run() >= MEASURE_SECONDS

        (queue,), (link,) = events.of("queue_measured", queue=name), events.of("link_measured", queue=name)
        assert queue["waiting_buckets"] == 2
        assert min(queue["waiting_bytes"], queue["oldest"], link["link_bytes"]) > 0
        assert (link["link"], link["stopped"], link["paused"]) == ("own", 0, 0)
        (checked,) = events.of("store_checked")
        assert checked["problems"] >= 1, "no worker is alive"

    def test_queues_that_are_deleted_or_damaged_or_that_another_worker_measures_have_no_metrics(
        self, db: Any, name: str, events: Events
    ) -> None:
        names = [f"{name}-{number}" for number in range(3)]
        for each in names:
            cq.configure(db, each, links=[table(f"t{each}")])
        task = MeasureTask(db)
        task.run()

        admin.delete(db, names[0])
        put(db, {QueueKeys(names[1]).flags: b"damaged"})
        admin.pause(db, names[2])
        task.run()
        assert [each["warnings"] for each in events.of("store_checked")] == [0, 1]
        assert {each["queue"] for each in events.of("queue_handed_over")} == set(names[:2])
        task.end()
        for event in ("queue_handed_over", "link_handed_over"):
            assert sorted(each["queue"] for each in events.of(event)) == names
        assert len(events.of("store_handed_over")) == 1

    def test_a_stopped_link_is_measured_until_its_epoch_ends_and_a_paused_one(
        self, db: Any, name: str, events: Events
    ) -> None:
        cq.configure(db, name, links=[table("t", name="first"), table("t", name="second")])
        keys, task = LinkKeys(name, "second"), MeasureTask(db)
        transact(db, lambda tr: stop(tr, keys, LinkStop(0, "set back"), is_reviewed=True))
        task.run()
        transact(db, lambda tr: tr.set(keys.control, Control(epoch=1).to_bytes()))
        task.run()
        pause_link(db, name, "second", paused=True)
        task.run()

        measured = events.of("link_measured", queue=name)
        assert [(each["link"], each["stopped"], each["paused"]) for each in measured] == [
            ("first", 0, 0),
            ("second", 1, 0),
            ("first", 0, 0),
            ("second", 0, 0),
            ("first", 0, 0),
            ("second", 0, 1),
        ]

    def test_an_outbox_that_is_late_or_stopped_is_measured(
        self, db: Any, name: str, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(URL_ENV, f"sqlite:///{tmp_path}/shop.db")
        configure_outbox(db, name)
        facts = {"backlogs": {name: [1, False, time.time() - 90]}}
        Membership(db, every=600.0).beat(MemberReport(facts=facts))
        MeasureTask(db).run()
        transact(db, lambda tr: stop(tr, OutboxKeys(name), LinkStop(0, "set back"), is_reviewed=True))
        MeasureTask(db).run()
        late, stopped = events.of("link_measured", queue=name, link="outbox")
        assert (late["link_lag"] >= 90, late["stopped"], stopped["stopped"]) == (True, 0, 1)

    def test_a_worker_for_named_queues_measures_the_store_too(
        self, db: Any, name: str, events: Events
    ) -> None:
        cq.configure(db, name)
        cq.configure(db, f"{name}-other")
        with running(Worker(db, queues=[name], measure=True)):
            events.wait_for("queue_measured", queue=f"{name}-other")


class TestAddress:
    """Where the endpoint listens."""

    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("9100", "127.0.0.1", 9100),
            (":9100", "127.0.0.1", 9100),
            ("0.0.0.0:9100", "0.0.0.0", 9100),  # noqa: S104 - asked for
            ("localhost:80", "localhost", 80),
            ("[::1]:9100", "::1", 9100),
        ],
    )
    def test_it_is_this_machines_own_unless_given(self, text: str, host: str, port: int) -> None:
        assert Address.parse(text) == (host, port)
        assert Address.parse(str(Address.parse(text))) == (host, port)

    @pytest.mark.parametrize("text", ["", "here", "1.2.3.4:", "::1:9100", "x:99999", "a b:1", "http://x:1"])
    def test_what_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(cq.errors.InvalidConfiguration, match="expected an address such as"):
            Address.parse(text)

    def test_each_process_has_its_own(self) -> None:
        assert Address("h", 9100).plus(3) == ("h", 9103)
        assert Address("h", 0).plus(3) == ("h", 0)


class TestServe:
    """The endpoint."""

    def test_metrics_are_scraped_in_the_format_of_openmetrics(self) -> None:
        port = free_ports()
        end = serve(Address("127.0.0.1", port))
        emit("queue_measured", **MEASURED)
        accepted = {"Accept": "application/openmetrics-text; version=1.0.0"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accepted)
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        end()
        assert 'cq_waiting_bytes{queue="words"} 100.0' in text
        assert text.endswith("# EOF\n")
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(request)  # noqa: S310

    @pytest.mark.parametrize("begun", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: here\r\n"])
    def test_an_idle_connection_is_closed(
        self, begun: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(cq.observers.telemetry.metrics, "CONNECTION_SECONDS", 0.1)
        port = free_ports()
        end = serve(Address("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as idle:
            idle.sendall(begun)
            assert idle.recv(4096) == b""
        end()
        assert "Traceback" not in capfd.readouterr().err

    def test_a_client_that_sends_a_byte_now_and_then_holds_no_thread_for_ever(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cq.observers.telemetry.metrics, "CONNECTION_SECONDS", 0.5)
        port = free_ports()
        end = serve(Address("127.0.0.1", port))
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=0.02) as slow, suppress(ConnectionError):
            slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            while time.monotonic() < begun + 10.0:
                slow.sendall(b"x")
                with suppress(TimeoutError):
                    assert slow.recv(4096) == b""
                    break
        end()
        assert time.monotonic() < begun + 8.0

    def test_an_address_in_use_is_said(self) -> None:
        with socket.socket() as used:
            used.bind(("127.0.0.1", 0))
            used.listen()
            address = Address(*used.getsockname())
            with pytest.raises(MetricsUnavailable, match=f"cannot be served at {address}: Address already"):
                serve(address)

    def test_other_host_names_are_refused(self) -> None:
        port = free_ports()
        end = serve(Address("127.0.0.1", port), ["Worker.Test"])
        try:
            for host, status in (
                ("localhost", 200),
                (f"127.0.0.1:{port}", 200),
                ("[::1]", 200),
                (f"worker.test:{port}", 200),
                ("evil.example", 421),
                (f"evil.example:{port}", 421),
                ("", 421),
            ):
                answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": host})
                assert answer.status_code == status, host
                assert ("cq_" in answer.text or "process_" in answer.text) is (status == 200)
        finally:
            end()

    def test_a_missing_package_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(MissingPackage, match=r"run `pip install 'combine-queue\[metrics\]'`"):
            serve(Address("127.0.0.1", 0))
