"""Whether a queue takes an update of a key, and how much an add of it writes: the same answer for all who add.

An add checks all of its updates with `check_add`. Who collects the updates of many callers, lines or rows for one
transaction checks each with an `AddCheck` first, so that one which the queue refuses fails alone, and so that the
transaction stays small.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cq.config.queue import QueueConfig
from cq.config.rollup import LEVEL_KEY_BYTES
from cq.encoding import codec
from cq.encoding.codec import is_int64
from cq.errors import TooLarge
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.queue.packing import Checked, check, check_update
from cq.queue.window_rows import check_removable
from cq.store.sizes import set_bytes

_ITEM_BYTES: Final = 3
"""The head of a key in a row, at most; a key of a queue has no more than 8,000 bytes."""
_ROW_BYTES: Final = 20  # of a row's value in addition to its updates
_STAMP_BYTES: Final = 14  # of the argument that makes a value a versionstamp
_OPERATION: Final = bytes(24)  # as long as the operation ids of cq's own
_FEW_BYTES: Final = 200_000
"""What rows and notifications of all buckets may take without being counted for each pair."""


def check_add(config: QueueConfig, updates: object) -> Checked:
    """These updates, which have the form that `CombineQueue.add` takes.

    Raises `InvalidData` or `TooLarge` unless the queue takes all, also as updates of its levels, and as removals from
    its window.
    """
    checked = check(config, updates)
    if config.rollup is not None and checked.encoded:
        _check_level_key(config, max(checked.encoded, key=len))
    if config.subtracted_window is not None:
        for encoded, update in checked.pairs:
            if type(update) is not int or not is_int64(update):
                check_removable(config, config.key.decode(encoded), update)
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
        copies: how often an add writes each update: into the queue, its levels, and its window.
        each: bytes for each update in addition to its copies. 0 unless the queue has so many buckets that most updates
            need a row of their own.
        operation: bytes of an add with an operation id, in addition to its updates.
    """

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        written = config.rollup.written if config.rollup else ()
        self._levels = len(written)
        self.copies = 1 + self._levels + (config.subtracted_window is not None)
        queues = [
            QueueKeys(name) for name in (config.name, *(level.queue_of(config.name) for level in written))
        ]
        rows = sum(_row_bytes(queue) for queue in queues)
        markers = sum(set_bytes(queue.new_marker(_OPERATION), 0) for queue in queues)
        if config.subtracted_window is not None:
            window = WindowKeys(config.name)
            rows += set_bytes(window.new_row(0, 0), _ROW_BYTES)
            markers += set_bytes(window.new_operation(0), 0)
        self.each = rows if config.buckets * rows > _FEW_BYTES else 0
        self.operation = rows + markers + self.copies * len(_OPERATION)
        self._encode = config.key.encoder()

    def check(self, key: Any, update: Any) -> CheckedPair:
        """The checked pair; raises `InvalidData` or `TooLarge` unless an add takes it."""
        encoded = self._encode(key)
        if self._levels:
            _check_level_key(self.config, encoded)
        size = check_update(self.config, key, update)
        if self.config.subtracted_window is not None:
            check_removable(self.config, key, update)
        return CheckedPair(encoded, self.written(len(encoded) + size))

    def written(self, size: int) -> int:
        """The approximate bytes that an add writes for a key and an update of `size` bytes together."""
        return self.copies * (size + _ITEM_BYTES) + self._levels * LEVEL_KEY_BYTES + self.each


def _row_bytes(queue: QueueKeys) -> int:
    """The approximate bytes of a row and its notification, without the row's updates."""
    return set_bytes(queue.new_row(0, 0, 0), _ROW_BYTES) + set_bytes(queue.notification(0, 0), _STAMP_BYTES)


def _check_level_key(config: QueueConfig, encoded: bytes) -> None:
    """Raises `TooLarge` for a key that would be too long with the start of a period, whichever it is."""
    most = codec.MAX_KEY_BYTES - LEVEL_KEY_BYTES
    if len(encoded) > most:
        key = config.key.decode(encoded)
        raise TooLarge(
            f"a key of {len(encoded):,} bytes exceeds the limit of {most:,} of a queue with a roll-up, or with a "
            f"window that merges slices, whose levels add the start of a period: {codec.shown(key)}"
        )
