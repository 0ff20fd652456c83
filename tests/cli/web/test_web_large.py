"""The dashboard of a large store: pages have a limited size and memory, and keep nobody waiting."""

from __future__ import annotations

import re
import threading
import tracemalloc
from typing import Any

import pytest

import cq
from cq.admin.queue_status import QueueStatus
from cq.cli.web.access import WebAccess
from cq.cli.web.app import Dashboard, page_of
from cq.cli.web.command import WebOptions
from cq.cli.web.queue_pages import ROWS
from cq.cli.web.reads import MAX_ASIDE, read_aside_of
from cq.cli.web.rendering import Renderer
from cq.cli.web.sampler import OVERVIEW, Reading, StoreSnapshot
from cq.cli.web.text import MAX_ROWS
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.observers.monitoring.link_status import LinkStatus
from cq.observers.monitoring.store_overview import Activity, Overview, WorkerStatus
from cq.queue.set_aside import set_aside
from tests.cli.web.dashboards import SECONDS, Outline, serving

QUEUES = 3_000
MAX_BYTES = 300_000


def large() -> Overview:
    """A store with many queues, each with a failing link and keys set aside, and workers that leave them alone."""
    names = [f"queue-{number:04}" for number in range(QUEUES)]
    queues = [
        QueueStatus(name, {"buckets": 1}, False, "", 1, 5, 100, True, 60.0, {}, "", None, {}, 7)
        for name in names
    ]
    workers = [
        WorkerStatus(
            f"w{number}", "host", 1, "1", ["combine"], names, True, 1.0, 5, 1, 1, 1.0, names, names, ""
        )
        for number in range(5)
    ]
    links = [
        LinkStatus(name, "report", "table", 1, 1, 5, 100, True, 60.0, 0, "failing", "an error " * 10, 5.0, 3)
        for name in names
    ]
    return Overview(queues, {name: Activity() for name in names}, links, workers)


@pytest.mark.parametrize("path", ["/", "/page/2", "/page/30", "/links", "/aside", "/workers", "/feeds"])
def test_a_page_of_thousands_of_queues_has_a_limited_size(db: Any, path: str) -> None:
    dashboard = Dashboard(db, WebAccess("token", 0), WebOptions(operate=True))
    page, snapshot = page_of(path), StoreSnapshot(1, {OVERVIEW: Reading(0.0, large())})
    assert page is not None

    html = dashboard.draw(page, snapshot, None, notice=None, form_token="")

    assert len(html) < MAX_BYTES
    assert "more: <code>cq status</code> lists all." in html
    if path == "/aside":
        assert len(re.findall('<a href="/aside/queue-[0-9]+">queue', html)) == MAX_ROWS


def test_all_queues_are_on_the_pages_of_queues(db: Any) -> None:
    names = [f"queue-{number:03}" for number in range(2 * ROWS + 1)]
    for name in names:
        cq.configure(db, name, buckets=1)
    with serving(db) as found:
        seen, path = list[str](), "/"
        while path:
            outline = Outline(found.page(path))
            links = [each["href"] or "" for each in outline.all("a")]
            seen += [each.removeprefix("/queues/") for each in links if each.startswith("/queues/")]
            path = next((each for each in links if each.startswith("/page/") and each > path), "")
        assert seen == names
        assert '<a href="/">The rows before</a>' in found.page("/page/2")
        assert "There are fewer queues than this." in found.page("/page/4")
        for missing in ("/page/1", "/page/0", "/page/01", "/page/x", "/page/", "/page/9999999"):
            found.page(missing, status=404)


def test_a_page_that_is_made_keeps_no_other_request_waiting(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, original = threading.Event(), threading.Event(), Renderer.page

    def page(*args: Any, **more: Any) -> str:
        begun.set()
        assert goes_on.wait(SECONDS)
        return original(*args, **more)

    monkeypatch.setattr(Renderer, "page", page)
    with serving(db) as found:
        loading = threading.Thread(target=found.page, args=("/",))
        loading.start()
        try:
            assert begun.wait(SECONDS)
            found.page("/static/style.css")
        finally:
            goes_on.set()
            loading.join(SECONDS)


def set_one_aside(db: Any, encoded_key: bytes) -> None:
    cq.transact(
        db,
        lambda tr: set_aside(tr, QueueKeys("photos"), encoded_key, KeyFailure("an error"), [b"x" * 80_000]),
    )


def test_updates_set_aside_are_counted_a_few_at_a_time(db: Any) -> None:
    cq.configure(db, "photos", value=bytes, combiner="last", buckets=1)
    for number in range(MAX_ASIDE + 1):
        set_one_aside(db, b"a%03d" % number)
    tracemalloc.start()
    found = read_aside_of(db, "photos")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (len(found.keys), found.is_cut) == (MAX_ASIDE, True)
    assert {each.updates for each in found.keys} == {1}
    assert peak < 4_000_000
