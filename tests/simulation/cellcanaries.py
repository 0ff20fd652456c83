"""Variants of cells and of forwarding that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast
from unittest.mock import patch

from cq.cells import directory
from cq.cells.cells import Cells, Location
from cq.cells.records import Record
from cq.cells.user_data import UserData
from cq.keys import cell as cellkeys
from cq.observers.forward.exporter import ForwardExporter
from cq.store.transact import transact


def reads_where_a_user_is_without_a_conflict() -> Any:
    """A move that begins does not keep writes under way from being committed in the old cell."""
    enter = Cells._enter_cell

    def weak(self: Cells, tr: Any, user: Any, location: Location) -> UserData:
        found = enter(self, cast(Any, _SnapshotOnly(tr)), user, location)
        found.tr = tr
        return found

    return patch.object(Cells, "_enter_cell", weak)


class _SnapshotOnly:
    """A transaction whose reads are its snapshot's."""

    def __init__(self, tr: Any) -> None:
        self.get, self.set = tr.snapshot.get, tr.set


def switches_a_user_again() -> Any:
    """A mover that was late says where the user is, whatever has come to pass meanwhile."""

    def switch(self: directory.Directory, user: Any, before: Record) -> None:
        encoded, target = cellkeys.encoded_user(user), str(before.target)

        def change(tr: Any) -> None:
            directory._count_user(tr, encoded, before.cell, -1)
            directory._count_user(tr, encoded, target, 1)
            moved = Record(target, before.epoch + 1, source=before.cell)
            tr.set(cellkeys.record(encoded), moved.to_bytes())

        transact(self.db, change)

    return patch.object(directory.Directory, "switch", switch)


def forwards_without_a_fence() -> Any:
    """A batch that comes again is applied again."""
    return patch.multiple(
        ForwardExporter, _progress=lambda self, tr, bucket: b"", _may_apply=lambda self, batch, progress: True
    )


MOVING: Final[dict[Callable[[], Any], int]] = {
    reads_where_a_user_is_without_a_conflict: 20,
    switches_a_user_again: 20,
    forwards_without_a_fence: 20,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
