"""What was set aside: updates of keys that cannot be combined or reported, with the error.

An entry is [error, update, update, ...] under the key and the versionstamp of the transaction that moved it there, in
pieces that fit into a value. Adding the updates again later gives up their place in the commit order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cq import codec
from cq.keys import QueueKeys
from cq.store.api import Transaction, TransactionRead

_PIECE_BYTES: Final = 90_000
_ERROR_CHARACTERS: Final = 1_000


class Aside(NamedTuple):
    """A piece of what was set aside: the encoded key (empty for rows that cq has not written), error, updates."""

    encoded_key: bytes
    error: str
    updates: list[Any]


def set_aside(
    tr: Transaction, keys: QueueKeys, encoded_key: bytes, error: str, updates: list[Any], piece: int = 0
) -> int:
    """Write a key's updates and the error to the queue's set-aside range, as pieces numbered from `piece`.

    Returns the number of the next piece.
    """
    message = error if len(error) <= _ERROR_CHARACTERS else error[:_ERROR_CHARACTERS] + "..."
    for part in _pieces(updates):
        tr.set_versionstamped_key(keys.new_aside(encoded_key, piece), codec.encode([message, *part]))
        piece += 1
    return piece


def read_aside(tr: TransactionRead, keys: QueueKeys, limit: int = 0) -> list[Aside]:
    """What was set aside, in hash order; at most `limit` pieces unless that is 0."""
    found = []
    for row in tr.get_range(*keys.aside(), limit=limit):
        error, *updates = codec.decode(row.value)
        found.append(Aside(keys.parse_aside(row.key)[0], error, updates))
    return found


def _pieces(updates: list[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    size = 0
    for update in updates:
        update_size = len(codec.encode(update))
        if part and size + update_size > _PIECE_BYTES:
            yield part
            part, size = [], 0
        part.append(update)
        size += update_size
    yield part
