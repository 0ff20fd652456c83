"""What a user has in a cell, in one transaction: whatever the application keeps, dense ids, and where old ids went.

All of it lies below one prefix and moves along with the user. So nothing of it may depend on the cluster: a
versionstamp of one cell means nothing in another one, and keys that are ordered by versionstamps would not stay in
order. What a user's transactions add to queues of the cell stays there when the user moves: it belongs to the cell's
own statistics, which `cq.observers.forward.observer` adds up in one place.
"""

from __future__ import annotations

from typing import Any

from cq.encoding import codec
from cq.errors import CorruptData, InvalidData
from cq.keys import cell as cellkeys
from cq.store.api import Transaction


class UserData:
    """A user's data in a transaction that `Cells.transact` has begun; of no use behind it.

    Attributes:
        tr: the transaction, in the cell's store: for what is kept below `prefix`, and to add to queues of the cell.
        user: the user's id.
        cell: the name of the cell.
        prefix: below which the application keeps what it likes of the user.
    """

    def __init__(self, tr: Transaction, user: Any, cell: str) -> None:
        self.tr = tr
        self.user = user
        self.cell = cell
        self._encoded = cellkeys.encoded_user(user)
        self.prefix = cellkeys.data(self._encoded)

    def next_id(self) -> int:
        """The next id of the user: 1, 2, 3 and so on without gaps, in commit order, in whichever cells.

        An id belongs to the transaction: if that does not commit, the next one gets it. Two transactions of one user
        that ask for ids conflict, and one begins again.
        """
        key = cellkeys.latest_id(self._encoded)
        stored = self.tr.get(key).value
        number = 1 if stored is None else _number(stored) + 1
        self.tr.set(key, codec.encode(number))
        return number

    def map_id(self, old: Any, new: Any) -> None:
        """Remember which id an old one, such as that of the system before, has now.

        Args:
            old: str, int, bytes, or a tuple of these.
            new: whatever CBOR carries.

        Raises `InvalidData` when the old id has another one already, or cannot be one.
        """
        key, encoded = self._old(old), codec.encode_value(new)
        known = self.tr.get(key).value
        if known not in (None, encoded):
            raise InvalidData(
                f"the old id {codec.brief(old)} of user {self.user!r} is {codec.brief(self.new_id(old))} now, and "
                f"cannot be {codec.brief(new)}, too"
            )
        self.tr.set(key, encoded)

    def new_id(self, old: Any) -> Any:
        """The id that an old one has now; None when it has none. Raises `InvalidData` for what cannot be an id."""
        stored = self.tr.get(self._old(old)).value
        return None if stored is None else codec.decode(stored)

    def _old(self, old: Any) -> bytes:
        if not isinstance(old, (str, int, bytes, tuple)) or isinstance(old, bool):
            raise InvalidData(f"expected an old id to be str, int, bytes or a tuple, got: {codec.brief(old)}")
        return cellkeys.old_id(self._encoded, codec.encode(old))


def _number(stored: bytes) -> int:
    number = codec.decode(stored)
    if type(number) is not int:
        raise CorruptData(f"the latest id of a user is not one that cq wrote: {stored[:40]!r}")
    return number
