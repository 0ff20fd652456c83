"""Configurations that need a feature: a process without it refuses the queue, and all others stay readable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

import cq
from cq import admin
from cq.admin.queue_status import status
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import CodeMismatch, CorruptData
from cq.keys import QueueKeys
from cq.observers.telemetry.bus import subscribe
from cq.observers.worker.worker import Worker
from cq.passes.combine_pass import Pass
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from tests.config.versions import as_stored, needs_another, store
from tests.kit.queues import add, code_of, commits, configured, get

REFUSED: Final = r"needs features that this version of cq lacks \('time travel'\): use the version of cq"


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, []),
        ({"audit": True}, ["audit"]),
        ({"window": "60/5"}, ["levels"]),
        ({"expire": 60}, ["expiry"]),
        ({"audit": True, "expire": 60}, ["audit", "expiry"]),
        ({"rollup": "1m:forever"}, ["levels"]),
        ({"audit": True, "window": "60/5"}, ["audit", "levels"]),
        (
            {"combiner": "maximum", "window": "60/5", "expire": 60, "rollup": "1m:forever"},
            ["expiry", "levels"],
        ),
    ],
)
def test_a_configuration_lists_the_features_that_it_needs(
    db: Any, name: str, settings: dict[str, Any], needed: list[str]
) -> None:
    config = configured(db, name, **settings)
    assert as_stored(config)["format"] == 2  # which builds that know the first format only refuse
    assert as_stored(config)["features"] == needed
    assert QueueConfig.from_bytes(name, config.to_bytes()) == config


def test_a_window_of_a_build_without_lists_is_read_and_listed_from_the_next_change_on(
    db: Any, name: str
) -> None:
    config = configured(db, name, window="60/5")
    before = {**as_stored(config), "format": 1}
    del before["features"]
    assert QueueConfig.from_bytes(name, codec.encode(before)) == config

    store(db, name, before)
    admin.limit(db, name, max_age=5)

    stored = transact(db, lambda tr: tr.get(QueueKeys(name).config).value)
    assert codec.decode(stored or b"") == as_stored(replace(config, limited=True))


def run_pass(db: Any, name: str) -> None:
    """A pass of a worker that knows the queue as it was."""
    code = code_of(db, configured(db, f"{name}-2", buckets=1).name)
    transact(db, lambda tr: Pass(tr, replace(code, config=replace(code.config, name=name)), 0).run())


@pytest.mark.parametrize(
    "call",
    [
        lambda db, name: add(db, name, {"a": 1}),
        lambda db, name: add(db, name, {"a": 1}, once="id"),
        lambda db, name: get(db, name, "a"),
        lambda db, name: get(db, name, "a", pending=True),
        lambda db, name: transact(db, lambda tr: cq.CombineQueue(name).get_many(tr, ["a"])),
        lambda db, name: list(cq.CombineQueue(name).scan(db)),
        lambda db, name: cq.Emitter(cq.CombineQueue(name), db),
        run_pass,
        lambda db, name: cq.configure(db, name, window="30/5"),
        lambda db, name: admin.rebucket(db, name, 3),
        lambda db, name: admin.limit(db, name, max_age=5),
        admin.pause,
        retry_aside,
        admin.purge,
        admin.delete,
        status,
    ],
)  # fmt: skip
def test_a_queue_that_needs_an_unknown_feature_is_refused(
    db: Any, name: str, call: Callable[[Any, str], object]
) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    needs_another(db, name)
    before = transact(
        db, lambda tr: tr.get_range(QueueKeys(name).prefix, QueueKeys(name).prefix + b"\xff").to_list()
    )

    with pytest.raises(CodeMismatch, match=REFUSED) as refused:
        call(db, name)

    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    after = transact(
        db, lambda tr: tr.get_range(QueueKeys(name).prefix, QueueKeys(name).prefix + b"\xff").to_list()
    )
    assert [(row.key, row.value) for row in after] == [(row.key, row.value) for row in before]


def test_an_add_under_way_does_not_commit_once_the_queue_needs_another_feature(db: Any, name: str) -> None:
    cq.configure(db, name)
    tr = db.create_transaction()
    cq.CombineQueue(name).add(tr, {"a": 1})
    needs_another(db, name)
    assert not commits(tr)


def test_workers_leave_such_a_queue_alone_with_a_message_and_combine_the_others(db: Any, name: str) -> None:
    names = [name, f"{name}-2"]
    for each in names:
        cq.configure(db, each)
        add(db, each, {"a": 1})
    needs_another(db, name)
    told: list[Any] = []
    end = subscribe(told.append)
    try:
        with pytest.raises(cq.CqError, match=REFUSED):
            Worker(db, queues=names).drain()
    finally:
        end()

    assert get(db, names[1], "a") == 1
    (reason,) = [event.fields["reason"] for event in told if event.name == "queue_left_alone"]
    assert f"queue {name!r} needs" in reason
    assert [each.problem != "" for each in status(db) if each.name in names] == [True, False]


@pytest.mark.parametrize(
    "content",
    [{}, {"format": "1"}, {"format": 0}, {"format": 2, "features": "all"}, {"format": 2, "features": [3]}],
)
def test_a_list_that_cq_has_not_written_is_called_corrupt(name: str, content: dict[str, Any]) -> None:
    with pytest.raises(CorruptData, match="is not one that cq wrote"):
        QueueConfig.from_bytes(name, codec.encode(content))
