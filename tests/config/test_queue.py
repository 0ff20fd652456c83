"""Configuration: stored once, the same for all, and no add under an outdated one."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

import cq
import cq.links
from cq import admin
from cq.admin.configured_queue import QueueSettings
from cq.config.flags import Flags, read_flags
from cq.config.queue import DEFAULT_BUCKETS, LOCAL_BUCKETS, QueueConfig, queue_names, read_config
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.errors import (
    CodeMismatch,
    ConfigurationConflict,
    InvalidConfiguration,
    QueueNotConfigured,
)
from cq.feeds.config import read_feed_config
from cq.feeds.feed import Feed
from cq.keys import QueueKeys
from cq.store.api import is_local
from cq.store.transact import transact
from tests.kit.queues import commits, configured


def observer(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that does nothing."""


def test_the_same_settings_again_change_nothing(db: Any, name: str) -> None:
    first = configured(db, name, key=(str, int), value=int, buckets=8)
    reader = db.create_transaction()
    reader.get(QueueKeys(name).config).wait()
    reader.add_write_conflict_key(QueueKeys(name).config)

    assert configured(db, name, key="(str, int)", value="int", buckets=8) == first
    assert commits(reader)  # it would conflict with a write of the configuration


def test_a_new_queue_has_fewer_buckets_where_passes_come_one_after_the_other(db: Any, name: str) -> None:
    assert configured(db, name).buckets == (LOCAL_BUCKETS if is_local(db) else DEFAULT_BUCKETS)


def test_other_settings_are_refused_and_named(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=8)

    with pytest.raises(
        ConfigurationConflict, match="key str -> int, buckets 8 -> 16; nothing was changed"
    ) as caught:
        cq.configure(db, name, buckets=16, key=int)
    assert caught.value.differences == {"buckets": (8, 16), "key": ("str", "int")}
    assert transact(db, lambda tr: read_config(tr, name)).buckets == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"key": float}, {"value": "complex"}, {"combiner": "mean"}, {"buckets": 0}, {"buckets": 4097},
        {"buckets": True}, {"buckets": "8"}, {"value": str, "combiner": "sum"}, {"value": int, "combiner": "union"},
        {"observers": [lambda tr, changes: None]}, {"observers": ["name"]}, {"observers": [observer, observer]},
        {"window": WindowSpec(10, 3)},
    ],
)  # fmt: skip
def test_settings_that_cq_does_not_know_are_refused(db: Any, name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match="expected"):
        cq.configure(db, name, **settings)
    with pytest.raises(QueueNotConfigured, match=f"cq configure {name}"):
        transact(db, lambda tr: read_config(tr, name))


def test_a_configuration_comes_back_as_it_was_stored(db: Any, name: str) -> None:
    own = cq.Combiner("longest", 3, lambda key, values: max(values, key=len))
    wanted = configured(db, name, key=(bytes, str), value=list, combiner=own, buckets=3, observers=[observer])

    assert QueueConfig.from_bytes(name, wanted.to_bytes()) == wanted
    assert str(wanted.combiner) == "longest@3"
    assert wanted.settings()["observers"] == ["observer@1"]
    assert name in transact(db, queue_names)


def test_a_pause_disturbs_no_add(db: Any, name: str) -> None:
    cq.configure(db, name)
    tr = db.create_transaction()
    cq.CombineQueue(name).add(tr, {"a": 1})

    admin.pause(db, name, "because")

    tr.commit().wait()
    assert transact(db, lambda tr: read_flags(tr, name)) == Flags(paused=True, reason="because")
    admin.resume(db, name)
    assert not transact(db, lambda tr: read_flags(tr, name)).paused


def test_a_newer_format_asks_for_an_upgrade(db: Any, name: str) -> None:
    transact(db, lambda tr: tr.set(QueueKeys(name).config, codec.encode({"format": 99})))

    with pytest.raises(CodeMismatch, match="upgrade cq"):
        transact(db, lambda tr: read_config(tr, name))


def test_code_is_resolved_by_name_and_version(db: Any, name: str) -> None:
    own = cq.Combiner("longest", 2, lambda key, values: max(values, key=len))
    stored = configured(db, name, value=str, combiner=own, observers=[observer])

    app = cq.App()
    with pytest.raises(CodeMismatch, match="longest@2, this process has none"):
        app.code(stored)
    app.queue(name, combiner=cq.Combiner("longest", 1, own.combine), observers=[observer])
    with pytest.raises(CodeMismatch, match="longest@2, this process has longest@1"):
        app.code(stored)
    app.queue(name, combiner=own)
    with pytest.raises(CodeMismatch, match="observer observer@1, this process has none"):
        app.code(stored)
    app.queue(name, combiner=own, observers=[observer])
    assert app.code(stored).combiner is own
    assert app.configure(db, name, value=str).combiner is own
    assert configured(db, name) == stored


def test_an_application_and_configure_have_the_same_settings_with_names() -> None:
    """So that an editor and `help` show them, also where they are passed on as a dict."""
    declared, configured = (set(signature(each).parameters) for each in (cq.App.queue, cq.configure))

    assert declared ^ configured == {"self", "db", "report_again"}
    assert QueueSettings.__optional_keys__ == declared - {"self", "name", "key", "value"}


def test_an_application_declares_its_queues_and_feeds_once(db: Any, name: str) -> None:
    app = cq.App()
    chat: Feed[str] = app.feed(f"{name}-chat", numbers=True, keep="30d")
    words = app.queue(name, key=str, value=int, combiner="maximum", links=[cq.links.table("words")])
    app.queue(f"{name}-2", key=(str, int), value=float, rollup="1h:30d")

    app.configure_all(db)
    transact(db, lambda tr: words.add(tr, {"a": 2}))
    chat.append_now(db, "ann", "hello")

    assert transact(db, lambda tr: read_feed_config(tr, chat.name)).keep_seconds == 30 * 86_400
    first, second = configured(db, name), configured(db, f"{name}-2")
    assert (str(first.combiner), [each.name for each in first.observers]) == ("maximum@1", ["link:export"])
    assert (str(second.key), str(second.value), str(second.rollup)) == ("(str, int)", "float", "1h:30d")
    app.configure(db, name, expire=60)
    assert configured(db, name).observers == first.observers
    assert configured(db, name).expiry is not None


def test_configure_returns_the_queue_with_its_own_combiner(db: Any, name: str) -> None:
    own = cq.Combiner("longest", 1, lambda key, values: max(values, key=len))
    queue = cq.configure(db, name, key=(str, int), value=set[str], combiner=own)

    assert isinstance(queue, cq.CombineQueue)
    assert (queue.name, queue.combiner) == (name, own)
    assert cq.configure(db, name).combiner is None
    transact(db, lambda tr: queue.add(tr, {("a", 1): {"b"}}))
    assert transact(db, lambda tr: queue.get(tr, ("a", 1), pending=True)) == {"b"}
    assert configured(db, name).value.name == "set"
