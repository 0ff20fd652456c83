"""What becomes of many keys at once: their values combined, checked and encoded, column by column.

Built-in functions loop over a column in C, so that a key costs a fraction of what it would cost by itself. Nothing here
touches a store or tells which key is at fault: if one is, all fail, and the caller tries them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cq import codec
from cq.codec import ValueType
from cq.combiners import Combiner, combine_many


@dataclass(frozen=True, slots=True)
class NewValues:
    """The values of some keys before and after, a column each.

    Attributes:
        old, new: decoded; None where there is none.
        before, data: the same, encoded.
    """

    old: Sequence[Any]
    new: Sequence[Any]
    before: Sequence[bytes | None]
    data: Sequence[bytes | None]

    def is_same(self) -> list[bool]:
        """For each key, whether its new value is the one before."""
        columns = zip(self.before, self.data, self.old, self.new, strict=True)
        return [
            before == data or (before is not None and data is not None and codec.is_same(old, new))
            for before, data, old, new in columns
        ]


def new_values(
    combiner: Combiner,
    kind: ValueType,
    keys: Sequence[Any],
    before: Sequence[bytes | None],
    pending: Sequence[list[Any]],
) -> NewValues:
    """Combine the current values, as stored, with what waits for each key.

    Raises `InvalidData` or `TooLarge` when a new value cannot be stored, `CorruptData` for a current value that cannot
    be read, and what the combiner raises.
    """
    old = _decoded(before)
    lists = [
        values if stored is None else [value, *values]
        for stored, value, values in zip(before, old, pending, strict=True)
    ]
    new = combine_many(combiner, keys, lists)
    is_gone = list(map(combiner.is_empty, new))
    if not any(is_gone):
        return NewValues(old, new, before, _encoded(kind, new))
    left = iter(_encoded(kind, [value for value, gone in zip(new, is_gone, strict=True) if not gone]))
    data = [None if gone else next(left) for gone in is_gone]
    return NewValues(
        old, [None if gone else value for value, gone in zip(new, is_gone, strict=True)], before, data
    )


def fold(combiner: Combiner, keys: Sequence[Any], pending: Sequence[list[Any]]) -> list[bytes]:
    """What is staged of each key: all that waits for it, combined and encoded; raises as `new_values` does."""
    return codec.encode_values(combine_many(combiner, keys, pending), codec.MAX_UPDATE_BYTES)


def pending(
    updates: Mapping[bytes, list[Any]], staged: Mapping[bytes, bytes | None], encoded_keys: Sequence[bytes]
) -> list[list[Any]]:
    """What is staged for each key, and its updates, in commit order; raises `CorruptData`."""
    waiting = [updates.get(encoded, []) for encoded in encoded_keys]
    if not staged:
        return waiting
    before = [staged.get(encoded) for encoded in encoded_keys]
    return [
        values if stored is None else [value, *values]
        for stored, value, values in zip(before, _decoded(before), waiting, strict=True)
    ]


def _decoded(stored: Sequence[bytes | None]) -> list[Any]:
    found = [data for data in stored if data is not None]
    values = codec.decode_all(found)
    if len(found) == len(stored):
        return values
    left = iter(values)
    return [None if data is None else next(left) for data in stored]


def _encoded(kind: ValueType, values: list[Any]) -> list[bytes]:
    types = set(map(type, values))
    if not (kind.types and types <= set(kind.types)):
        for value in values:
            kind.check(value)
    return codec.encode_values(values)
