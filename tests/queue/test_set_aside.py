"""What was set aside can be looked at, added again and dropped, by the library and the command line."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.keys import QueueKeys
from cq.queue.set_aside import drop_aside, retry_aside
from cq.store.transact import transact
from tests.kit.observing import app_of, app_with, failing
from tests.kit.queues import add, aside, combine_all, get, nothing_queued


def test_pieces_of_large_updates_come_back_in_order(db: Any, name: str) -> None:
    app = app_with(db, name, combiner=failing, value=bytes, buckets=1)
    updates = [bytes([number]) * 60_000 for number in range(3)]
    add(db, name, *({"a": update} for update in updates))
    combine_all(db, name, app)
    assert len(aside(db, name)) == 3

    assert retry_aside(db, name) == 3

    mended = cq.Combiner("failing", 1, lambda key, values: b"".join(value[:1] for value in values))
    combine_all(db, name, app_of(name, combiner=mended))
    assert get(db, name, "a") == b"\x00\x01\x02"


def test_a_row_that_cannot_be_read_can_only_be_dropped(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    transact(db, lambda tr: tr.set_versionstamped_key(QueueKeys(name).new_row(1, 0, 0), b"\xff"))
    combine_all(db, name)

    with pytest.raises(cq.InvalidData, match="drop it"):
        retry_aside(db, name)
    assert len(aside(db, name)) == 1
    assert drop_aside(db, name) == 1
    assert nothing_queued(db, name)
