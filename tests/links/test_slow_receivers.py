"""A worker with receivers of webhooks that answer with a byte now and then."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

import cq
from cq import links
from cq.observers.links.targets import receiver as client
from cq.observers.monitoring.link_status import link_status
from cq.observers.telemetry.bus import Event, subscribe
from cq.observers.worker.worker import CONCURRENCY, Worker
from tests.kit.queues import add
from tests.kit.workers import SECONDS, running, told_app
from tests.links.webhookhelpers import SECRET, dripping

BEGIN = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_WEBHOOK_SECRET", SECRET)


def test_slow_receivers_do_not_stop_the_passes(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would hold all threads: each has more buckets to send than a worker has threads."""
    monkeypatch.setattr(client, "REQUEST_SECONDS", 10 * SECONDS)
    told, app = told_app(name)
    app.configure(db, name)
    with running(Worker(db, app)), ExitStack() as receivers:
        begun = []
        for number in range(3):
            url, requests = receivers.enter_context(dripping(BEGIN))
            monkeypatch.setenv(f"CQ_SLOW_{number}", url)
            begun.append(requests)
            slow = f"{name}-slow{number}"
            cq.configure(db, slow, links=[links.webhook(f"CQ_SLOW_{number}")])
            add(db, slow, {f"k{key}": 1 for key in range(100)})
        held = 0
        while held < CONCURRENCY // 2:
            held += sum(requests.acquire(timeout=0.05) for requests in begun)
        for count in range(1, 20):
            add(db, name, {"a": 1})
            told.wait_for(a=count)
        assert held == CONCURRENCY // 2
        assert not any(requests.acquire(blocking=False) for requests in begun)


def test_a_slow_receiver_is_a_link_that_fails(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS", 0.2)
    failed = threading.Event()

    def note(event: Event) -> None:
        if event.name == "link_failed" and event.fields["queue"] == name:
            failed.set()

    unsubscribe = subscribe(note)
    with dripping(BEGIN) as (url, _):
        monkeypatch.setenv("CQ_WEBHOOK_URL", url)
        cq.configure(db, name, links=[links.webhook()])
        add(db, name, {"a": 1})
        with running(Worker(db, queues=[name])):
            assert failed.wait(SECONDS)
    unsubscribe()
    (found,) = link_status(db, name)
    assert "no complete answer within 0.2 s" in found.error
