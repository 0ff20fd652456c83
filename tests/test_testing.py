"""`cq.testing`: what it does for the tests of applications, and what its messages say."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, draining, links, testing
from cq.admin import backfill
from cq.config.queue import read_config
from cq.errors import CodeMismatch, ConfigurationError, QueueNotConfigured, WrongType
from cq.feeds import Feed
from cq.keys import QueueKeys
from cq.observers.links.registry import opened_link
from cq.observers.links.spec import TABLE_ENV, table
from cq.observers.top.cloud import CloudReader
from cq.observers.top.index import top
from cq.passes.effects import ManyFailed
from cq.testing import MemoryTarget, assert_drained, assert_values, drain
from tests.kit.processes import run_program
from tests.kit.queues import add, combine_all, stored

pytest_plugins = ["cq.testing"]

ROOT = Path(__file__).parents[1]


def message(assertion: Any, *args: Any) -> list[str]:
    """The lines that an assertion fails with."""
    with pytest.raises(AssertionError) as failed:
        assertion(*args)
    return str(failed.value).splitlines()


def refusing(name: str, *keys: str) -> cq.App:
    """An app whose observer refuses these keys."""

    def check(tr: Any, changes: list[cq.Change]) -> None:
        for change in changes:
            if change.key in keys:
                raise ValueError(f"no {change.key}")

    app = cq.App()
    app.queue(name, observers=[check])
    return app


# The store


def test_the_fixture_is_an_empty_store_that_the_application_opens_too(cq_db: Any) -> None:
    assert stored(cq_db, (b"", b"\xff")) == []
    cq.configure(cq_db, "words")
    add(cq_db, "words", {"a": 1})

    with cq.open() as application:  # type: ignore[attr-defined]
        drain(application, "words")

    assert_values(cq_db, "words", {"a": 1})


SUITE = """
import cq
from cq.testing import assert_values

def test_one(cq_db):
    cq.configure(cq_db, "words")

def test_two(cq_db):
    cq.configure(cq_db, "words", key=int)
    assert_values(cq_db, "words", {1: 1})
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "conftest",
    [
        'pytest_plugins = ["cq.testing"]',
        "from cq.testing import cq_db",
        'from cq.testing import drain\npytest_plugins = ["cq.testing"]',
    ],
)
def test_a_suite_gets_the_fixture_in_either_way(tmp_path: Path, conftest: str) -> None:
    """A new store for each test; a failure shows the line of the test; no warnings."""
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_words.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]

    ended = run_program(*command, cwd=tmp_path)

    assert "1 failed, 1 passed in" in ended.out, ended
    assert "missing 1: expected 1" in ended.out
    assert "test_words.py:10: AssertionError" in ended.out


# Draining


def test_all_is_combined_and_observers_feed_other_queues_in_this_thread(cq_db: Any) -> None:
    threads = set()

    def count(tr: Any, changes: list[cq.Change]) -> None:
        threads.add(threading.current_thread())
        cq.CombineQueue("sizes").add(tr, [(change.new, 1) for change in changes])

    app = cq.App()
    app.queue("words", observers=[count])
    app.configure(cq_db, "words")
    cq.configure(cq_db, "sizes", key=int)
    add(cq_db, "words", {"a": 1, "b": 2}, {"a": 1})

    drain(cq_db, app=app)

    assert_values(cq_db, "words", {"a": 2, "b": 2})
    assert_values(cq_db, cq.CombineQueue("sizes"), {2: 2})
    assert_drained(cq_db)
    assert threads == {threading.main_thread()}
    assert stored(cq_db, QueueKeys("words").attempts(1, 0)) == []


def test_only_the_queues_named_are_combined(db: Any, name: str) -> None:
    other = f"{name}-2"
    for each in (name, other):
        cq.configure(db, each)
        add(db, each, {"a": 1})

    drain(db, cq.CombineQueue(name))

    assert_drained(db, name)
    assert_values(db, name, {"a": 1})
    assert message(assert_drained, db, name, other)[1:] == [
        f"  queue {other!r}: queued updates, in commit order by bucket: 'a' 1"
    ]


