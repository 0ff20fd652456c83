"""The export queue: changes for another system, added in the transactions that make them, in commit order.

An add is blind: it has no reads and no conflicts. The key's hash determines the bucket of an entry, and each bucket is
exported in the order of its entries' sequences; so all entries of a key are exported in commit order.

The number of buckets is part of the layout. If it changed, new entries of a key could overtake older ones in the key's
former bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cq.app import Factory
from cq.arguments import repeatable
from cq.config.queue import QueueConfig
from cq.encoding.hashing import bucket_of
from cq.keys import INCOMPLETE_VERSIONSTAMP, version_of
from cq.keys.export import ExportKeys, versionstamp_of
from cq.observer import Change, ObserverFunction
from cq.observers.export.rows import ExportEntry, encoded_keys, pack
from cq.observers.export.spec import check_alone
from cq.store.api import Transaction, TransactionRead

__all__ = ["BUCKETS", "ExportEntry", "ExportQueue", "add_changes", "oldest_versions"]

BUCKETS: Final = 8
"""Number of buckets of every export queue, which never changes; each of them can be exported in parallel."""


def oldest_versions(tr: TransactionRead, keys: ExportKeys) -> list[int]:
    """The commit version of the first entry of each bucket that has entries."""
    firsts = [tr.get_range(*keys.rows(bucket), limit=1) for bucket in range(BUCKETS)]
    return [version_of(versionstamp_of(keys.sequence_of_row(row.key))) for first in firsts for row in first]


class ExportQueue:
    """A handle of a queue of entries to export; without state, for any thread and either store.

    Args:
        name: the queue's name; raises `InvalidConfiguration` for an invalid name. A combine queue with an export has an
            export queue of the same name; applications should not add to that one.
        generation: entries of a higher generation sort after all of a lower one. Raise it only when no process adds
            under the lower one any more.
    """

    def __init__(self, name: str, *, generation: int = 1) -> None:
        self.name = name
        self.generation = generation
        self.keys = ExportKeys(name)

    def __repr__(self) -> str:
        return f"ExportQueue({self.name!r})"

    def add(self, tr: Transaction, key: Any, value: Any) -> None:
        """Add an entry for a key's value as part of the transaction; None for the value is a deletion.

        Args:
            tr: a transaction of either store.
            key: str, int, bytes, or a tuple of these.
            value: any value that CBOR can encode, up to 100,000 bytes.

        Raises:
            InvalidData, TooLarge: the key or the value is invalid or too large; the transaction is unchanged.
        """
        self.add_many(tr, [(key, value)])

    def add_many(self, tr: Transaction, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Call `add` for each (key, value) in order; cheaper, since many entries share a row. Raises as `add` does.

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


def add_changes(name: str) -> Factory:
    """The factory of an observer of this name that adds every change of a queue to the export queue of its name.

    It raises `InvalidConfiguration` if the queue has another observer that fills its export queue.
    """

    def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
        check_alone(config, name)
        queue = ExportQueue(config.name, generation=generation)

        def export(tr: Transaction, changes: list[Change]) -> None:
            queue.add_many(tr, [(change.key, change.new) for change in changes])

        return export

    return observer
