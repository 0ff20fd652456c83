"""The adoption of a user whose data are in the store of a cell already, but not where `Cells.transact` looks for them.

    1. directory  the record names the cell, with epoch 0; the user takes the second names
    2. cell       the application's `convert` moves the old data below the user's prefix, a piece in each transaction;
                  the last one writes the fence `here` 1
    3. directory  the record has epoch 1; the cell has one user more

With a record of epoch 0, transactions and moves raise `UserNotPlaced`, but nobody can place the user elsewhere. All
pieces read the fence with a conflict, so a late process converts nothing after the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cq.cells.directory import Directory
from cq.cells.names import take_names
from cq.cells.records import HERE, Fence, Record
from cq.cells.stores import CellStores
from cq.cells.user_data import UserData
from cq.keys import cell as keys
from cq.store.api import Transaction
from cq.store.transact import transact

Convert = Callable[[UserData], bool]


class UserAdoption:
    """The adoption of one user; for one thread at a time.

    Args:
        directory: the directory of the cells.
        stores: the stores of the cells.
        user: the user's id.
        cell: the cell whose store has the user's data.
    """

    def __init__(self, directory: Directory, stores: CellStores, user: Any, cell: str) -> None:
        self._directory = directory
        self._stores = stores
        self._user = user
        self._cell = cell

    def run(self, convert: Convert, names: Sequence[str]) -> Record:
        """Do the steps that are not done; returns the user's record. Raises as `Cells.adopt`."""
        user = self._user
        record = self._directory.begin_adoption(user, self._cell, lambda tr: take_names(tr, user, names))
        if record.epoch > 0:
            return record
        db = self._stores[self._cell]
        while transact(db, lambda tr: self._convert(tr, convert)):
            pass
        return self._directory.end_adoption(user)

    def _convert(self, tr: Transaction, convert: Convert) -> bool:
        """Do a piece of step 2; returns whether there is more."""
        fence = keys.fence(keys.encoded_user(self._user))
        if tr.get(fence).value is not None:
            return False
        self._stores.check(tr, self._cell)
        has_more = convert(UserData(tr, self._user, self._cell))
        if not has_more:
            tr.set(fence, Fence(HERE, 1).to_bytes())
        return bool(has_more)
