"""Former ids of a whole site: the user and the number of each, in the directory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from cq.cells.cells import Cells
from cq.encoding import codec
from cq.errors import InvalidData
from cq.keys import cell as keys
from cq.store.api import Transaction
from cq.store.transact import transact

_BATCH: Final = 500


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
    pairs = list(ids.items())
    for start in range(0, len(pairs), _BATCH):
        transact(cells.directory.db, partial(_put, batch=pairs[start : start + _BATCH]))


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


def _put(tr: Transaction, batch: list[tuple[Any, tuple[Any, Any]]]) -> None:
    found = [(old, given, tr.get(keys.global_id(old))) for old, given in batch]
    for old, (user, number), stored in found:
        keys.encoded_user(user)
        encoded = codec.encode_value([user, number])
        if stored.value not in (None, encoded):
            raise InvalidData(
                f"the old id {codec.brief(old)} stands for {codec.brief(codec.decode(stored.value or b''))}, "
                f"and cannot also stand for {codec.brief([user, number])}"
            )
        tr.set(keys.global_id(old), encoded)
