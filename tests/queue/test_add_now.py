"""`add_now`: committed when it returns, and counted once whatever its commits answer."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.testing import assert_values, drain


@pytest.mark.parametrize("once", [None, "event-1"])
def test_updates_are_committed_when_it_returns(db: Any, name: str, once: str | None) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)

    queue.add_now(db, {"a": 1, "b": 2}, once)

    assert cq.transact(db, lambda tr: queue.get(tr, "b", pending=True)) == 2
    drain(db, name)
    assert_values(db, name, {"a": 1, "b": 2})
