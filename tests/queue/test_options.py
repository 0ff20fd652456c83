"""Options of the application's transaction: cq works with them, or refuses clearly."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fdb.fdboptions import TransactionOption

import cq
from cq.config.queue import read_config, write_config
from cq.errors import PendingUnreadable, WritesUnreadable
from cq.feeds.feed import Feed
from cq.intake.documents import Documents
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.observers.distinct import count_now
from cq.store.api import METADATA_VERSION, is_local
from cq.store.embedded import Database as Embedded
from cq.store.transact import transact
from cq.testing import assert_values, drain
from cq.windows import Window
from tests.kit.faults import error_class
from tests.kit.queues import add, combine_all, get, values

HIDING = ["read_your_writes_disable", "snapshot_ryw_disable"]
GIVEN: dict[type, Any] = {int: 5_000, str: "text", bytes: bytes(33)}
CONFLICT = 1020
PAGE = Path(__file__).parents[2] / "docs" / "understand" / "guarantees.md"


def set_option(tr: Any, option: str) -> None:
    """Set an option, with some value if it takes one."""
    kind = TransactionOption[option][2]
    getattr(tr.options, f"set_{option}")(*([] if kind is type(None) else [GIVEN[kind]]))


def needs_unreadable_ranges(db: Any, option: str | None) -> None:
    """Skip the test on a cluster, where the option lets also ranges be read."""
    if option == "bypass_unreadable" and not is_local(db):
        pytest.skip("ranges are readable with bypass_unreadable")


@pytest.mark.parametrize("option", TransactionOption)
def test_a_transaction_with_any_option_adds_and_reads_right_values(tmp_path: Path, option: str) -> None:
    """In an embedded store, which takes all options that FoundationDB takes."""
    with Embedded(tmp_path / "test.db") as db:
        cq.configure(db, "q")
        queue, documents = cq.CombineQueue("q"), Documents(cq.CombineQueue("q"))
        add(db, "q", {"a": 1})
        drain(db, "q")

        def change(tr: Any) -> object:
            set_option(tr, option)
            before = queue.get(tr, "a", pending=True)
            queue.add(tr, {"a": 10}, once="id")
            documents.set(tr, b"doc", {"b": 5})
            return before

        assert transact(db, change) == 1
        drain(db, "q")
        assert_values(db, "q", {"a": 11, "b": 5})

        tr: Any = db.create_transaction()
        change(tr)
        with pytest.raises(PendingUnreadable, match="read first"):
            queue.get(tr, "a", pending=True)


@pytest.mark.parametrize("option", TransactionOption)
def test_the_page_says_what_an_option_does(option: str) -> None:
    assert re.search(rf"`{option}`", PAGE.read_text())


@pytest.mark.parametrize("option", [*HIDING, "bypass_unreadable", None])
def test_pending_reads_after_an_add_are_refused(db: Any, name: str, option: str | None) -> None:
    needs_unreadable_ranges(db, option)
    cq.configure(db, name, key=(str, str), window=60, buckets=4)
    cq.configure(db, f"{name}-into")
    queue, window, key = cq.CombineQueue(name), Window(name), ("a", "b")
    add(db, name, {key: 1})
    reads: list[Callable[[Any], object]] = [
        lambda tr: queue.get(tr, key, pending=True),
        lambda tr: queue.get(tr.snapshot, key, pending=True),
        lambda tr: window.get(tr, key, pending=True),
        lambda tr: window.items(tr, pending=True),
        lambda tr: count_now(tr.snapshot, name, f"{name}-into", 1, 0),
    ]
    for read in reads:
        for adds in (queue, window):
            tr = db.create_transaction()
            if option:
                set_option(tr, option)
            read(tr)
            adds.add(tr, {key: 10})
            with pytest.raises(PendingUnreadable, match="read first"):
                read(tr)
            if option != "bypass_unreadable":  # then only the read itself shows it
                tr.commit().wait()


@pytest.mark.parametrize("option", [*HIDING, "bypass_unreadable"])
def test_buckets_without_adds_stay_readable(db: Any, name: str, option: str) -> None:
    cq.configure(db, name, buckets=64)
    queue = cq.CombineQueue(name)
    add(db, name, {"other": 3})

    def change(tr: Any) -> object:
        set_option(tr, option)
        queue.add(tr, {"a": 10})
        return queue.get(tr, "other", pending=True)

    assert transact(db, change) == 3


@pytest.mark.parametrize("option", [*HIDING, None])
def test_a_retry_reads_before_its_add(db: Any, name: str, option: str | None) -> None:
    """What an earlier try of the same transaction has added is no reason to refuse."""
    cq.configure(db, name)
    queue, seen = cq.CombineQueue(name), []

    def change(tr: Any) -> None:
        if option:
            set_option(tr, option)
        seen.append(queue.get(tr, "a", pending=True))
        queue.add(tr, {"a": 1})
        if len(seen) < 3:
            raise error_class(tr)(CONFLICT)

    transact(db, change)
    assert seen == [None] * 3


def test_a_retry_by_another_loop_reads_before_its_add(db: Any, name: str) -> None:
    """No loop but cq's own says that a transaction begins again."""
    cq.configure(db, name)
    queue, tr = cq.CombineQueue(name), db.create_transaction()
    for _ in range(2):
        assert queue.get(tr, "a", pending=True) is None
        queue.add(tr, {"a": 1})
        tr.on_error(CONFLICT).wait()
    assert queue.get(tr, "a", pending=True) is None
    transact(
        db, lambda other: queue.add(other, {"a": 1})
    )  # the test for an add of this try conflicts with no other
    queue.add(tr, {"a": 1})
    tr.commit().wait()
    assert get(db, name, "a", pending=True) == 2


