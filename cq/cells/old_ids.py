"""Former ids of a whole site: the user and the number of each, in the directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from cq.cells.cells import Cells
from cq.encoding import codec
from cq.errors import InvalidData
from cq.keys import cell as keys
from cq.store.api import Transaction
from cq.store.sizes import fitting
from cq.store.transact import transact

_BATCH: Final = 500
_COPIES: Final = 5  # of a key, as a transaction counts its bytes, which reads and writes it


class OldId(NamedTuple):
    """What a former id stands for: a user, and the number under which the user has it, or None."""

    user: Any
    number: Any


def map_old_ids(cells: Cells, ids: Mapping[Any, tuple[Any, Any]]) -> None:
    """Store {former id: (user, number)} in the directory, some hundred ids in a transaction; the same again is a retry.

    Args:
        cells: the cells.
        ids: the former ids: str, int, bytes, or a tuple of these; with users, and the numbers of `UserData.next_id`, or
            any other value that CBOR can encode.

    Raises:
        InvalidData: an id stands for something else already, or an id or a user has another type.
    """
    rows = [_row(old, *given) for old, given in ids.items()]
    start = 0
    while batch := rows[start : start + _BATCH]:
        number = fitting(_COPIES * len(row.key) + len(row.stands_for) for row in batch)
        transact(cells.directory.db, partial(_put, batch=batch[:number]))
        start += number


def find_old_id(cells: Cells, old: Any) -> OldId | None:
    """Return what a former id stands for; None if it is not known.

    Args:
        cells: the cells.
        old: the former id.

    Raises:
        InvalidData: the id has another type.
    """
    stored = transact(cells.directory.db, lambda tr: tr.snapshot.get(keys.global_id(old)).value)
    return None if stored is None else OldId(*codec.decode(stored))


class _OldIdRow(NamedTuple):
    old: Any
    key: bytes
    stands_for: bytes


def _row(old: Any, user: Any, number: Any) -> _OldIdRow:
    keys.encoded_user(user)
    return _OldIdRow(old, keys.global_id(old), codec.encode_value([user, number]))


def _put(tr: Transaction, batch: Sequence[_OldIdRow]) -> None:
    found = [tr.get(row.key) for row in batch]  # all are in flight together
    for row, stored in zip(batch, found, strict=True):
        if stored.value not in (None, row.stands_for):
            before, after = (
                codec.brief(codec.decode(each)) for each in (stored.value or b"", row.stands_for)
            )
            raise InvalidData(
                f"the old id {codec.brief(row.old)} stands for {before}, and cannot also stand for {after}"
            )
        tr.set(row.key, row.stands_for)
