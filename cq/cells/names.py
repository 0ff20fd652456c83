"""Second names of users, such as logins and e-mail addresses: each belongs to at most one user.

A name is in the directory twice: under itself, with the user, and under the user. Each change reads the name with a
conflict, and the user's record, which a deletion replaces; so of two users who claim a name at once one gets it, and a
deleted user claims none. The names belong to the id, not to the cell: moves do not touch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from cq.arguments import repeatable
from cq.cells.directory import Directory, read_record
from cq.encoding import codec
from cq.errors import InvalidData, NameTaken
from cq.keys import below
from cq.keys import cell as keys
from cq.store.api import Transaction, TransactionRead
from cq.store.transact import transact

MAX_NAMES: Final = 100
"""Limit of the names of a user: a deletion frees them in one transaction."""


class Names:
    """The second names of users: `Cells.names`. For any thread.

    A name is a text of 1 to 200 bytes in UTF-8 that no two users have. Names of several kinds have prefixes of the
    application's choice, such as `email:ada@example.com` and `login:ada`. cq compares them byte by byte: normalize
    them, for example with `str.casefold`.

    Args:
        directory: the directory of the cells.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def find(self, name: str) -> Any:
        """Return the user of a name; None if nobody has it. Raises `InvalidData`.

        The user may be a deleted one, whose names were kept.
        """
        owner = transact(self._directory.db, lambda tr: tr.snapshot.get(keys.name_entry(name)).value)
        return None if owner is None else codec.decode(owner)

    def of(self, user: Any) -> list[str]:
        """Return all names of a user, in the order of their bytes. Raises `InvalidData`."""
        return transact(self._directory.db, lambda tr: _names_of(tr.snapshot, keys.encoded_user(user)))

    def claim(self, user: Any, *names: str) -> None:
        """Give a user names that no other user has: all of them or, if this raises, none.

        Raises:
            NameTaken: another user has one of them.
            UserNotPlaced, UserDeleted: there is no such user.
            InvalidData: a name is invalid, or the user would have more than 100.
        """
        self._change(user, lambda tr: take_names(tr, user, names))

    def rename(self, user: Any, old: str, new: str) -> None:
        """Replace the name `old` of a user by `new` in one transaction; no effect if the user has only `new` already.

        Raises `InvalidData` if the user has neither name, and as `claim`.
        """

        def rename(tr: Transaction) -> None:
            if {old, new}.isdisjoint(_names_of(tr, keys.encoded_user(user))):
                raise InvalidData(
                    f"user {user!r} has no name {old!r}, see `cq cells names`: claim the new one"
                )
            free_names(tr, user, [old])  # first: the user may have as many names as there can be
            take_names(tr, user, [new])

        self._change(user, rename)

    def release(self, user: Any, *names: str) -> None:
        """Free names of a user, so that any user can claim them; other names stay. Raises as `claim`."""
        self._change(user, lambda tr: free_names(tr, user, names))

    def _change(self, user: Any, change: Callable[[Transaction], None]) -> None:
        def checked(tr: Transaction) -> None:
            read_record(tr, user)  # with a conflict: a deletion frees the names
            change(tr)

        transact(self._directory.db, checked)


def take_names(tr: Transaction, user: Any, names: Iterable[str]) -> None:
    """Give a user names; raises as `Names.claim`."""
    encoded = keys.encoded_user(user)
    # All reads are in flight together.
    owners = {name: tr.get(keys.name_entry(name)) for name in repeatable(names, "names")}
    for name, owner in owners.items():
        if owner.value not in (None, encoded):
            raise NameTaken(f"the name {name!r} belongs to another user: choose another one")
        tr.set(keys.name_entry(name), encoded)
        tr.set(keys.name_of(encoded, name), b"")
    if len(_names_of(tr, encoded)) > MAX_NAMES:
        raise InvalidData(f"user {user!r} would have more than {MAX_NAMES} names: release some")


def free_names(tr: Transaction, user: Any, names: Iterable[str] | None = None) -> None:
    """Free names of a user; None: all of them."""
    encoded = keys.encoded_user(user)
    had = _names_of(tr, encoded)
    for name in had if names is None else set(names).intersection(had):
        tr.clear(keys.name_entry(name))
        tr.clear(keys.name_of(encoded, name))


def _names_of(tr: TransactionRead, user: bytes) -> list[str]:
    prefix = keys.name_of(user)
    return [row.key[len(prefix) :].decode() for row in tr.get_range(*below(prefix))]
