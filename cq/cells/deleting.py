"""The deletion of a user, under the fences of moves: see `cq.cells.move`.

    1.            complete a move under way
    2. cell       run the application's `final`; fence `here` e -> `deleted` e+1, with a note of the deletion, and
                  whether it frees the user's second names
    3. cell       clear the data piece by piece
    4. directory  the record becomes a tombstone: no cell, epoch e+1; the cell has one user less, the names are free
    5. cell       remove the note; the fence stays for ever

Step 2 decides it: every transaction of the user reads the fence with a conflict, so those under way fail, and later
ones get `UserDeleted`. The writes of `final` are committed with the fence, and so exactly once, however many
processes delete the user. From then on the note lets any process continue. A move that begins in between finds the
fence and stops before it has copied anything. The tombstone keeps the id from being placed again; the fence stops late
processes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from cq.cells.move import MAX_TRIES, UserMove
from cq.cells.names import free_names
from cq.cells.records import DELETED, HERE, Fence, Record
from cq.cells.user_data import UserData
from cq.errors import CellMismatch, UserDeleted
from cq.keys import below
from cq.keys import cell as keys
from cq.store.api import Transaction
from cq.store.transact import transact

_KEEP = b"names"
_PAGE = 500
Final: TypeAlias = Callable[[UserData], object]


class UserDeletion(UserMove):
    """The deletion of one user; for one thread at a time."""

    def run(self, final: Final | None, keep_names: bool) -> None:
        """Do all steps that are not done. Raises as `Cells.delete`."""
        for _ in range(MAX_TRIES):
            try:
                record = self._directory.record(self._user)
            except UserDeleted:
                return
            with suppress(UserDeleted):  # step 2 is done, and a move has begun since
                record = self.finish() if record.is_moving else record
            if self._close(record, final, keep_names):
                self.clear(record.cell)
                return
        raise CellMismatch(
            f"cell {record.cell!r} has another state of user {self._user!r} than the directory (epoch {record.epoch}): "
            "one of the two was restored to an older state; restore both from backups of the same moment"
        )

    def clear(self, cell: str) -> None:
        """Do the steps after step 2 that are not done, for a user whose fence in the cell is `deleted`."""
        db = self._stores[cell]
        note = transact(db, lambda tr: tr.snapshot.get(keys.deleting(self._encoded)).value)
        if note is None:
            return
        while transact(db, self._clear_deleted):
            pass
        self._directory.bury(
            self._user, cell, lambda tr: None if note == _KEEP else free_names(tr, self._user)
        )
        transact(db, lambda tr: tr.clear(keys.deleting(self._encoded)))

    def _close(self, record: Record, final: Final | None, keep_names: bool) -> bool:
        """Do step 2, unless it is done; returns False if the user was moved meanwhile."""
        deleted = Fence(DELETED, record.epoch + 1)

        def close(tr: Transaction) -> bool:
            fence = self._fence_at(tr, record)
            if fence == Fence(HERE, record.epoch):
                if final is not None:
                    final(UserData(tr, self._user, record.cell))
                self._set_fence(tr, deleted)
                tr.set(keys.deleting(self._encoded), _KEEP if keep_names else b"")
            return fence in (deleted, Fence(HERE, record.epoch))

        return transact(self._stores[record.cell], close)

    def _clear_deleted(self, tr: Transaction) -> bool:
        """Do a piece of step 3; returns whether there is more."""
        fence = self._fence(tr)
        return fence is not None and fence.state == DELETED and self._clear_piece(tr)


def users_being_deleted(tr: Transaction) -> list[Any]:
    """Return users of a cell whose deletion is decided and not complete, some hundred at most."""
    prefix = keys.deleting()
    return [keys.user_in(prefix, row.key) for row in tr.snapshot.get_range(*below(prefix), limit=_PAGE)]
