"""Whatever becomes of any row that cq keeps: each page of the dashboard is drawn, and no read fails in a wrong way."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import cbor2
import pytest

import cq
from cq import admin
from cq.admin.queue_status import status
from cq.cli.web.access import WebAccess
from cq.cli.web.actions import OPERATIONS, perform
from cq.cli.web.app import Dashboard, page_of
from cq.cli.web.command import WebOptions
from cq.cli.web.pages import SECTIONS
from cq.cli.web.reads import READERS, look_up
from cq.cli.web.sampler import Reading, StoreSnapshot, Topic
from cq.encoding import codec
from cq.feeds.feed import Feed
from cq.keys import QueueKeys
from cq.keys.feed import FeedKeys, encode_name
from cq.observers.feeds.observer import feed_spec
from cq.observers.telemetry.history import HistoryWriter
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.top import top
from cq.passes.effects import PassResult
from cq.testing import drain
from cq.windows import Window
from tests.cli.web.dashboards import serving
from tests.fuzz import stores
from tests.fuzz.inputs import searched
from tests.kit.queues import put, stored

NUMBERS = [
    10**19,
    -(10**19),
    2**63 - 1,
    2**64,
    10**400,
    10**5_000,
    math.inf,
    -math.inf,
    math.nan,
    -1,
    0,
    1e300,
]
"""Numbers in whose place something else was stored."""
LOOKUPS = {"words": "a", "tags": "x", "pairs": '["p", 1]', "hits": "h", "recent": "r", "totals": "t"}


def make(db: Any) -> dict[bytes, bytes]:
    """All that a store has with something for each page."""
    stores.make(db)
    Feed[Any]("chat").configure(db)
    Feed[Any]("changes").configure(db)
    cq.configure(db, "hits", rollup="1m:1h,1h:1d", observers=[feed_spec("changes")])
    cq.configure(db, "recent", window="600/10", observers=[top(3)])
    cq.configure(db, "totals", window="600/10")
    admin.limit(db, "hits", max_age=100.0, max_bytes=10**6)
    cq.transact(db, lambda tr: Feed[Any]("chat").append(tr, "ada", {"text": "hello"}))
    cq.transact(db, lambda tr: Window[str]("hits").add_each(tr, [("h", 5, time.time())]))
    cq.transact(db, lambda tr: Window[str]("recent").add(tr, {"r": 1}))
    cq.transact(db, lambda tr: Window[str]("totals").add(tr, {"t": 1}))
    totals = WorkerCounts()
    writer = HistoryWriter(db, totals)
    totals.count("hits", PassResult(updates=5, rows=5, reported=1))
    writer.record(is_last=True)
    drain(db, "hits", "recent", "totals")
    return stores.contents(db)


def damaged(rows: dict[bytes, bytes], rng: random.Random) -> tuple[bytes, dict[bytes, bytes]]:
    """The rows with one that is broken, or that has an odd number in place of one of its own, and its key."""
    if rng.random() < 0.4:
        return stores.break_one(rows, rng)
    key = rng.choice(sorted(key for key, value in rows.items() if value))
    return key, {**rows, key: renumbered(rows[key], rng)}


def renumbered(value: bytes, rng: random.Random) -> bytes:
    """A stored value with another number: in its CBOR, which may have bytes before and behind it, or as 8 bytes."""
    for begin in (0, 1, 10):  # some rows begin with the number of their format, or a versionstamp
        for end in (len(value), -2):
            with suppress(Exception):
                content = cbor2.loads(value[begin:end])
                places = list(numbers_in(content))
                replace = rng.choice(places)  # an IndexError without a number
                replace(rng.choice(NUMBERS))
                return value[:begin] + cbor2.dumps(content) + value[len(value[:end]) :]
    place = rng.randrange(len(value))
    return value[:place] + rng.choice((bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7)) + value[place + 8 :]


def numbers_in(content: Any) -> Iterator[Callable[[Any], None]]:
    """A function for each number in lists and dicts that replaces it."""
    places = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for place, each in list(places):
        if isinstance(each, int | float):
            yield partial(content.__setitem__, place)
        else:
            yield from numbers_in(each)


class Pages:
    """The pages of a store, drawn without a server: it would read the store once in two seconds.

    Args:
        db: the store.
        names: the queues.
    """

    def __init__(self, db: Any, names: list[str]) -> None:
        self._db, self._names, self._number = db, names, 0
        self._dashboard = Dashboard(db, WebAccess("token", 0), WebOptions())

    def draw(self, names: Collection[str]) -> None:
        """Draw all pages, those of queues for these names only."""
        paths = ["/", *SECTIONS, *(f"/{kind}/{name}" for kind in ("queues", "aside") for name in names)]
        pages = [page for page in map(page_of, paths) if page is not None and page.path != "/checks"]
        assert len(pages) == len(paths) - 1
        topics = {topic for page in pages for topic in page.topics}
        self._number += 1
        snapshot = StoreSnapshot(self._number, {topic: self._reading(topic) for topic in topics})
        for page in pages:
            word = LOOKUPS.get(page.queue)
            found = None if word is None else look_up(self._db, page.queue, word)
            assert "</html>" in self._dashboard.draw(page, snapshot, found, notice=None, form_token="")

    def _reading(self, topic: Topic) -> Reading:
        """The answer to a topic, or the error that its page shows; any other error is a bug."""
        try:
            return Reading(READERS[topic.kind].read(self._db, topic.name))
        except Exception as error:
            if not stores.is_clear(error):
                raise
            return Reading(error=str(error))


def queue_of(key: bytes, names: list[str], rng: random.Random) -> str:
    """The queue that a key is of; any if it is of none."""
    parts = key.split(b"/")
    return next((name for name in names if name.encode() in parts), "") or rng.choice(names)


def test_whatever_is_broken_each_page_is_drawn(db: Any) -> None:
    rows = make(db)
    names = [queue.name for queue in status(db)]
    pages = Pages(db, names)
    pages.draw(names)
    for rng in searched(40):
        key, changed = damaged(rows, rng)
        stores.put(db, changed)
        with stores.clear_errors(f"with {key!r} broken: {changed.get(key, b'')[:60]!r}", is_sure=True):
            pages.draw([queue_of(key, names, rng)])


FIELDS: dict[str, dict[str, str]] = {
    "pause": {"reason": "why", "duration": "1h"},
    "resume": {},
    "rebucket": {"buckets": "3"},
    "limit": {"max_age": "1h", "max_bytes": "100", "when_full": "admit"},
    "retry": {"key": "a"},
    "drop": {},
    **{f"{what}-link": {"link": ""} for what in ("pause", "resume", "rebuild", "rebase")},
}
"""{action: the fields of its form}."""


def test_whatever_is_broken_each_action_ends_with_a_result(db: Any) -> None:
    rows = make(db)
    names = [queue.name for queue in status(db)]
    assert set(FIELDS) == set(OPERATIONS)
    for rng in searched(20):
        key, changed = damaged(rows, rng)
        for action, fields in FIELDS.items():
            stores.put(db, changed)
            note = f"{action} with {key!r} broken: {changed.get(key, b'')[:60]!r}"
            with stores.clear_errors(note, is_sure=True):
                assert perform(db, OPERATIONS[action], queue_of(key, names, rng), fields)[0]


def set_odd_time(db: Any) -> None:
    """Have a message of the changelog sent in the distant future."""
    ((key, value),) = stored(db, FeedKeys("changes").messages(encode_name("receiver", "hits")))
    put(db, {key: codec.encode([10**19, *codec.decode(value)[1:]])})


def set_endless_limit(db: Any) -> None:
    """Have the age of queued updates limited to infinity."""
    key = QueueKeys("hits").flags
    put(db, {key: codec.encode({**codec.decode(db[key]), "max_seconds": math.inf})})


@pytest.mark.parametrize(
    ("damage", "text"),
    [(set_odd_time, "a message is not one that cq wrote"), (set_endless_limit, "age out of range")],
)
def test_pages_of_a_server_say_which_numbers_are_odd(
    db: Any, damage: Callable[[Any], object], text: str
) -> None:
    make(db)
    damage(db)
    with serving(db) as found:
        for path in ("/", *SECTIONS):
            found.page(path)
        assert text in found.page("/queues/hits")


def test_a_lookup_shows_why_stored_values_cannot_be_combined(db: Any) -> None:
    prefix = QueueKeys("totals.window").prefix + b"d"
    found = [key for key in make(db) if key.startswith(prefix)]
    assert found
    put(db, {key: codec.encode("text") for key in found})
    with serving(db) as server:
        answer = server.client.get("/queues/totals.window", params={"key": LOOKUPS["totals"]})
        assert answer.status_code == 200
        assert "TypeError: " in answer.text
