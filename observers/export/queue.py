"""The export queue: what is to be told to another system, kept in commit order in the transaction that changes it.

An add is blind: it reads nothing and conflicts with nothing. The key's hash says which bucket an entry goes to, and
each bucket is exported in the order of its entries' sequences; so all entries of a key are exported in commit order.

The number of buckets is a part of the layout: with another number, entries of a key that wait in its old bucket
could be overtaken by those in its new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cq.arguments import repeatable
from cq.config.queue import QueueConfig
from cq.encoding.hashing import bucket_of
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.export import ExportKeys
from cq.observer import Change, ObserverFunction
from cq.observers.export.rows import ExportEntry, encoded_keys, pack
from cq.observers.export.spec import NAME, check_alone
from cq.store.api import Transaction

__all__ = ["BUCKETS", "ExportEntry", "ExportQueue", "observer"]

BUCKETS: Final = 8
"""Into how many buckets an export queue is spread, for good: as many batches are exported at once."""


class ExportQueue:
    """Entries that wait to be exported; a handle without state, for any thread and either store.

    Args:
        name: of the queue; raises `InvalidConfiguration` when none can be called so. A combine queue with an export has
            an export queue of its own name, which nobody else should add to.
        generation: entries of a higher generation sort behind all of a lower one. Raise it only when nobody adds
            under the lower one any more.
    """

    def __init__(self, name: str, *, generation: int = 1) -> None:
        self.name = name
        self.generation = generation
        self.keys = ExportKeys(name)

    def __repr__(self) -> str:
        return f"ExportQueue({self.name!r})"

    def add(self, tr: Transaction, key: Any, value: Any) -> None:
        """Have the key's value exported, as a part of the transaction; None for the value is a deletion.

        Args:
            tr: a transaction of either store.
            key: str, int, bytes, or a tuple of these.
            value: whatever CBOR carries, up to 100,000 bytes.

        Raises:
            InvalidData, TooLarge: the key or the value does not fit; nothing was written.
        """
        self.add_many(tr, [(key, value)])

    def add_many(self, tr: Transaction, pairs: Iterable[tuple[Any, Any]]) -> None:
        """`add` for each (key, value) in order; cheaper, as many entries share a row. Errors as for `add`.

        Raises `OneShotIterable` if the pairs are in an iterator, which would be empty when the transaction is retried.
        """
        buckets: dict[int, list[tuple[bytes, Any]]] = {}
        pairs = list(repeatable(pairs, "pairs"))
        for encoded, (_, value) in zip(encoded_keys([key for key, _ in pairs]), pairs, strict=True):
            buckets.setdefault(bucket_of(encoded, BUCKETS), []).append((encoded, value))
        packed = {bucket: pack(entries) for bucket, entries in buckets.items()}
        for bucket, rows in packed.items():
            for counter, row in rows:
                tr.set_versionstamped_key(self.keys.new_row(bucket, self.generation, counter), row)
            tr.set_versionstamped_value(self.keys.notification(bucket), INCOMPLETE_VERSIONSTAMP)


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """A change observer that adds every change of a queue to the export queue of its name."""
    check_alone(config, NAME)
    queue = ExportQueue(config.name, generation=generation)

    def export(tr: Transaction, changes: list[Change]) -> None:
        queue.add_many(tr, [(change.key, change.new) for change in changes])

    return export
