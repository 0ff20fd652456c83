"""Canaries of a tag cloud's system, see `canary`."""

from __future__ import annotations

from typing import Any

from cq.intake.emitter import Emitter
from cq.intake.flush import Flush
from cq.store.transact import transact
from tests.simulation import tagcloud
from tests.simulation.canary import Canaries

tags = Canaries("tags")


@tags.replaces("cq.intake.emitter.Emitter._add")
def keeps_positions_elsewhere(add: Any, self: Emitter, tr: Any, flush: Flush, updates: Any) -> None:
    """What goes with increments is written in a transaction of its own, before they are committed."""
    also, flush.also = flush.also, []
    for each in also:
        transact(self._db, each)
    add(self, tr, flush, updates)


@tags.replaces("tests.simulation.tagcloud.Advance.__call__")
def moves_on_whatever_the_position(_: Any, self: tagcloud.Advance, tr: Any) -> None:
    """A server does not look whether another one reads its log."""
    tr.notes.append(self.note)


@tags.replaces("cq.observers.top.follower.CloudFollower._newer", seed=53)
def shows_the_cloud_it_knows(newer: Any, self: Any, version: int, looks: int) -> Any:
    """A follower gives an older cloud to a page without looking for a newer one."""
    return newer(self, version, 0)