def test_a_queue_includes_the_levels_of_its_roll_up(db: Any, name: str) -> None:
    cq.configure(db, name, rollup="1m:2h,1h:2d")
    cq.configure(db, f"{name}.other")
    add(db, name, {"a": 1})
    add(db, f"{name}.other", {"a": 1})
    combine_all(db, name)
    assert any(
        "queued updates" in line and f"'{name}.1m'" in line for line in message(assert_drained, db, name)
    )

    drain(db, name)

    assert_drained(db, name)
    (row,) = cq.CombineQueue(f"{name}.1h").scan(db)
    assert row[1] == 1
    assert_values(db, name, {"a": 1})
    with pytest.raises(AssertionError, match="queued updates"):
        assert_drained(db, f"{name}.other")


def test_a_cloud_is_published_each_time_although_workers_would_wait(db: Any, name: str) -> None:
    cq.configure(db, name, observers=[top(2, every="1m")])
    reader = CloudReader(name)

    for number in (1, 2):
        add(db, name, {"a": 1})
        drain(db, name)
        found = cq.transact(db, lambda tr: reader.read(tr.snapshot))
        assert [(entry.key, entry.score) for entry in found.entries] == [("a", number)]


def test_the_messages_of_feeds_are_delivered_and_numbered(cq_db: Any) -> None:
    feed: Feed[str] = Feed("chat")
    feed.configure(cq_db, numbers=True)

    @cq.transactional
    def say(tr: Any) -> None:
        feed.join(tr, "crew", "dan")
        feed.append_to_group(tr, "crew", "hello")

    say(cq_db)
    drain(cq_db)
    page = cq.transact(cq_db, lambda tr: feed.read_numbered(tr, "dan"))
    assert [(message.body, message.number) for message in page.messages] == [("hello", 1)]


def test_a_link_is_done_and_one_that_fails_is_named(
    db: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TABLE_ENV, raising=False)
    cq.configure(db, name, links=[table("words")])
    add(db, name, {"a": 1})
    drain(db, name)
    assert_values(db, name, {"a": 1})
    (line,) = message(assert_drained, db, name)[1:]
    assert line.startswith(f"  queue {name!r}: rows for link 'export': 1; it is failing: ")
    assert TABLE_ENV in line

    monkeypatch.setenv(TABLE_ENV, f"sqlite:///{tmp_path / 'report.db'}")
    with opened_link(db, name) as link:
        link.target.create()
    drain(db, name)

    assert_drained(db, name)


def test_a_target_of_the_application_gets_what_waits(db: Any, name: str) -> None:
    app, target = cq.App(), MemoryTarget()
    app.target("memory")(lambda source: target)
    cq.configure(db, name, links=[links.app("memory")])
    db.transact(lambda tr: links.add(tr, name, {"a": 1}))
    assert message(assert_drained, db, name)[1:] == [
        f"  queue {name!r}: rows for link 'memory': 1; it is filling"
    ]

    drain(db, name, app=app)

    assert target.values == {"a": 1}
    assert_drained(db, name)


def test_a_pause_that_is_over_is_none(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"a": 1})
    admin.pause(db, name, duration=0.001)
    time.sleep(0.002)

    drain(db, name)

    assert_values(db, name, {"a": 1})


def test_observers_of_all_values_are_switched_to(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=8)
    add(db, name, {"a": 1})
    drain(db, name)
    admin.put_observer(db, name, top(2))
    assert message(assert_drained, db, name)[1:] == [f"  queue {name!r}: 8 buckets wait for a pass"]

    drain(db, name)

    found = cq.transact(db, lambda tr: CloudReader(name).read(tr.snapshot))
    assert [entry.key for entry in found.entries] == ["a"]


