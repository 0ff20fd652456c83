"""Rows of a queue's window: updates that expire later, in the order of their expiry.

An add to a queue with a window writes its updates twice in one transaction: into the queue, and into rows under the
time when they leave the window. At that time `cq.windows.expiry` adds their removals: updates that take them out of the
value again. Both writes of an add are blind. The rows are sorted by the time of expiry, not of the add, so that each
row keeps its time when the width changes.

A queue can have such a window if each update has an exact inverse: sums of int or Decimal, and counters. So a value
without the updates of a time is the value that it would have if they had never been added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any, Final

from cq.combiners import BUILT_IN, Combiner
from cq.config.queue import QueueConfig
from cq.encoding.codec import brief, shown
from cq.errors import BacklogTooDeep, CorruptData, InvalidData
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.queue.packing import check_update, split
from cq.queue.rows import Row, UnreadableRow, Updates, by_key, decode_content, drop_repeated_operations
from cq.store.api import WANT_ALL, Transaction, TransactionRead

OVERDUE_BYTES: Final = 1_000_000
"""Maximum bytes of overdue rows that a read subtracts."""
_REMOVABLE: Final = {("sum", "int"), ("sum", "decimal"), ("counter", "dict")}
"""(combiner, value type) of the queues whose updates have an inverse. Sums of float are not exact."""


def pack_expiring(pairs: Sequence[tuple[bytes, Any]], operation: bytes | None) -> list[bytes]:
    """The rows of these updates: [operation id or null, encoded key, update, ...], each of at most about 8 kB."""
    return split([operation, *chain.from_iterable(pairs)]) if pairs else []


def write_expiring(
    tr: Transaction, name: str, rows: Iterable[bytes], due: int, counters: Iterable[int], *, once: bool
) -> None:
    """Write rows that are due at a time; with `once`, also a key in commit order for each row's operation id."""
    window = WindowKeys(name)
    for row, counter in zip(rows, counters, strict=False):  # the counters never end
        tr.set_versionstamped_key(window.new_row(due, counter), row)
        if once:
            tr.set_versionstamped_key(window.new_operation(counter), b"")


@dataclass(slots=True)
class ExpiringRows:
    """Due rows in the order of their time, unreadable rows, and whether these are all rows of the range."""

    rows: list[Row] = field(default_factory=list)
    broken: list[UnreadableRow] = field(default_factory=list)
    at_end: bool = True

    @property
    def keys(self) -> list[bytes]:
        """The keys of all readable and unreadable rows, in order."""
        return sorted([*(row.key for row in self.rows), *(each.key for each in self.broken)])


def read_expiring(
    snapshot: TransactionRead, config: QueueConfig, bounds: tuple[bytes, bytes], limit_bytes: int
) -> ExpiringRows:
    """The rows of a range, until their bytes exceed `limit_bytes`."""
    window, found, size = WindowKeys(config.name), ExpiringRows(), 0
    for stored in snapshot.get_range(*bounds, streaming_mode=WANT_ALL):
        if size > limit_bytes:
            found.at_end = False
            break
        size += len(stored.key) + len(stored.value)
        try:
            if not window.is_row(stored.key):
                raise CorruptData(f"the key {stored.key!r} is not one of a window's row")
            content = decode_content(stored.key, stored.value)
            _check(config, content)
            found.rows.append(Row(stored.key, stored.value, content[0]))
        except CorruptData as error:
            found.broken.append(UnreadableRow(stored.key, stored.value, str(error)))
    return found


def _check(config: QueueConfig, content: list[Any]) -> None:
    """Raise `CorruptData` unless a row holds updates that can be removed, under keys of the queue's type."""
    if not all(is_removable(config, update) for update in content[2::2]):
        raise CorruptData("a window's row holds updates that cannot be removed from a value")
    if len(content) > 1:
        config.key.decode_all(content[1::2])


def updates_that_count(snapshot: TransactionRead, queue: QueueKeys, rows: Sequence[Row]) -> Updates:
    """The updates of these rows by key: of an operation, only those of its first try."""
    return by_key(drop_repeated_operations(snapshot, queue, rows))


def read_overdue(snapshot: TransactionRead, config: QueueConfig, now: int) -> Updates:
    """The updates of the overdue rows: due by `now`, and not expired yet; usually there are few or no rows.

    Raises `BacklogTooDeep` if they exceed 1 MB.
    """
    found = read_expiring(snapshot, config, WindowKeys(config.name).due_until(now), OVERDUE_BYTES)
    if not found.at_end:
        raise BacklogTooDeep(
            f"more than {OVERDUE_BYTES:,} bytes of updates are overdue in the window of queue {config.name!r}: "
            "run workers"
        )
    return updates_that_count(snapshot, QueueKeys(config.name), found.rows)


# Removals


def has_removals(config: QueueConfig) -> bool:
    """Whether each update of the queue has an inverse."""
    combiner = BUILT_IN.get(config.combiner.name)
    return (
        combiner is not None
        and combiner.version == config.combiner.version
        and (combiner.name, config.value.name) in _REMOVABLE
    )


def is_removable(config: QueueConfig, update: object) -> bool:
    """Whether an update has an exact inverse: False for floats, NaN and infinities, also as counts of a counter."""
    if config.value.name == "dict":
        return isinstance(update, dict) and all(map(_is_exact, update.values()))
    return type(update) in config.value.types and _is_exact(update)


def check_removable(config: QueueConfig, key: Any, update: object) -> None:
    """Raises `InvalidData` or `TooLarge` unless the queue also takes the removal of this update."""
    if not is_removable(config, update):
        raise InvalidData(
            f"key {brief(key)}: expected ints or finite decimals in a window, which can leave it exactly, got: "
            f"{shown(update)}"
        )
    # A removal can have a few bytes more than its update.
    for removal in _each_removed(BUILT_IN[config.combiner.name], [update]):
        check_update(config, key, removal)


def removals(config: QueueConfig, key: Any, updates: Sequence[Any]) -> list[Any]:
    """The updates of a key that remove these updates, as few as possible; none if these combine to nothing."""
    combiner = BUILT_IN[config.combiner.name]
    if len(updates) == 1:
        return _each_removed(combiner, updates)
    try:
        removed = _each_removed(combiner, [combiner.combine(key, updates)])
        for removal in removed:
            check_update(config, key, removal)
    except InvalidData:
        # Together, they are too large for one update. Each removal by itself was checked by the add.
        return _each_removed(combiner, updates)
    return removed


def _each_removed(combiner: Combiner, updates: Iterable[Any]) -> list[Any]:
    inverse: Any = combiner.difference
    found = [inverse(None, update) for update in updates if not combiner.is_empty(update)]
    return [removal for removal in found if removal is not None]


def _is_exact(number: object) -> bool:
    return type(number) is int or (type(number) is Decimal and number.is_finite())
