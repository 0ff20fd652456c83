"""The log of a link: changes for another system, added in the transactions that make them, in commit order.

An add is blind: it has no reads and no conflicts. The key's hash determines the bucket of an entry, and each bucket is
sent in the order of its entries' sequences; so all entries of a key are sent in commit order.

The number of buckets is part of the layout. If it changed, new entries of a key could overtake older ones in the key's
former bucket.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cq.arguments import repeatable
from cq.encoding.hashing import bucket_of
from cq.keys import INCOMPLETE_VERSIONSTAMP, version_of
from cq.keys.link import APP, LinkKeys, versionstamp_of
from cq.observers.links.rows import LinkEntry, encoded_keys, pack
from cq.store.api import Transaction, TransactionRead

__all__ = ["BUCKETS", "ExportQueue", "LinkEntry", "oldest_versions"]

BUCKETS: Final = 8
"""Number of buckets of every link, which never changes; each of them can be sent in parallel."""


def oldest_versions(tr: TransactionRead, keys: LinkKeys) -> list[int]:
    """The commit version of the first entry of each bucket that has entries."""
    firsts = [tr.get_range(*keys.rows(bucket), limit=1) for bucket in range(BUCKETS)]
    return [version_of(versionstamp_of(keys.sequence_of_row(row.key))) for first in firsts for row in first]


class ExportQueue:
    """A handle of a queue of entries to export; without state, for any thread and either store.

    Args:
        name: the queue's name; raises `InvalidConfiguration` for an invalid name.
        link: the link of a combine queue whose log this is; applications add to their own export queues only.
        generation: entries of a higher generation sort after all of a lower one. Raise it only when no process adds
            under the lower one any more.
    """

    def __init__(self, name: str, *, link: str = APP, generation: int = 1) -> None:
        self.name = name
        self.generation = generation
        self.keys = LinkKeys(name, link)

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