def test_what_cannot_be_combined_raises(db: Any, name: str) -> None:
    app = refusing(name)
    app.configure(db, name)
    drain(db, name)  # nothing is queued, so no code is needed
    add(db, name, {"a": 1})

    with pytest.raises(CodeMismatch, match="observer check@1, this process has none"):
        drain(db, name)
    admin.pause(db, name, "for this test")
    with pytest.raises(ConfigurationError, match=r"is paused: for this test"):
        drain(db, name, app=app)
    assert message(assert_drained, db, name)[-1].endswith("it is paused: for this test")
    with pytest.raises(QueueNotConfigured):
        drain(db, f"{name}-2")
    with pytest.raises(WrongType, match="`drain` takes it as app="):
        drain(db, app)  # type: ignore[arg-type]


def test_an_application_is_configured_without_its_links(cq_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TABLE_ENV, raising=False)
    app = cq.App()
    app.queue("words", observers=[top(3)], links=[table("word_counts")])
    app.configure_all(cq_db, links=[])
    add(cq_db, "words", {"a": 1})
    drain(cq_db, app=app)

    assert_values(cq_db, "words", {"a": 1})
    assert_drained(cq_db)


def test_a_change_of_the_queue_while_it_is_drained(cq_db: Any) -> None:
    def check(tr: Any, changes: list[cq.Change]) -> None:
        if buckets_of_words() < 5:
            admin.rebucket(cq_db, "words", 5)

    def buckets_of_words() -> int:
        return cq.transact(cq_db, lambda tr: read_config(tr, "words")).buckets

    app = cq.App()
    app.queue("words", buckets=2, observers=[check])
    app.configure_all(cq_db)
    add(cq_db, "words", {f"k{number}": 1 for number in range(50)})
    drain(cq_db, app=app)

    assert buckets_of_words() == 5
    assert_values(cq_db, "words", {f"k{number}": 1 for number in range(50)})
    assert is_settled(cq_db, "words")


def is_settled(db: Any, name: str) -> bool:
    """Whether no change of the queue is in progress."""
    return cq.transact(db, lambda tr: backfill.is_settled(tr, name))


def test_a_later_version_of_a_combiner_takes_over(cq_db: Any) -> None:
    def app(version: int) -> cq.App:
        made = cq.App()
        convert = None if version == 1 else lambda key, value, version: 10 * value
        own = cq.Combiner("own", version, lambda key, values: sum(values), convert=convert)
        made.queue("words", combiner=own, rollup="1h:forever")
        made.configure_all(cq_db)
        return made

    first = app(1)
    add(cq_db, "words", {"a": 1})
    second = app(2)
    add(cq_db, "words", {"a": 2})
    with pytest.raises(CodeMismatch, match="workers with own@1 must first combine the updates"):
        drain(cq_db, app=second)
    with pytest.raises(CodeMismatch, match="asks for the combiner own@2"):
        drain(cq_db, app=first)
    drain(cq_db, app=second)

    assert_values(cq_db, "words", {"a": 12})
    assert is_settled(cq_db, "words")
    app(3)  # nothing is queued for the second version
    drain(cq_db, app=app(3))
    assert_values(cq_db, "words", {"a": 120})


