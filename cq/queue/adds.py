"""An add: the keys that it writes, checked and packed before the first write.

A queue with a roll-up has one level or more, each a queue of its own. An add to it writes its levels in the same
transaction, after all checks of all of them: a refused add has written nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import encoded_level_keys
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.queue.checks import check_add
from cq.queue.ledger import count_added
from cq.queue.limits import refuse_if_full
from cq.queue.packing import Checked, check, pack, split_pairs
from cq.queue.window_rows import pack_expiring, write_expiring
from cq.store.api import Transaction
from cq.store.own_writes import note_writes

_counter: Final = count()  # process-wide: two adds in one transaction must not write rows with the same key


class _PackedAdd(NamedTuple):
    """The checked rows of an add to one queue.

    Attributes:
        config: the queue's configuration.
        rows: {bucket: [row, ...]}.
        operation: the encoded operation id, or None.
        pairs: (encoded key, update) of all updates, if the queue has a window or an audit.
        expiring: the rows of the queue's window.
        due: the time when the updates leave the window, in milliseconds; None for never.
    """

    config: QueueConfig
    rows: dict[int, list[bytes]]
    operation: bytes | None
    pairs: list[tuple[bytes, Any]]
    expiring: list[bytes]
    due: int | None

    def write(self, tr: Transaction, queue: QueueKeys) -> None:
        """Write the keys of the add."""
        config, packed, operation, pairs, expiring, due = self
        name, generation = config.name, config.generation
        notifications = list(map(queue.notification, repeat(generation), packed))
        note_writes(tr, name, notifications)
        for (bucket, rows), notification in zip(packed.items(), notifications, strict=True):
            for row in rows:
                tr.set_versionstamped_key(queue.new_row(generation, bucket, next(_counter)), row)
            # A unique value: a pass clears a notification only if no add has written it again since.
            tr.set_versionstamped_value(notification, INCOMPLETE_VERSIONSTAMP)
        if operation is not None:
            tr.set_versionstamped_key(queue.new_marker(operation), b"")
        if due is not None:
            write_expiring(tr, name, expiring, due, _counter, once=operation is not None)
        if config.audit is not None:
            count_added(tr, config, pairs)


def write_updates(
    tr: Transaction,
    queue: QueueKeys,
    config: QueueConfig,
    updates: object,
    once: str | bytes | None,
    *,
    due: int | None,
) -> None:
    """Write the keys of an add, without levels; `due` is the time when the updates leave the queue's window."""
    refuse_if_full(tr, config)
    operation = _operation(once, updates)
    # Updates that leave no window are cq's own: those of expiries, of levels, and those that were set aside.
    checked = check(config, updates) if due is None else check_add(config, updates)
    _packed(config, checked, operation, due).write(tr, queue)


def write_with_levels(
    tr: Transaction, config: QueueConfig, updates: object, once: str | bytes | None, times: Sequence[int]
) -> None:
    """Write the keys of an add to a queue with a roll-up, and to the levels that adds write.

    Args:
        tr: the caller's transaction.
        config: the configuration of the queue.
        updates: as for `CombineQueue.add`.
        once: an operation id; each of the queues keeps it.
        times: the time of each update, or one time for all, in seconds since 1970.
    """
    refuse_if_full(tr, config)
    operation = _operation(once, updates)
    checked = check_add(config, updates)
    packed = [_packed(config, checked, operation, None)]
    for level in config.rollup.written if config.rollup else ():
        config_of_level = read_config(tr, level.queue_of(config.name))
        refuse_if_full(tr, config_of_level)
        starts = [time // level.period * level.period for time in times]
        # A level takes the updates that its queue takes, so it need not check them.
        of_level = checked._replace(encoded=encoded_level_keys(config.key, checked.encoded, starts))
        packed.append(_packed(config_of_level, of_level, operation, None))
    # All checks of all queues come before the first write.
    for each in packed:
        each.write(tr, QueueKeys(each.config.name))


def refuse_adds_to_level(config: QueueConfig) -> None:
    """Raises `InvalidConfiguration` for a level: it has exactly the updates of its queue."""
    if config.level_of is not None:
        source = config.level_of.queue
        raise InvalidConfiguration(
            f"queue {config.name!r} is a level of the roll-up of queue {source!r}: add to queue {source!r}"
        )


def _packed(config: QueueConfig, updates: Checked, operation: bytes | None, due: int | None) -> _PackedAdd:
    rows = pack(config.buckets, updates, operation)
    pairs = updates.pairs if due is not None or config.audit is not None else []
    expiring = [] if due is None else pack_expiring(pairs, operation)
    return _PackedAdd(config, rows, operation, pairs, expiring, due)


def _operation(once: str | bytes | None, updates: object) -> bytes | None:
    """An operation id as bytes; raises `InvalidData`, and `WrongType` for `add(tr, key, update)`."""
    if once is None:
        return None
    if isinstance(updates, str):
        split_pairs(updates)
    return codec.encode_operation(once)