@pytest.mark.parametrize("option", [*HIDING, "bypass_unreadable", None])
def test_a_document_that_is_stored_twice_counts_once_or_is_refused(
    db: Any, name: str, option: str | None
) -> None:
    cq.configure(db, name)
    documents = Documents(cq.CombineQueue(name))
    changes: list[Callable[[Any], object]] = [
        lambda tr: documents.set(tr, b"doc", {"a": 5}),
        lambda tr: documents.set(tr, b"doc", {"a": 7, "b": 1}),
        lambda tr: documents.clear(tr, b"doc"),
        lambda tr: documents.set(tr, b"doc", {"b": 2}),
    ]

    def change(tr: Any) -> None:
        if option:
            set_option(tr, option)
        changes[0](tr)
        for each in changes[1:]:
            if option == "read_your_writes_disable":
                with pytest.raises(WritesUnreadable, match="change it once"):
                    each(tr)
            else:
                each(tr)

    transact(db, change)
    combine_all(db, name)
    assert values(db, name) == ({"a": 5} if option == "read_your_writes_disable" else {"b": 2})
    assert transact(db, lambda tr: documents.counts(tr, b"doc")) == values(db, name)


def write_metadata_version(tr: Any) -> None:
    tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)


@pytest.mark.parametrize("option", [*HIDING, "bypass_unreadable"])
def test_an_add_works_after_a_write_of_the_metadata_version_that_is_hidden(
    db: Any, name: str, option: str
) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue(name)

    def change(tr: Any) -> object:
        set_option(tr, option)
        write_metadata_version(tr)
        queue.add(tr, {"a": 1})
        return queue.get(tr, "a"), queue.get(tr.snapshot, "a")

    assert transact(db, change) == (None, None)
    assert get(db, name, "a", pending=True) == 1


def test_an_add_after_a_write_of_the_metadata_version_is_refused(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue, feed = cq.CombineQueue(name), Feed(name)
    feed.configure(db)
    calls: list[Callable[[Any], object]] = [
        lambda tr: queue.add(tr, {"a": 1}),
        lambda tr: queue.get(tr, "a"),
        lambda tr: feed.append(tr, "ann", "hello"),
    ]
    for call in calls:

        def change(tr: Any) -> None:
            write_metadata_version(tr)
            call(tr)  # noqa: B023 - runs at once

        with pytest.raises(WritesUnreadable, match="call cq before that write"):
            transact(db, change)


def test_an_add_before_a_write_of_the_metadata_version_is_committed(db: Any, name: str) -> None:
    cq.configure(db, name)

    def change(tr: Any) -> None:
        cq.CombineQueue(name).add(tr, {"a": 1})
        write_metadata_version(tr)

    transact(db, change)
    assert get(db, name, "a", pending=True) == 1


def test_a_placeholder_of_the_metadata_version_is_no_version(db: Any, name: str) -> None:
    """With `bypass_unreadable` each transaction reads the same placeholder, whatever the configuration is by then."""
    cq.configure(db, name, buckets=1)

    def change(tr: Any) -> int:
        set_option(tr, "bypass_unreadable")
        write_metadata_version(tr)
        return read_config(tr, name).buckets

    def change_elsewhere(tr: Any) -> None:
        write_config(
            tr, replace(before, buckets=3)
        )  # as another process does: this one reads nothing in between

    before = transact(db, lambda tr: read_config(tr, name))
    assert transact(db, change) == 1
    transact(db, change_elsewhere)
    assert transact(db, change) == 3


@pytest.mark.parametrize("option", HIDING)
def test_a_feed_is_read_as_it_was_before_an_append_that_is_hidden(db: Any, name: str, option: str) -> None:
    feed = Feed(name)
    feed.configure(db)
    transact(db, lambda tr: feed.append(tr, "ann", "before"))
    tr = db.create_transaction()
    set_option(tr, option)
    feed.append(tr, "ann", "new")

    assert [each.body for each in feed.read(tr.snapshot, "ann").messages] == ["before"]


def test_a_feed_gives_no_ids_that_are_not_known_yet(db: Any, name: str) -> None:
    needs_unreadable_ranges(db, "bypass_unreadable")
    feed = Feed(name)
    feed.configure(db)
    transact(db, lambda tr: feed.append(tr, "ann", "before"))
    tr = db.create_transaction()
    set_option(tr, "bypass_unreadable")
    feed.append(tr, "ann", "new")

    with pytest.raises(PendingUnreadable, match="do so first"):
        feed.read(tr, "ann")


def test_a_transaction_with_a_refused_read_of_a_feed_commits(db: Any, name: str) -> None:
    feed = Feed(name)
    feed.configure(db)
    tr = db.create_transaction()
    feed.append(tr, "ann", "new")
    for reads in (tr, tr.snapshot):
        with pytest.raises(PendingUnreadable, match="do so first"):
            feed.read(reads, "ann")
    assert feed.read(tr, "bob").messages == ()
    tr.commit().wait()

    assert [each.body for each in transact(db, lambda tr: feed.read(tr, "ann")).messages] == ["new"]


def test_a_retry_by_another_loop_reads_a_feed_before_its_append(db: Any, name: str) -> None:
    feed, tr = Feed(name), db.create_transaction()
    feed.configure(db)
    for _ in range(2):
        assert feed.read(tr, "ann").messages == ()
        feed.append(tr, "ann", "new")
        tr.on_error(CONFLICT).wait()
    feed.read(tr, "ann")
    tr.set(b"test/" + name.encode(), b"")
    transact(db, lambda other: feed.append(other, "bob", "new"))
    tr.commit().wait()
    transact(db, lambda tr: tr.clear(b"test/" + name.encode()))
