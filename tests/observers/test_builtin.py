"""Settings of built-in observers that no specification returns: workers refuse them before they run the observer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.config.queue import QueueConfig, read_config
from cq.errors import InvalidConfiguration, QueueNotConfigured
from cq.observers.builtin import FACTORIES
from cq.observers.distinct import distinct
from cq.observers.thresholds import thresholds
from cq.observers.top.index import LAST_PART, top
from cq.observers.worker.worker import Worker
from cq.store.embedded import Database
from cq.store.transact import transact
from tests.kit.queues import add, buckets_of, configured, values

TOP = dict(top(5).settings)
TABLE = dict(links.table("words").settings)
URL = "postgresql://me:secret@host/db"


@pytest.fixture
def config(tmp_path: Path) -> QueueConfig:
    with Database(tmp_path / "x.db") as db:
        return configured(db, "words", put=[links.table("words")])


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("top", {}, "observer 'top' of queue 'words' has settings that are invalid"),
        ("top", {**TOP, "n": 0}, "expected n of a top to be"),
        ("top", {**TOP, "score": "x"}, "observer 'top' of queue 'words' has settings that are invalid"),
        ("top", {**TOP, "more": 1}, "observer 'top' of queue 'words' has settings that are invalid"),
        ("link", {**TABLE, "url": URL}, "link 'export' of queue 'words' has settings that are invalid"),
        ("link", {**TABLE, "to": "paper"}, "link 'export' of queue 'words' has settings that are invalid"),
        ("link", {}, "link 'export' of queue 'words' has settings that are invalid"),
        ("link", {**TABLE, "url_env": URL}, "expected the name of an environment variable"),
        ("link", {**TABLE, "url_env": 5}, "expected the name of an environment variable"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused_without_their_values(
    config: QueueConfig, kind: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        FACTORIES[kind](config, settings, 1)

    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "into"),
    [
        (distinct("counts"), {"value": int}),
        (thresholds("counts", cap=1), {"key": (str, str, int), "combiner": "first"}),
    ],
    ids=["distinct", "thresholds"],
)
def test_a_queue_waits_for_the_queue_that_its_observer_adds_to(
    db: Any, spec: admin.ObserverSpec, into: dict[str, Any]
) -> None:
    cq.configure(db, "counts", **into)
    cq.configure(db, "visits", key=(str, str), observers=[spec], buckets=1)
    (bucket,) = buckets_of(db, "visits")
    admin.delete(db, "counts")
    add(db, "visits", {("page", "ann"): 1})
    with pytest.raises(QueueNotConfigured):
        bucket.combine()  # as a worker does that has not read that the queue is deleted
    (left,) = Worker(db).drain()
    assert (
        f"the observer '{spec.name}' of queue 'visits' adds to queue 'counts', which is not configured"
        in left
    )

    cq.configure(db, "counts", **into)
    assert Worker(db).drain() == []
    assert values(db, "counts")


def _by_app(db: Any, name: str, spec: admin.ObserverSpec) -> object:
    app = cq.App()
    app.queue(name, observers=[spec])
    return app.configure(db, name)


CONFIGURED: dict[str, Callable[[Any, str, admin.ObserverSpec], object]] = {
    "put_observer": admin.put_observer,
    "configure": lambda db, name, spec: cq.configure(db, name, observers=[spec]),
    "App.configure": _by_app,
}


@pytest.mark.parametrize("configure", CONFIGURED.values(), ids=CONFIGURED)
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (top(), "of type str, which has no scores"),
        (top(group=LAST_PART), "expected keys of several parts"),
        (distinct("pages"), "expected keys of more than 1 parts"),
        (links.queue(), "whose changes cannot be forwarded"),
    ],
    ids=["top", "top of periods", "distinct", "forward"],
)
def test_an_observer_that_does_not_suit_the_queue_is_refused_whoever_configures_it(
    db: Any, name: str, configure: Callable[..., object], spec: admin.ObserverSpec, said: str
) -> None:
    cq.configure(db, name, key=str, value=str, combiner=cq.Combiner("own", 1, lambda key, values: values[0]))
    before = transact(db, lambda tr: read_config(tr, name))

    with pytest.raises(InvalidConfiguration, match=said):
        configure(db, name, spec)

    assert transact(db, lambda tr: read_config(tr, name)) == before
