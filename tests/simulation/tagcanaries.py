"""Canaries of a tag cloud's system, see `canary`."""

from __future__ import annotations

from typing import Any

import cq
from cq.keys import below
from cq.store.transact import transact
from tests.simulation import tagcloud
from tests.simulation.canary import Canaries

tags = Canaries("tags")


@tags.replaces("tests.simulation.tagcloud.count")
def keeps_positions_elsewhere(_: Any, note: tagcloud.Counted, tr: Any) -> None:
    """The position in a log is stored in a transaction of its own, before its events are counted."""
    if transact(tr.db, lambda other: tagcloud.advance(other, note)):
        cq.CombineQueue(tagcloud.TAGS).add(tr, note.changes)


@tags.replaces("tests.simulation.tagcloud.advance")
def moves_on_whatever_the_position(_: Any, tr: Any, note: tagcloud.Counted) -> bool:
    """A server does not look whether another one reads its log."""
    tr.notes.append(note)
    return True


@tags.replaces("cq.store.follower.StoreFollower._newer", seed=213)
def shows_the_cloud_it_knows(newer: Any, self: Any, version: int, looks: int) -> Any:
    """A follower gives an older cloud to a page without looking for a newer one."""
    return newer(self, version, 0)


@tags.replaces("cq.observers.top.kept.KeptClouds.of", seed=1)
def keeps_one_version_of_a_second(of: Any, *args: Any) -> Any:
    """Of the versions of a cloud in one second only the last is kept, though all should be."""
    return of(*args)._replace(step=1_000)


@tags.replaces("cq.observers.top.publisher.read_through", seed=3)
def says_that_queued_updates_are_shown(_: Any, tr: Any, queue: Any, before: int) -> int:
    """A version of a cloud says that it includes all that is committed, whether passes have combined it or not."""
    found: int = tr.get_read_version().wait()
    return found


@tags.replaces("cq.observers.top.decay.HalfLife.update", also={"half-life"})
def scores_events_as_of_their_commit(update: Any, self: Any, weight: float = 1, at: Any = None) -> Any:
    """An event counts as one of now, and not of its own time."""
    return update(self, weight)


@tags.replaces("cq.observers.top.publisher.Publisher._clear_outdated", seed=22, also={"short keep"})
def clears_the_version_at_the_beginning(_: Any, self: Any, tr: Any, kept: Any, group: Any, now: int) -> None:
    """Versions are kept that were published in the time, and not the one that was shown when it began."""
    tr.clear_range(below(self._clouds.kept_of(group))[0], self._clouds.kept_from(group, now - kept.keep))
