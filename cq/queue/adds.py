"""An add: the keys that it writes, checked and packed before the first write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from cq.config.queue import QueueConfig, read_config
from cq.config.window import milliseconds
from cq.encoding import codec
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.queue.checks import check_add, row_bytes
from cq.queue.ledger import count_added
from cq.queue.limits import refuse_if_full
from cq.queue.packing import Checked, check, check_requests, pack, split_pairs
from cq.store.api import Transaction, TransactionRead
from cq.store.own_writes import note_writes
from cq.store.sizes import set_bytes

_counter: Final = count()  # process-wide: two adds in one transaction must not write rows with the same key
# Making the keys of a queue takes a twentieth of the time of a small add.
_keys_of: Final = lru_cache(maxsize=1_000)(QueueKeys)


class PackedAdd(NamedTuple):
    """The checked rows of an add to a queue.

    Attributes:
        config: the queue's configuration.
        rows: {bucket: [row, ...]}.
        operation: the encoded operation id, or None.
        pairs: (encoded key, update) of all updates, if the queue has an audit.
    """

    config: QueueConfig
    rows: dict[int, list[bytes]]
    operation: bytes | None
    pairs: list[tuple[bytes, Any]]

    @classmethod
    def of(
        cls,
        config: QueueConfig,
        keys: list[Any],
        values: list[Any],
        operation: bytes | None,
        times: Sequence[int],
    ) -> PackedAdd:
        """The rows of updates, which are checked first; `times` as for `write_updates`.

        Raises `InvalidData`, `TooLarge`.
        """
        if config.decider is not None:
            checked = check_requests(config, keys, values)
        else:
            checked = check_add(config, keys, values) if times else check(config, keys, values)
        return cls.of_checked(config, checked, operation, times)

    @classmethod
    def of_checked(
        cls,
        config: QueueConfig,
        checked: Checked,
        operation: bytes | None = None,
        times: Sequence[int] = (),
    ) -> PackedAdd:
        """The rows of checked updates; `times` as for `write_updates`."""
        rows = pack(config.buckets, checked, operation, times)
        return cls(config, rows, operation, checked.pairs if config.audit is not None else [])

    @property
    def size(self) -> int:
        """The approximate bytes that the add writes, with keys and conflict ranges."""
        queue = _keys_of(self.config.name)
        rows = [row for rows in self.rows.values() for row in rows]
        marker = 0 if self.operation is None else set_bytes(queue.new_marker(self.operation), 0)
        return sum(map(len, rows)) + len(rows) * row_bytes(queue) + marker

    def write(self, tr: Transaction) -> None:
        """Write the keys of the add."""
        config, packed, operation, pairs = self
        name, generation, queue = config.name, config.generation, _keys_of(config.name)
        notifications = list(map(queue.notification, repeat(generation), packed))
        note_writes(tr, name, notifications)
        for (bucket, rows), notification in zip(packed.items(), notifications, strict=True):
            for row in rows:
                tr.set_versionstamped_key(queue.new_row(generation, bucket, next(_counter)), row)
            # A unique value: a pass clears a notification only if no add has written it again since.
            tr.set_versionstamped_value(notification, INCOMPLETE_VERSIONSTAMP)
        if operation is not None:
            tr.set_versionstamped_key(queue.new_marker(operation), b"")
        if config.audit is not None:
            count_added(tr, config, pairs)


def write_updates(
    tr: Transaction,
    config: QueueConfig,
    updates: object,
    once: str | bytes | None = None,
    *,
    times: Sequence[int] = (),
) -> None:
    """Write the keys of an add.

    Args:
        tr: the caller's transaction.
        config: the configuration of the queue.
        updates: as for `CombineQueue.add`.
        once: an operation id.
        times: the time of each update in milliseconds since 1970, or one time for all. Without times, passes
            add the updates to no level of the queue: observers add such updates, and retries of those set aside.
    """
    refuse_if_full(tr, config)
    keys, values = split_pairs(updates)
    operation = None if once is None else codec.encode_operation(once)
    PackedAdd.of(config, keys, values, operation, times).write(tr)


def times_now(config: QueueConfig) -> list[int]:
    """The `times` of updates that count as of now; empty for a queue without times."""
    return [milliseconds(None)] if config.is_timed else []


def config_for_adds(tr: TransactionRead, name: str) -> QueueConfig:
    """The configuration of a queue to which an application adds.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` for a level or a part of a window, which has exactly the
    updates of its queue.
    """
    config = read_config(tr, name)
    config.refuse_level("add to")
    return config
