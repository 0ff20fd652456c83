"""Variants of a tag cloud's system that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from cq.intake.emitter import Emitter
from cq.intake.flush import Flush
from cq.observers.top.follower import CloudFollower
from cq.store.transact import transact
from tests.simulation import tagcloud


def keeps_positions_elsewhere() -> Any:
    """What goes with increments is written in a transaction of its own, before they are committed."""
    add = Emitter._add

    def elsewhere(self: Emitter, tr: Any, flush: Flush, updates: Any) -> None:
        also, flush.also = flush.also, []
        for each in also:
            transact(self._db, each)
        add(self, tr, flush, updates)

    return patch.object(Emitter, "_add", elsewhere)


def moves_on_whatever_the_position() -> Any:
    """A server does not look whether another one reads its log."""

    def advance(self: tagcloud.Advance, tr: Any) -> None:
        tr.notes.append(self.note)

    return patch.object(tagcloud.Advance, "__call__", advance)


def shows_the_cloud_it_knows() -> Any:
    """A follower gives an older cloud to a page without looking for a newer one."""
    newer = CloudFollower._newer
    return patch.object(CloudFollower, "_newer", lambda self, version, looks: newer(self, version, 0))


TAGGING: Final[dict[Callable[[], Any], int]] = {
    keeps_positions_elsewhere: 20,
    moves_on_whatever_the_position: 20,
    shows_the_cloud_it_knows: 60,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
