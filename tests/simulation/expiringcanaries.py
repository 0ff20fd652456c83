"""Variants of expiry that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq.expiry import due, former_values
from cq.expiry.index import ExpiryIndex, IndexMove
from cq.keys import QueueKeys
from cq.observers.tasks import timed
from cq.passes.deletions import BucketExpiry, Deleted


def _deletes(change: Callable[[Any, Any], tuple[Any, Callable[[Deleted], Deleted]]]) -> Any:
    """Change what a deletion is given, and what comes of it."""
    delete = BucketExpiry._delete

    def changed(self: BucketExpiry, batch: Any, keys: Any, limit_bytes: int) -> Deleted | None:
        given, result = change(self, batch)
        found = delete(self, given, keys, limit_bytes)
        return None if found is None else result(found)

    return patch.object(BucketExpiry, "_delete", changed)


def expires_keys_with_queued_updates() -> Any:
    """A due key is deleted although its updates are queued."""
    return _deletes(lambda self, batch: (replace(batch, queued={}), lambda found: found))


def reports_expiry_twice() -> Any:
    """An observer receives each deletion twice."""
    return _deletes(lambda self, batch: (batch, lambda found: replace(found, changes=2 * found.changes)))


def expires_without_a_word() -> Any:
    """No observer receives a deletion."""
    return _deletes(lambda self, batch: (batch, lambda found: replace(found, changes=[])))


def leaves_times_of_unchanged_values() -> Any:
    """An update that leaves the value as it is does not count."""
    moves = ExpiryIndex.moves

    def changed(self: ExpiryIndex, *columns: Any) -> list[IndexMove]:
        _, _, places, before, after = columns
        same = {where for where, old, new in zip(places, before, after, strict=True) if old == new}
        return [move for move in moves(self, *columns) if move.where not in same]

    return patch.object(ExpiryIndex, "moves", changed)


def notifies_nobody_of_due_keys() -> Any:
    """Workers see that keys are due, and run no pass."""
    return patch.object(due, "_notify", lambda tr, config, buckets: None)


def gives_no_times_to_former_values() -> Any:
    """Values from before the expiry never get a time."""
    return patch.object(timed, "index_page", lambda db, name: None)


class _Elsewhere(QueueKeys):
    def state(self, generation: int, bucket: int) -> bytes:
        return b"elsewhere"


def gives_times_without_the_lock() -> Any:
    """Times are given beside passes that write others."""
    return patch.object(former_values, "QueueKeys", _Elsewhere)


EXPIRING: Final[dict[Callable[[], Any], int]] = {
    expires_keys_with_queued_updates: 20,
    reports_expiry_twice: 10,
    expires_without_a_word: 10,
    leaves_times_of_unchanged_values: 20,
    notifies_nobody_of_due_keys: 10,
    gives_no_times_to_former_values: 20,
    gives_times_without_the_lock: 150,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
