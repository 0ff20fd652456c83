"""Purges as a part of the application's transaction: what it adds after the purge counts."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.admin import purge
from cq.admin.audit import audit_findings
from cq.errors import InvalidConfiguration, NotNow
from cq.intake.documents import Documents
from cq.passes.combine_pass import Pass
from cq.passes.plan import PassPlan
from cq.queue.pending import read_pending_updates
from cq.store.transact import transact
from cq.windows import Window
from tests.kit.observing import Seen
from tests.kit.queues import add, code_of, combine_all, configured, values


def test_updates_that_a_transaction_adds_after_its_purge_count_once(db: Any, name: str) -> None:
    seen = Seen()
    seen.app(name).configure(db, name, buckets=2, audit=True)
    queue = cq.CombineQueue[str, int](name)
    add(db, name, {"old": 1, "kept": 2})
    combine_all(db, name, seen.app(name))
    add(db, name, {"old": 5})

    def set_anew(tr: Any) -> None:
        purge(tr, name)
        queue.add(tr, {"kept": 7, "new": 8}, once="set anew")

    transact(db, set_anew)
    transact(db, lambda tr: queue.add(tr, {"new": 100}, once="set anew"))
    combine_all(db, name, seen.app(name))

    assert values(db, name) == seen.values == {"kept": 7, "new": 8}
    assert list(audit_findings(db, name)) == []


def test_so_do_those_of_levels_and_documents(db: Any, name: str) -> None:
    configured(db, name, buckets=1, rollup="1h:forever")
    window, documents = Window[str](name), Documents(cq.CombineQueue(f"{name}-words"))
    cq.configure(db, f"{name}-words")
    add(db, name, {"old": 1})
    transact(db, lambda tr: documents.set(tr, b"a", {"word": 1}))

    def set_anew(tr: Any) -> None:
        purge(tr, name)
        window.add(tr, {"new": 2})
        purge(tr, f"{name}-words")
        documents.set(tr, b"a", {"word": 3})

    transact(db, set_anew)
    for each in (name, f"{name}.1h", f"{name}-words"):
        combine_all(db, each)

    assert values(db, name) == {"new": 2}
    assert [*values(db, f"{name}.1h").values()] == [2]
    assert values(db, f"{name}-words") == {"word": 3}


def test_a_purge_after_an_add_of_its_transaction_is_refused(db: Any, name: str) -> None:
    queue = cq.configure(db, name)
    add(db, name, {"a": 1})

    def add_and_purge(tr: Any) -> None:
        queue.add(tr, {"a": 1})
        with pytest.raises(InvalidConfiguration, match="purge first, and then add"):
            purge(tr, name)

    transact(db, add_and_purge)
    combine_all(db, name)
    assert values(db, name) == {"a": 2}


def test_an_add_of_an_earlier_try_is_no_reason_to_refuse(db: Any, name: str) -> None:
    queue = cq.configure(db, name)
    tr = db.create_transaction()
    queue.add(tr, {"a": 1})
    tr.reset()
    purge(tr, name)
    tr.commit().wait()
    combine_all(db, name)
    assert values(db, name) == {}


def test_an_observer_that_clears_its_own_queue_is_refused(db: Any, name: str) -> None:
    def configure(version: int) -> None:
        app = cq.App()
        clear = (lambda tr: purge(tr, name)) if version > 1 else None
        observer = cq.Observer("own", version, lambda tr, changes: None, clear=clear)
        app.queue(name, observers=[observer])
        app.configure(db, name)

    configure(1)
    add(db, name, {"a": 1})
    with pytest.raises(InvalidConfiguration, match="has changed this queue, such as by a purge"):
        configure(2)


@pytest.mark.parametrize("combines", [False, True])
def test_a_pending_read_waits_for_the_end_of_a_purge(db: Any, name: str, combines: bool) -> None:
    """Values and updates that it deletes would count, also those of another key while it goes on."""
    queue = cq.configure(db, name, buckets=1)
    add(db, name, {f"k{number}": 5 for number in range(20)})
    combine_all(db, name)
    add(db, name, {"k0": 2})
    purge(db, name)
    add(db, name, {"k0": 1})
    if combines:
        code = code_of(db, name)
        transact(db, lambda tr: Pass(tr, code, 0, PassPlan(max_report=3)).run())

    for read in (
        lambda tr: queue.get(tr, "k0", pending=True),
        lambda tr: read_pending_updates(tr, code_of(db, name).config),
    ):
        with pytest.raises(NotNow, match="is being purged"):
            transact(db, lambda tr: read(tr.snapshot))  # noqa: B023 - runs at once
    combine_all(db, name)
    assert transact(db, lambda tr: queue.get(tr, "k0", pending=True)) == 1
