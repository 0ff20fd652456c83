"""The keys that a pass touches, decoded at once and only as far as needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cq.codec import KeyType
from cq.errors import CorruptData
from cq.memory import Memory


class Keys:
    """What encoded keys stand for.

    Args:
        kind: the declared type.
        touched: the encoded keys, each once.
        memory: those in it have been decoded before: nobody needs to look at their bytes again.
        are_seen: whether code that is not cq's own will see the keys; else None may stand for each.
    """

    def __init__(self, kind: KeyType, touched: Sequence[bytes], memory: Memory, *, are_seen: bool) -> None:
        self._kind = kind
        self._decoded: dict[bytes, Any] = {}
        known = [key for key in touched if key in memory.values or key in memory.staged]
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
