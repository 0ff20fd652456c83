"""Combines, checks and encodes the values of many keys at once, column by column.

Built-in functions loop over a column in C, so that a key costs a fraction of a call by itself. This module touches no
store and does not find the key that causes an error: the whole call fails, and the caller tries the keys one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, Final

from cq.combiners import Combiner, combine_many
from cq.encoding import codec
from cq.encoding.codec import DELETE, KeyType, ValueType
from cq.errors import CorruptData
from cq.passes.bucket_cache import BucketCache


@dataclass(frozen=True, slots=True)
class NewValues:
    """The values of some keys before and after, a column each.

    Attributes:
        old, new: decoded; None for a key without a value.
        before, data: the same values, encoded.
    """

    old: Sequence[Any]
    new: Sequence[Any]
    before: Sequence[bytes | None]
    data: Sequence[bytes | None]

    def is_same(self) -> list[bool]:
        """Return for each key whether its value is unchanged."""
        columns = zip(self.before, self.data, self.old, self.new, strict=True)
        return [
            before == data or (before is not None and data is not None and codec.is_same(old, new))
            for before, data, old, new in columns
        ]


NO_VALUES: Final = NewValues((), (), (), ())


def new_values(
    combiner: Combiner,
    kind: ValueType,
    keys: Sequence[Any],
    before: Sequence[bytes | None],
    pending: Sequence[list[Any]],
) -> NewValues:
    """Combine the stored current values with the pending updates of each key.

    Raises `InvalidData` or `TooLarge` if a new value cannot be stored, `CorruptData` if a current value cannot be read,
    and the combiner's exceptions.
    """
    old = _decoded(before)
    found = combine_many(combiner, keys, _after_stored(before, old, pending))
    new = [None if combiner.is_empty(value) else value for value in found]
    return NewValues(old, new, before, _map_present(partial(_encoded, kind), new))


def fold(
    combiner: Combiner, kind: ValueType, keys: Sequence[Any], pending: Sequence[list[Any]]
) -> tuple[list[bytes], bool]:
    """Combine and encode the pending updates of each key; return also whether each result is an update.

    Only updates can be written as rows again. Raises as `new_values` does.
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
    """Return the staged and the taken updates of each key, in commit order; raises `CorruptData`."""
    waiting = [updates.get(encoded, []) for encoded in encoded_keys]
    if not staged:
        return waiting
    before = [staged.get(encoded) for encoded in encoded_keys]
    return _after_stored(before, _decoded(before), waiting)


def _after_stored(
    stored: Sequence[bytes | None], decoded: Sequence[Any], lists: Sequence[list[Any]]
) -> list[list[Any]]:
    """Return each list, preceded by the stored value of its key if there is one."""
    return [
        values if data is None else [value, *values]
        for data, value, values in zip(stored, decoded, lists, strict=True)
    ]


def _decoded(stored: Sequence[bytes | None]) -> list[Any]:
    return _map_present(codec.decode_all, stored)


def _map_present(make: Callable[[list[Any]], list[Any]], column: Sequence[Any]) -> list[Any]:
    """Apply `make` to all items of a column that are not None, in one call; keep None for the others."""
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
    """The encoded keys that a pass touches, decoded in one call and only if needed.

    Args:
        kind: the declared type.
        touched: the encoded keys, each once.
        cache: its keys were decoded before, so that their bytes need no check.
        are_seen: whether code other than cq's will see the keys; if not, each may be None.
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
        with suppress(CorruptData):  # `all` raises it again for keys in use
            self._decoded.update(zip(new, kind.decode_all(new), strict=True))

    def all(self, encoded_keys: Sequence[bytes]) -> list[Any]:
        """Return the decoded keys; raises `CorruptData` if one cannot be decoded."""
        try:
            return [self._decoded[encoded] for encoded in encoded_keys]
        except KeyError:
            return self._kind.decode_all(encoded_keys)
