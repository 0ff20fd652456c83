"""Queued rows as they are read."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.queue import rows
from cq.queue.rows import read_rows
from cq.store.transact import transact
from tests.kit.queues import add


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_rows_are_decoded_at_once_wherever_a_piece_ends(db: Any, name: str, number: int) -> None:
    """One by one they are only when one of them is broken."""
    cq.configure(db, name, value=bytes, combiner="last", buckets=1)
    update = bytes(rows._PIECE_BYTES // 2)
    add(db, name, *[{"k": update}] * number)

    with patch.object(rows, "decode_row", side_effect=AssertionError):
        bounds = QueueKeys(name).rows(1, 0)
        backlog = transact(db, lambda tr: read_rows(tr.snapshot, bounds, 1_000_000))

    assert backlog.updates == {codec.encode("k"): [update] * number}
    assert len(backlog.rows) == number
