"""The number of users of each cell, and its limit: exact, although placements at the same time do not all conflict.

The number is the sum of `keys.COUNTS` parts, each with an equal share of the limit. A placement counts its user in one
part, usually that of the user's id, and conflicts only with others in the same part. As no part exceeds its share, the
sum does not exceed the limit. A user who leaves is subtracted without any conflict, so a part can become negative.

A lower limit and adoptions can leave parts above their shares. Until enough users have left, each placement conflicts
with all others of the cell.
"""

from __future__ import annotations

from collections.abc import Iterable

from cq.errors import NoRoom
from cq.keys import cell as keys
from cq.store.api import KeyValue, Transaction, TransactionRead


def read_counts(tr: TransactionRead, name: str) -> list[int]:
    """Return the parts of the number of users in a cell, and on their way to it."""
    return counts_in(tr.get_range(*keys.counts(name)), name)


def counts_in(rows: Iterable[KeyValue], name: str) -> list[int]:
    """Return the parts of the number of users in a cell, of the rows of `keys.counts`."""
    found = {row.key: keys.count_of(row.value) for row in rows}
    return [found.get(keys.count(name, part), 0) for part in range(keys.COUNTS)]


def take_seat(tr: Transaction, user: bytes, name: str, max_users: int | None) -> None:
    """Count one more user in a cell; raises `NoRoom` if it is full.

    The transaction must have read the cell's entry with a conflict: the limit may change.
    """
    chosen = keys.part_of(user)
    if max_users is not None:
        room = [share(max_users, part) - count for part, count in enumerate(read_counts(tr.snapshot, name))]
        if sum(room) <= 0:
            raise NoRoom(f"cell {name!r} has {max_users:,} users, its limit: choose another one")
        if min(room) < 0:
            tr.add_read_conflict_range(*keys.counts(name))
        if room[chosen] <= 0:
            chosen = room.index(max(room))
        tr.add_read_conflict_key(keys.count(name, chosen))
    tr.add(keys.count(name, chosen), keys.packed_count(1))


def add_seat(tr: Transaction, user: bytes, name: str) -> None:
    """Count one more user in a cell whatever its limit is: a user who is adopted is there already.

    Placements of that moment begin again: they may have taken the last seat.
    """
    for part in range(keys.COUNTS):
        tr.add_write_conflict_key(keys.count(name, part))
    tr.add(keys.count(name, keys.part_of(user)), keys.packed_count(1))


def leave_seat(tr: Transaction, user: bytes, name: str) -> None:
    """Count one user less in a cell."""
    tr.add(keys.count(name, keys.part_of(user)), keys.packed_count(-1))


def spread_counts(tr: Transaction, name: str) -> None:
    """Make the parts equal, for a new limit."""
    total = sum(read_counts(tr, name))
    for part in range(keys.COUNTS):
        tr.set(keys.count(name, part), keys.packed_count(share(total, part)))


def share(number: int, part: int) -> int:
    """Return an equal share of a number; the first parts have the remainder."""
    return (number + keys.COUNTS - 1 - part) // keys.COUNTS