def test_a_combiner_that_fails_for_every_key_is_no_matter_of_keys(cq_db: Any) -> None:
    app = cq.App()
    app.queue("words", combiner=cq.Combiner("broken", 1, lambda key, values: 1 // 0))
    app.configure(cq_db, "words", buckets=1)
    add(cq_db, "words", {f"k{number}": 1 for number in range(50)})

    with pytest.raises(ManyFailed, match="ZeroDivisionError"):
        drain(cq_db, app=app)


def test_an_observer_that_has_no_end_is_found_out(cq_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "ROUNDS", 10)
    app = cq.App()
    app.queue("words", observers=[adding_again])
    app.configure(cq_db, "words")
    add(cq_db, "words", {"a": 1})

    with pytest.raises(AssertionError, match=r"after 10 rounds .* in the queues words"):
        drain(cq_db, app=app)


def adding_again(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that adds to its own queue."""
    cq.CombineQueue("words").add(tr, {"a": 1})


# What messages say


def test_other_values_are_named_with_what_was_expected_and_found(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"right": 1, "different": 2, "extra": 3})
    drain(db, name)

    assert message(assert_values, db, name, {"right": 1, "different": 1, "missing": 4}) == [
        f"queue {name!r} has other values than expected:",
        "  missing 'missing': expected 4",
        "  extra 'extra': found 3",
        "  different 'different': expected 1, found 2",
    ]


def test_the_howto_shows_a_failure_as_it_is(cq_db: Any) -> None:
    app = cq.App()
    app.queue("orders", observers=[check])
    app.configure(cq_db, "orders", buckets=1)
    add(cq_db, "orders", {"ada": 1, "bob": 1})
    drain(cq_db, app=app)
    add(cq_db, "orders", {"ada": 1})

    shown = (ROOT / "docs/count/testing.md").read_text().split("```text\n")[1].split("```")[0]

    assert message(assert_values, cq_db, "orders", {"ada": 2, "bob": 1}) == shown.splitlines()


def check(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that knows but one customer."""
    for change in changes:
        if change.key == "bob":
            raise ValueError("no customer bob")


def test_what_waits_or_was_set_aside_explains_other_values(db: Any, name: str) -> None:
    app = refusing(name, "bad")
    app.configure(db, name, buckets=1)
    add(db, name, {"bad": 1, "good": 1})
    drain(db, name, app=app)
    add(db, name, {"good": 2})

    left = [
        "queued updates, in commit order by bucket: 'good' 2",
        "set aside 'bad' [1]: observer 'check': ValueError: no bad",
    ]
    assert message(assert_values, db, name, {"bad": 1, "good": 3})[1:] == [
        "  missing 'bad': expected 1",
        "  different 'good': expected 3, found 1",
        *(f"  {line}" for line in left),
    ]
    assert message(assert_drained, db, name) == [
        "not everything is combined and sent:",
        *(f"  queue {name!r}: {line}" for line in left),
    ]


def test_messages_stay_short(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner="last", buckets=1)
    add(db, name, {"a": "x" * 1000}, *({f"k{number}": cq.DELETE} for number in range(20)))

    (line,) = message(assert_drained, db, name)[1:]

    assert ", 'k0' DELETE, " in line
    assert line.endswith("'k8' DELETE, ... and 11 more")
    assert len(line) < 500


def test_a_change_that_moves_to_a_queue_already_read_is_seen(
    cq_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker moves it while the assertion reads: all queues are read at one version."""
    app, total = cq.App(), cq.CombineQueue("a_total")

    def count(tr: Any, changes: list[cq.Change]) -> None:
        total.add(tr, {"all": len(changes)})

    app.queue("words", observers=[count])
    cq.configure(cq_db, "a_total")
    app.configure(cq_db, "words")
    drain(cq_db, app=app)
    add(cq_db, "words", {"hello": 1})
    remaining = testing._remaining
    read: list[str] = []

    def read_before_a_worker_moves(source: Any, name: str) -> list[str]:
        found = remaining(source, name)
        read.append(name)
        if len(read) == 1:
            drain(cq_db, "words", app=app)
        return found

    monkeypatch.setattr(testing, "_remaining", read_before_a_worker_moves)
    assert message(assert_drained, cq_db)[1:] == [
        "  queue 'words': queued updates, in commit order by bucket: 'hello' 1"
    ]
    assert read == ["a_total", "words"]
    monkeypatch.undo()
    drain(cq_db, app=app)
    assert_drained(cq_db)
