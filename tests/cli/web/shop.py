"""The store of a shop: one queue of each kind, so that every page of the dashboard has something to show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import cq
from cq import admin, runtime
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.observers.links import spec as links
from cq.observers.links.registry import pause_link
from cq.observers.telemetry.history import HistoryWriter
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.top import top
from cq.observers.worker.worker import Worker
from cq.passes.effects import PassResult
from cq.testing import drain
from cq.windows import Window
from tests.kit.workers import running
from tests.links.sqlhelpers import configure as configure_table

WORDS: Final = ["river", "stone", "cloud", "paper", "window", "garden", "silver", "ocean", "bridge", "forest"]
HOUR: Final = 60


class _Earlier(runtime.Machine):
    """The real machine, with a clock of the day that is some seconds behind."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time_ns(self) -> int:
        return super().time_ns() - int(self._seconds * 1e9)


def _check(tr: Any, changes: Any) -> None:
    """An observer with a fault: orders without a customer make it fail."""
    for change in changes:
        if change.key == "":
            raise ValueError("an order needs a customer")


@contextmanager
def shop(db: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """Make the queues, with an hour of history, and run a worker."""
    # For the checks, which run in a process of their own.
    monkeypatch.setenv("CQ_STORE", f"embedded:{folder}/web.db")
    monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{folder}/report.db")
    source, app = random.Random(1), cq.App()
    Feed[Any]("changes").configure(db)
    words = cq.configure(
        db, "words", key=str, value=int, buckets=64, observers=[top(n=20), feed_spec("changes")]
    )
    cq.configure(db, "visits", key=str, value=int, window="600/10", buckets=8)
    configure_table(db, "revenue", "revenue", key=str, value=int)
    monkeypatch.setenv("CQ_SHOP_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("CQ_SHOP_SECRET", f"whsec_{'c2hvcCBz' * 4}")
    hook = links.webhook("CQ_SHOP_URL", name="hook", secret_env="CQ_SHOP_SECRET")  # noqa: S106 - its name
    cq.configure(db, "revenue", links=[hook])
    pause_link(db, "revenue", "hook", paused=True)
    revenue = cq.CombineQueue[str, int]("revenue")
    app.queue("orders", observers=[_check])
    app.configure(db, "orders", key=str, value=int)

    weights = [1 / (place + 1) for place in range(len(WORDS))]
    for _ in range(100):
        updates = {word: source.randrange(1, 5) for word in source.choices(WORDS, weights, k=3)}
        words.add_now(db, updates)
    revenue.add_now(db, {"books": 1250, "music": 480})
    cq.CombineQueue[str, int]("orders").add_now(db, {"": 1, "ada": 2, "grace": 3, "joan": 1})
    drain(db, app=app)
    _record_history(db, source)

    admin.pause(db, "visits", "the pages move to another server")
    for page in ("/", "/books", "/music", "/about"):
        cq.transact(db, lambda tr: Window[str]("visits").add(tr, {page: 1}))  # noqa: B023 - runs at once
    with running(Worker(db, app)) as worker:
        yield worker


def _record_history(db: Any, source: random.Random) -> None:
    """What a worker would have stored in the past hour."""
    totals = WorkerCounts()

    def write(seconds: float) -> None:
        with runtime.using(_Earlier(seconds)):
            writer.record(is_last=True)

    with runtime.using(_Earlier(HOUR * 60)):
        writer = HistoryWriter(db, totals)
    for minute in range(HOUR, 0, -1):
        rate = 20_000 + 600 * (HOUR - minute) + source.randrange(6_000)
        totals.count("words", PassResult(updates=rate, rows=rate // 100, reported=rate // 50))
        totals.count("revenue", PassResult(updates=rate // 9, rows=rate // 900, reported=rate // 500))
        write((minute - 1) * 60)
