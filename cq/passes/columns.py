"""What becomes of many keys at once: their values combined, checked and encoded, column by column.

Built-in functions loop over a column in C, so that a key costs a fraction of what it would cost by itself. Nothing here
touches a store or tells which key is at fault: if one is, all fail, and the caller tries them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any

from cq.combiners import Combiner, combine_many
from cq.encoding import codec
from cq.encoding.codec import DELETE, KeyType, ValueType
from cq.errors import CorruptData
from cq.passes.bucket_cache import BucketCache


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
    found = combine_many(combiner, keys, _after_stored(before, old, pending))
    new = [None if combiner.is_empty(value) else value for value in found]
    return NewValues(old, new, before, _map_present(partial(_encoded, kind), new))


def fold(
    combiner: Combiner, kind: ValueType, keys: Sequence[Any], pending: Sequence[list[Any]]
) -> tuple[list[bytes], bool]:
    """All that waits for each key, combined and encoded, and whether all of it could have been added so.

    Raises as `new_values` does.
    """
    folded = combine_many(combiner, keys, pending)
    types = set(map(type, folded))
    if combiner.takes_delete:
        types.discard(type(DELETE))
    are_updates = types <= set(kind.types) if kind.types else types.isdisjoint((NoneType, type(DELETE)))
    return codec.encode_values(folded, codec.MAX_UPDATE_BYTES), are_updates


def pending(
    updates: Mapping[bytes, list[Any]], staged: Mapping[bytes, bytes | None], encoded_keys: Sequence[bytes]
) -> list[list[Any]]:
    """What is staged for each key, and its updates, in commit order; raises `CorruptData`."""
    waiting = [updates.get(encoded, []) for encoded in encoded_keys]
    if not staged:
        return waiting
    before = [staged.get(encoded) for encoded in encoded_keys]
    return _after_stored(before, _decoded(before), waiting)


def _after_stored(
    stored: Sequence[bytes | None], decoded: Sequence[Any], lists: Sequence[list[Any]]
) -> list[list[Any]]:
    """Each list behind what is stored, where there is something."""
    return [
        values if data is None else [value, *values]
        for data, value, values in zip(stored, decoded, lists, strict=True)
    ]


def _decoded(stored: Sequence[bytes | None]) -> list[Any]:
    return _map_present(codec.decode_all, stored)


def _map_present(make: Callable[[list[Any]], list[Any]], column: Sequence[Any]) -> list[Any]:
    """What is made of all items of a column that are not None, at once, each in its place."""
    there = [item for item in column if item is not None]
    made = make(there)
    if len(there) == len(column):
        return made
    left = iter(made)
    return [None if item is None else next(left) for item in column]


def _encoded(kind: ValueType, values: list[Any]) -> list[bytes]:
    types = set(map(type, values))
    if not (kind.types and types <= set(kind.types)):
        for value in values:
            kind.check(value)
    return codec.encode_values(values)


class KeyColumn:
    """The encoded keys that a pass touches, decoded at once and only as far as needed.

    Args:
        kind: the declared type.
        touched: the encoded keys, each once.
        memory: keys in it have been decoded before, so that their bytes need no check.
        are_seen: whether code other than cq's will see the keys; otherwise None may stand for each.
    """

    def __init__(
        self, kind: KeyType, touched: Sequence[bytes], cache: BucketCache, *, are_seen: bool
    ) -> None:
        self._kind = kind
        self._decoded: dict[bytes, Any] = {}
        known = [key for key in touched if key in cache.values or key in cache.staged]
        if are_seen:
            self._decoded.update(zip(known, kind.decode_all(known, known=True), strict=True))
        else:
            self._decoded.update(dict.fromkeys(known))
        new = [key for key in touched if key not in self._decoded]
        with suppress(CorruptData):  # which key it is is found when that one is asked for
            self._decoded.update(zip(new, kind.decode_all(new), strict=True))

    def all(self, encoded_keys: Sequence[bytes]) -> list[Any]:
        """The key of each of these; raises `CorruptData` when one holds none."""
        try:
            return [self._decoded[encoded] for encoded in encoded_keys]
        except KeyError:
            return self._kind.decode_all(encoded_keys)
