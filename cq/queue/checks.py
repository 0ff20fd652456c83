"""Whether a queue takes an update of a key, and how much an add of it writes: the same answer for all who add.

An add checks all of its updates with `check_add`. Who collects the updates of many callers, lines or rows for one
transaction checks each with an `AddCheck` first, so that one which the queue refuses fails alone, and so that the
transaction stays small.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, NamedTuple

from cq.config.queue import QueueConfig
from cq.config.rollup import LEVEL_KEY_BYTES
from cq.encoding import codec
from cq.errors import InvalidData, TooLarge
from cq.keys import QueueKeys
from cq.queue.packing import Checked, check, check_update
from cq.store.sizes import set_bytes

_ITEM_BYTES: Final = 3
"""The head of a key in a row, at most; a key of a queue has no more than 8,000 bytes."""
_ROW_BYTES: Final = 40  # of a row's value in addition to its updates
_STAMP_BYTES: Final = 14  # of the argument that makes a value a versionstamp
_OPERATION: Final = bytes(24)  # as long as the operation ids of cq's own
_FEW_BYTES: Final = 200_000
"""What rows and notifications of all buckets may take without being counted for each pair."""


def check_add(config: QueueConfig, keys: list[Any], values: list[Any]) -> Checked:
    """These updates of these keys.

    Raises `InvalidData` or `TooLarge` unless the queue takes all, and its levels and window, too.
    """
    checked = check(config, keys, values)
    if config.is_timed and checked.encoded:
        _check_level_key(config, max(checked.encoded, key=len))
    if config.subtracts and not set(map(type, checked.values)) <= {int}:
        for encoded, update in zip(*checked, strict=True):
            _check_exact(config.key.decode(encoded), update)
    return checked


class CheckedPair(NamedTuple):
    """An update that a queue takes: the encoded key, and the approximate bytes that an add writes for the pair."""

    encoded: bytes
    size: int


class AddCheck:
    """Checks single updates as an add does, and predicts what an add of them writes.

    Args:
        config: the configuration of the queue.

    Attributes:
        each: bytes for each update in addition to its own. 0 unless the queue has so many buckets that most updates
            need a row of their own.
        operation: bytes of an add with an operation id, in addition to its updates.
    """

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        queue = QueueKeys(config.name)
        row = row_bytes(queue)
        self.each = row if config.buckets * row > _FEW_BYTES else 0
        self.operation = row + set_bytes(queue.new_marker(_OPERATION), 0) + len(_OPERATION)
        self._encode = config.key.encoder()

    def check(self, key: Any, update: Any) -> CheckedPair:
        """The checked pair; raises `InvalidData` or `TooLarge` unless an add takes it."""
        encoded = self._encode(key)
        size = check_update(self.config, key, update)
        if self.config.is_timed:
            _check_level_key(self.config, encoded)
        if self.config.subtracts:
            _check_exact(key, update)
        return CheckedPair(encoded, self.written(len(encoded) + size))

    def written(self, size: int) -> int:
        """The approximate bytes that an add writes for a key and an update of `size` bytes together."""
        return size + _ITEM_BYTES + self.each


def row_bytes(queue: QueueKeys) -> int:
    """The approximate bytes of a row and its notification, without the row's updates."""
    return set_bytes(queue.new_row(0, 0, 0), _ROW_BYTES) + set_bytes(queue.notification(0, 0), _STAMP_BYTES)


def _check_level_key(config: QueueConfig, encoded: bytes) -> None:
    """Raises `TooLarge` for a key that would be too long with the start of a period, whichever it is."""
    most = codec.MAX_KEY_BYTES - LEVEL_KEY_BYTES
    if len(encoded) > most:
        key = config.key.decode(encoded)
        raise TooLarge(
            f"a key of {len(encoded):,} bytes exceeds the limit of {most:,} of a queue with a window or a roll-up, "
            f"which adds a time to each key: {codec.shown(key)}"
        )


def _check_exact(key: Any, update: Any) -> None:
    """Raises `InvalidData` for a number that cannot leave a window exactly: a float in a counter, or an infinity."""
    numbers = update.values() if isinstance(update, dict) else (update,)
    for number in numbers:
        if type(number) is float or (type(number) is Decimal and not number.is_finite()):
            raise InvalidData(
                f"key {codec.brief(key)}: expected ints or finite decimals in a window, which can leave it exactly, "
                f"got: {codec.shown(update)}"
            )
