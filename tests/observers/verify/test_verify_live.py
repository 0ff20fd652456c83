"""`cq verify` of what observers keep of a queue in use: no false alarm, whatever goes on."""

from __future__ import annotations

import random
from typing import Any

import cq
from cq import admin, links
from cq.app import App
from cq.config.queue import read_config
from cq.keys.link import LinkKeys
from cq.observers.builtin import observer_parts
from cq.observers.links.log import append
from cq.observers.links.registry import opened_link
from cq.observers.top.index import top
from cq.observers.verify.link import check_link
from cq.observers.verify.queue import verification
from cq.store.transact import transact
from cq.testing import drain
from cq.verify.piece import RowCheck
from cq.verify.queue import PARTS
from cq.verify.verification import Verification, every_row
from tests.kit.busy import busy


def test_what_observers_keep_has_no_differences_while_they_are_told(
    db: Any, name: str, sqlite_url: str
) -> None:
    """Top with ranks and groups, clouds that are published, and a link: also while they are built anew."""
    random.seed(0)
    app = App()
    ranked = top(5, every=0, ranks=True, group=lambda key, value: f"of {len(key)}")
    app.queue(name, observers=[ranked, links.table("report")])
    app.configure(db, name, buckets=3)
    with opened_link(db, name) as link:
        link.target.create()
    with busy(db, name, app, lambda: run_tasks(db, name)) as found:
        for change in (
            lambda: None,
            lambda: admin.rebuild_observer(db, name, "top"),
            lambda: admin.purge(db, name),
        ):
            change()
            turns = found.turns
            while found.turns < turns + 3 and not found.errors:
                assert list(verification(db, name, app=app, wait=60).run()) == []
    drain(db, name, app=app)

    last = verification(db, name, app=app)
    assert list(last.run()) == []
    assert last.notes == []


def test_exports_cannot_keep_a_verification_busy_for_ever(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    added = 0

    def add(verification: Verification) -> None:
        nonlocal added
        added += 1
        assert added < 100
        transact(db, lambda tr: append(tr, LinkKeys(name, "own"), 1, {"a": 1}))

    rows = every_row({**PARTS, "e": [RowCheck("unknown-key", None, check_link, None)]})
    found = Verification(db, name, {"rows": rows})
    found.rows, found.progress = 1, add
    add(found)
    assert list(found.run()) == []


def run_tasks(db: Any, name: str) -> None:
    """What a worker does for a queue's observers: publish and send."""
    config = transact(db, lambda tr: read_config(tr.snapshot, name))
    for part in observer_parts(db, config):
        for task in part.make():
            while task.run() == 0.0:
                pass
            task.end()
