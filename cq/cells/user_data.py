"""A user's data in one transaction: the application's keys, dense ids, and the new ids of old ones.

All these keys are below one prefix and move with the user. So they must not depend on the cluster: a versionstamp of
one cell has no meaning in another, and keys ordered by versionstamps would not stay in order. Updates that a user's
transactions add to queues of the cell stay there when the user moves: they belong to the cell's own statistics, which
links to another queue, see `cq.links.queue`, add up in one place.
"""

from __future__ import annotations

from typing import Any

from cq.encoding import codec
from cq.errors import InvalidData
from cq.keys import cell as cellkeys
from cq.store.api import Transaction


class UserData:
    """A user's data in a transaction of `Cells.transact`; valid only within it.

    Attributes:
        tr: the transaction in the cell's store: for keys below `prefix`, and for adds to queues of the cell.
        user: the user's id.
        cell: the name of the cell.
        prefix: prefix of the application's own keys of the user.
    """

    def __init__(self, tr: Transaction, user: Any, cell: str) -> None:
        self.tr = tr
        self.user = user
        self.cell = cell
        self._encoded = cellkeys.encoded_user(user)
        self.prefix = cellkeys.data(self._encoded)

    def next_id(self) -> int:
        """Return the next id of the user: 1, 2, 3 and so on without gaps, in commit order, in all cells together.

        If the transaction does not commit, the next one gets the id. Two concurrent transactions of one user that call
        this conflict, and one begins again.
        """
        # An atomic addition would not conflict, but could not return the number.
        number = self.last_id() + 1
        self.tr.set(cellkeys.latest_id(self._encoded), codec.encode(number))
        return number

    def last_id(self) -> int:
        """Return the latest id of the user; 0 before the first."""
        stored = self.tr.get(cellkeys.latest_id(self._encoded)).value
        number: int = 0 if stored is None else codec.decode(stored)
        return number

    def map_id(self, old: Any, new: Any) -> None:
        """Store the new id of an old one, for example of a former system.

        Args:
            old: str, int, bytes, or a tuple of these.
            new: any value that CBOR can encode.

        Raises:
            InvalidData: the old id has another new id, or is of another type.
        """
        key, encoded = cellkeys.old_id(self._encoded, old), codec.encode_value(new)
        known = self.tr.get(key).value
        if known not in (None, encoded):  # the same pair again is a retry
            raise InvalidData(
                f"the old id {codec.brief(old)} of user {self.user!r} has the new id {codec.brief(self.new_id(old))}, "
                f"and cannot also have {codec.brief(new)}"
            )
        self.tr.set(key, encoded)

    def new_id(self, old: Any) -> Any:
        """Return the new id of an old one; None if it has none. Raises `InvalidData` for another type."""
        stored = self.tr.get(cellkeys.old_id(self._encoded, old)).value
        return None if stored is None else codec.decode(stored)

    def put_entry(self, index: str, text: str, value: Any = None) -> None:
        """Add the user to an index of all users, under a text, or change the value of such an entry.

        Entries move with the user. `cq.cells.search` finds them in all cells, in the order of their texts in UTF-8.

        Args:
            index: name of the index.
            text: 1 to some hundred characters.
            value: returned by searches; any value that CBOR can encode.

        Raises:
            InvalidData: the text or the value is invalid.
        """
        name = cellkeys.entry_name(index, text)
        self.tr.set(cellkeys.own_entry(self._encoded, name), codec.encode_value(value))
        self.tr.set(cellkeys.listed_entry(name, self._encoded), b"")

    def clear_entry(self, index: str, text: str) -> None:
        """Remove the user's entry of this text from an index, if there is one; raises `InvalidData`."""
        name = cellkeys.entry_name(index, text)
        self.tr.clear(cellkeys.own_entry(self._encoded, name))
        self.tr.clear(cellkeys.listed_entry(name, self._encoded))
