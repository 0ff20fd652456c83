"""Canaries of expiry, see `canary`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from cq.expiry import former_values
from cq.expiry.index import IndexMove
from cq.keys import QueueKeys
from tests.simulation.canary import Canaries

expiries = Canaries("expiries")
_DELETE = "cq.passes.deletions._delete_due"


@expiries.replaces(_DELETE, seed=2)
def expires_keys_with_queued_updates(delete: Any, view: Any, *given: Any) -> Any:
    """A due key is deleted although its updates are queued."""
    view.queued = {}
    return delete(view, *given)


@expiries.replaces(_DELETE)
def reports_expiry_twice(delete: Any, *given: Any) -> Any:
    """An observer receives each deletion twice."""
    found = delete(*given)
    if found:
        found.changes *= 2
    return found


@expiries.replaces(_DELETE)
def expires_without_a_word(delete: Any, *given: Any) -> Any:
    """No observer receives a deletion."""
    found = delete(*given)
    if found:
        found.changes = []
    return found


@expiries.replaces("cq.expiry.index.ExpiryIndex.moves", seed=8)
def leaves_times_of_unchanged_values(moves: Any, self: Any, *columns: Any) -> list[IndexMove]:
    """An update that leaves the value as it is does not count."""
    _, _, places, before, after = columns
    same = {where for where, old, new in zip(places, before, after, strict=True) if old == new}
    return [move for move in moves(self, *columns) if move.where not in same]


@expiries.replaces("cq.expiry.due.notify")
def notifies_nobody_of_due_keys(*_: Any) -> None:
    """Workers see that keys are due, and run no pass."""


@expiries.replaces("cq.observers.tasks.timed.index_page", seed=1)
def gives_no_times_to_former_values(*_: Any) -> None:
    """Values from before the expiry never get a time."""


class _Elsewhere(QueueKeys):
    def state(self, generation: int, bucket: int) -> bytes:
        return b"elsewhere"


@expiries.patches(seed=234)
def gives_times_without_the_lock() -> Any:
    """Times are given beside passes that write others."""
    return patch.object(former_values, "QueueKeys", _Elsewhere)
