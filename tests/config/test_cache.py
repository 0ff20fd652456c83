"""What a transaction that knows a configuration from the cache conflicts with, and what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

import cq
from cq import admin
from cq.admin.rebucketing import finish_rebucket
from cq.config.queue import read_config, write_config
from cq.feeds.feed import Feed
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.observers.top.index import top
from cq.passes.combine_pass import Pass
from cq.store.api import METADATA_VERSION, is_local
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.faults import Calls
from tests.kit.queues import add, code_of, commits, get


def observer(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that does nothing."""


CHANGES: Final[dict[str, tuple[Callable[[Any, str], object], Callable[[Any, str], object]]]] = {
    "observers": (lambda db, name: None, lambda db, name: cq.configure(db, name, observers=[observer])),
    "put": (lambda db, name: None, lambda db, name: admin.put_observer(db, name, top())),
    "remove": (
        lambda db, name: admin.put_observer(db, name, top()),
        lambda db, name: admin.remove_observer(db, name, "top"),
    ),
    "rebuild": (
        lambda db, name: admin.put_observer(db, name, top()),
        lambda db, name: admin.rebuild_observer(db, name, "top"),
    ),
    "window": (lambda db, name: None, lambda db, name: cq.configure(db, name, window="60/1")),
    "audit on": (lambda db, name: None, lambda db, name: cq.configure(db, name, audit=True)),
    "audit off": (
        lambda db, name: cq.configure(db, name, audit=True),
        lambda db, name: cq.configure(db, name, audit=False),
    ),
    "rebucket": (lambda db, name: None, lambda db, name: admin.rebucket(db, name, 3)),
    "finish": (lambda db, name: admin.rebucket(db, name, 3), finish_rebucket),
    "purge": (lambda db, name: None, admin.purge),
    "limit": (lambda db, name: None, lambda db, name: admin.limit(db, name, max_age=5)),
    "no limit": (lambda db, name: admin.limit(db, name, max_age=5), admin.limit),
    "delete": (lambda db, name: None, admin.delete),
}
"""{what changes a configuration: what is done before, and the change}: each marked with † in correctness.md."""


@pytest.mark.parametrize("what", CHANGES)
def test_no_add_commits_under_an_outdated_configuration(db: Any, name: str, what: str) -> None:
    before, change = CHANGES[what]
    cq.configure(db, name, buckets=2, window="600/10")
    before(db, name)
    transact(db, lambda tr: read_config(tr, name))  # known from here on
    tr = db.create_transaction()
    cq.CombineQueue(name).add(tr, {"a": 1})

    assert change(db, name) is not False

    assert not commits(tr)


def test_two_who_make_a_queue_conflict(db: Any, name: str) -> None:
    tr = db.create_transaction()
    with pytest.raises(cq.errors.QueueNotConfigured):
        read_config(tr, name)
    tr.set(b"test/" + name.encode(), b"")

    cq.configure(db, name)

    assert not commits(tr)


def set_metadata_version(db: Any) -> None:
    """What another layer on the same cluster does."""
    transact(db, lambda tr: tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP))


@pytest.mark.parametrize(
    "change",
    [
        lambda db, name: cq.configure(db, f"{name}-2"),
        lambda db, name: Feed(name).configure(db),
        lambda db, name: set_metadata_version(db),
    ],
    ids=["queue", "feed", "layer"],
)
def test_changes_of_others_abort_nothing(db: Any, name: str, change: Callable[[Any, str], object]) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    trs = [db.create_transaction() for _ in range(3)]
    cq.CombineQueue(name).add(trs[0], {"a": 2})
    Pass(trs[1], code_of(db, name), 0).run()
    feed = Feed(f"{name}-feed")
    feed.configure(db)
    transact(db, lambda tr: feed.append(tr, "ann", "first"))
    feed.append(trs[2], "ann", "second")

    change(db, name)

    assert [commits(tr) for tr in trs] == [True, True, True]
    drain(db, name)
    assert get(db, name, "a") == 3


def test_a_change_of_a_feed_aborts_appends_under_way(db: Any, name: str) -> None:
    feed = Feed(name)
    feed.configure(db)
    tr = db.create_transaction()
    feed.append(tr, "ann", "late")

    feed.configure(db, keep=5)

    assert not commits(tr)


def test_a_known_configuration_is_not_read_again(db: Any, name: str) -> None:
    cq.configure(db, name)
    transact(db, lambda tr: read_config(tr, name))
    tr: Any = Calls(db.create_transaction())
    snapshot = tr.__dict__["snapshot"] = Calls(tr.snapshot)

    read_config(tr, name)
    versions = (
        ["get"] if is_local(db) else ["get_read_version", "get"]
    )  # in one reply: the metadata version only
    assert (tr.made, snapshot.made) == (["add_read_conflict_key"], versions)

    read_config(snapshot, name)
    assert (tr.made, snapshot.made) == (["add_read_conflict_key"], versions * 2)


def test_a_transaction_that_adds_and_then_reads_commits_while_others_change_configurations(
    db: Any, name: str
) -> None:
    cq.configure(db, name)
    tries = 0

    def run(tr: Any) -> None:
        nonlocal tries
        tries += 1
        assert tries < 4
        cq.CombineQueue(name).add(tr, {"a": 1})
        set_metadata_version(db)
        assert tr.get(b"test/" + name.encode()).value is None

    transact(db, run)
    drain(db, name)
    assert get(db, name, "a") == 1


def test_a_configuration_that_was_not_committed_is_not_cached(db: Any, name: str) -> None:
    """Also where options hide the transaction's own writes from the read that identifies the cache."""
    cq.configure(db, name)
    config = transact(db, lambda tr: read_config(tr.snapshot, name))
    cq.configure(db, f"{name}-other")  # nothing is known any more
    tr = db.create_transaction()
    tr.options.set_snapshot_ryw_disable()
    write_config(tr, replace(config, limited=True))
    read_config(tr, name)
    tr.cancel()

    assert not transact(db, lambda tr: read_config(tr, name)).limited
    admin.delete(db, f"{name}-other")
