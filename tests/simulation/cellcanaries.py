"""Canaries of cells and of forwarding, see `canary`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cq.cells import directory
from cq.cells.cells import Location
from cq.cells.records import Record
from cq.keys import cell as cellkeys
from cq.keys.link import LinkKeys, received
from cq.observers.links.target import Changes
from cq.observers.links.targets.queue import QueueTarget
from cq.store.transact import transact
from tests.simulation.canary import Canaries

cells = Canaries("cells")


@cells.replaces("cq.cells.cells.Cells._enter_cell", seed=22)
def reads_where_a_user_is_without_a_conflict(
    enter: Any, self: Any, tr: Any, user: Any, location: Location
) -> Any:
    """A move that begins does not keep writes under way from being committed in the old cell."""
    found = enter(self, _SnapshotOnly(tr), user, location)
    found.tr = tr
    return found


class _SnapshotOnly:
    """A transaction whose reads are its snapshot's."""

    def __init__(self, tr: Any) -> None:
        self.get, self.set = tr.snapshot.get, tr.set


@cells.replaces("cq.cells.directory.Directory.advance", seed=11)
def switches_a_user_again(advance: Any, self: Any, user: Any, before: Record, after: Record) -> None:
    """A mover that was late says where the user is, whatever has come to pass meanwhile."""
    if before.target is None:
        advance(self, user, before, after)
        return
    encoded = cellkeys.encoded_user(user)

    def change(tr: Any) -> None:
        directory._count_user(tr, encoded, before.cell, -1)
        directory._count_user(tr, encoded, after.cell, 1)
        tr.set(cellkeys.record(encoded), after.to_bytes())

    transact(self.db, change)


@cells.replaces("cq.observers.links.targets.queue.QueueTarget._apply", seed=40)
def forwards_without_a_fence(
    apply: Any, self: QueueTarget, tr: Any, changes: Changes
) -> tuple[bool, str | None]:
    """A batch that comes again is applied again."""
    if changes.entries:
        source = self._source
        key = received(self._into.keys, source.store, changes.bucket, LinkKeys(source.queue, source.link))
        changes = replace(changes, previous=(tr.get(key).value or b"").decode())
    found: tuple[bool, str | None] = apply(self, tr, changes)
    return found
