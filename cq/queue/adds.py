"""An add: the keys that it writes, checked and packed before the first write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.queue.checks import check_add
from cq.queue.ledger import count_added
from cq.queue.limits import refuse_if_full
from cq.queue.packing import Checked, check, pack, split_pairs
from cq.store.api import Transaction
from cq.store.own_writes import note_writes

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
        checked: Checked,
        operation: bytes | None = None,
        times: Sequence[int] = (),
    ) -> PackedAdd:
        """The rows of checked updates; `times` as for `write_updates`."""
        rows = pack(config.buckets, checked, operation, times)
        return cls(config, rows, operation, checked.pairs if config.audit is not None else [])

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
    operation = _operation(once, updates)
    checked = check_add(config, updates) if times else check(config, updates)
    PackedAdd.of(config, checked, operation, times).write(tr)


def refuse_adds_to_level(config: QueueConfig) -> None:
    """Raises `InvalidConfiguration` for a level or a part of a window: it has exactly the updates of its queue."""
    if config.level_of is not None:
        config.level_of.refuse(config.name, "add to")


def _operation(once: str | bytes | None, updates: object) -> bytes | None:
    """An operation id as bytes; raises `InvalidData`, and `WrongType` for `add(tr, key, update)`."""
    if once is None:
        return None
    if isinstance(updates, str):
        split_pairs(updates)
    return codec.encode_operation(once)
