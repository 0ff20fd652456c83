"""Documents: sets of counts that a queue sums; to store a document again adds the difference.

A document is a set of counts under an id. Its counts are stored next to the queue, in the transaction that adds the
difference between old and new counts. So the queue's sums are always the sums over all stored documents, after any
crash or repetition. Large documents are stored in parts, by the hash of the counted item, with a transaction for each
part. Each part is exact at any time, and an interrupted store continues when the document is stored again. Small
documents, such as the tags of an article, can be stored within the application's own transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from cq import runtime
from cq.combiners import changes
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec, hashing
from cq.errors import CorruptData, InvalidData, TooLarge, WritesUnreadable
from cq.keys import QueueKeys
from cq.queue.checks import AddCheck, check_add
from cq.queue.combine_queue import CombineQueue
from cq.queue.ledger import refuse_unless_summed
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead
from cq.store.bounded_reads import scan_rows
from cq.store.own_writes import hides_writes, note_writes
from cq.store.sizes import PREDICTED_BYTES
from cq.store.transact import transact

_PART_ITEMS: Final = 20_000
_PIECE_ITEMS: Final = 2_000
_PIECE_BYTES: Final = 80_000
_UNUSED_BYTES: Final = 16
_MAX_PARTS: Final = 1_000_000  # of 20,000 items each


class Documents:
    """The documents of a queue whose values are sums of int.

    Args:
        queue: the queue that gets the differences. It must have the value type int and the combiner sum.
    """

    def __init__(self, queue: CombineQueue) -> None:
        self.queue = queue
        self._keys = QueueKeys(queue.name)

    def set(self, tr: Transaction, document: bytes, counts: Mapping[Any, int]) -> int:
        """Replace a document's counts as a part of the transaction; returns the number of updates added.

        Conflicts only with transactions that store the same document at the same time. Items are keys of the queue's
        type; a count of 0 means no item. For tags, the counts are `dict.fromkeys(tags, 1)`.

        Raises:
            TooLarge: there are more than 20,000 items, or replacing them all may write more than 1 MB; or `put` has
                stored the document in parts.
            InvalidData: the id does not have 1 to 8,000 bytes, or a count is not an int.
            InvalidConfiguration: the queue's values are no sums of int.
            WritesUnreadable: the transaction has already stored the document and hides its own writes.

        Also raises the errors of `CombineQueue.add`. A call that raises has written nothing.
        """
        self._check(document)
        wanted = _without_zeros(counts)
        if _parts_for(read_config(tr.snapshot, self.queue.name), wanted) > 1:
            raise TooLarge(f"{len(wanted):,} items do not fit into one transaction: store them with `put`")
        self._is_in_one_part(tr, document)
        updates = self._put_part(tr, document, 1, 0, wanted) or 0
        note_writes(tr, self._keys.document(document))
        return updates

    def clear(self, tr: Transaction, document: bytes) -> int:
        """Subtract a document's counts and delete it, as a part of the transaction; returns the number of updates.

        Raises the errors of `set`.
        """
        self._check(document)
        if not self._is_in_one_part(tr, document):
            return 0
        updates = self._replace(tr, document, 0, {})
        tr.clear(self._keys.document(document))
        note_writes(tr, self._keys.document(document))
        return updates

    def put(self, db: Database, document: bytes, counts: Mapping[Any, int]) -> int:
        """Replace a document's counts; returns the number of updates added.

        Costs a transaction for each part: 20,000 items, or as many as write about 1 MB if all counts change. Items are
        keys of the queue's type; a count of 0 means no item. Raises `InvalidData` if the id does not have 1 to 8,000
        bytes or a count is not an int, `InvalidConfiguration` if the queue's values are no sums of int, and the errors
        of `CombineQueue.add`; no part is stored if the queue does not take an item.
        """
        self._check(document)
        wanted = _without_zeros(counts)
        updates = 0
        while True:
            config, stored = transact(
                db, lambda tr: (read_config(tr.snapshot, self.queue.name), self._parts(tr, document))
            )
            parts = _parts_for(config, wanted)
            if parts > 1:  # else the only part is refused as a whole
                check_add(config, list(wanted), list(wanted.values()))
            if stored not in (None, parts):
                updates += self.remove(db, document)
            split = _split(wanted, parts)
            put = partial(self._put_part, document=document, parts=parts)
            results = [
                transact(db, partial(put, number=number, counts=part)) for number, part in enumerate(split)
            ]
            updates += sum(result or 0 for result in results)
            if None not in results:
                # None: a concurrent caller has changed the number of parts, so start again.
                return updates

    def remove(self, db: Database, document: bytes) -> int:
        """Subtract a document's counts and delete it; returns the number of updates added."""
        self._check(document)
        updates = 0
        while (parts := transact(db, lambda tr: self._parts(tr, document))) is not None:
            empty = partial(self._put_part, document=document, parts=parts, counts={})
            emptied = [transact(db, partial(empty, number=number)) for number in range(parts)]
            updates += sum(result or 0 for result in emptied)
            if None not in emptied:
                transact(db, partial(self._forget, document=document, parts=parts))
        return updates

    def ids(self, db: Database) -> Iterator[bytes]:
        """The ids of all documents, a transaction for every thousand."""
        return (self._keys.document_of(key) for key, _ in scan_rows(db, *self._keys.documents()))

    def counts(self, tr: TransactionRead, document: bytes) -> dict[Any, int] | None:
        """A document's counts, None if there is no such document."""
        parts = self._parts(tr, document)
        if parts is None:
            return None
        found: dict[Any, int] = {}
        for number in range(parts):
            found.update(self._read_part(tr, document, number))
        return found

    def _check(self, document: object) -> None:
        if not isinstance(document, bytes) or not 0 < len(document) <= codec.MAX_KEY_BYTES:
            raise InvalidData(f"expected a document id of 1 to 8,000 bytes, got: {codec.brief(document)}")

    def _is_in_one_part(self, tr: Transaction, document: bytes) -> bool:
        """Whether there is such a document.

        Raises `TooLarge` if it has more than one part, and `WritesUnreadable` if the transaction has changed it and
        cannot read its own writes.
        """
        unused = self._keys.document(runtime.token_bytes(_UNUSED_BYTES))
        if hides_writes(tr, self._keys.document(document), unused):
            raise WritesUnreadable(
                f"document {document!r} was changed in the same transaction, which hides its own writes "
                "(read_your_writes_disable): change it once, or leave that option out"
            )
        parts = self._parts(tr, document)
        if parts is not None and parts > 1:
            raise TooLarge(
                f"document {document!r} was stored in {parts} parts: use `put` and `remove` for it"
            )
        return parts is not None

    def _parts(self, tr: TransactionRead, document: bytes) -> int | None:
        header = tr.get(self._keys.document(document)).value
        if header is None:
            return None
        parts = codec.decode(header)
        if type(parts) is not int or not 0 < parts <= _MAX_PARTS:
            raise CorruptData(
                f"the number of parts of document {document!r} was not written by cq: {header[:40]!r}"
            )
        return parts

    def _put_part(
        self, tr: Transaction, document: bytes, parts: int, number: int, counts: dict[Any, int]
    ) -> int | None:
        """Store a part; returns the number of updates, None if another caller has changed the number of parts."""
        stored = self._parts(tr, document)
        if stored not in (None, parts):
            return None
        updates = self._replace(tr, document, number, counts)
        if stored is None:
            tr.set(self._keys.document(document), codec.encode(parts))
        return updates

    def _replace(self, tr: Transaction, document: bytes, number: int, counts: dict[Any, int]) -> int:
        """Write a part's counts, and add the differences to its old counts; returns the number of updates."""
        updates = changes(self._read_part(tr, document, number), counts)
        if updates:
            self.queue.add(tr, updates)
            tr.clear_range(*self._keys.document_part(document, number))
            for place, piece in enumerate(_pieces(counts)):
                tr.set(self._keys.document_piece(document, number, place), piece)
        return len(updates)

    def _forget(self, tr: Transaction, document: bytes, parts: int) -> None:
        """Delete a document with empty parts, unless a concurrent caller has stored it again."""
        if self._parts(tr, document) == parts and not self.counts(tr, document):
            tr.clear(self._keys.document(document))

    def _read_part(self, tr: TransactionRead, document: bytes, number: int) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for row in tr.get_range(*self._keys.document_part(document, number), streaming_mode=WANT_ALL):
            found.update(decode_counts(row.value))
        return found


def _without_zeros(counts: Mapping[Any, int]) -> dict[Any, int]:
    if not isinstance(counts, Mapping):
        raise InvalidData(f"expected the counts of a document as a dict, got: {codec.brief(counts)}")
    return {item: count for item, count in counts.items() if count != 0}


def _parts_for(config: QueueConfig, counts: dict[Any, int]) -> int:
    """The number of parts for counts, so that a transaction that replaces a part writes at most about 1 MB.

    Raises `InvalidConfiguration` if the queue's values are no sums, which differences would make wrong, and
    `InvalidData` or `TooLarge` for an item that is no key of the queue.
    """
    refuse_unless_summed(config, "documents")
    adds = AddCheck(config)
    # An item that equals one of the former counts is not added, so the queue would not refuse it: True for 1.
    items = config.key.encode_all(list(counts))
    sizes = [len(item) + len(codec.encode(count)) for item, count in zip(items, counts.values(), strict=True)]
    # Each row is counted once: parts and buckets are both ranges of the same hash, so a part has its own buckets.
    rows = adds.each * min(2 * len(sizes), config.buckets)
    # All items of the former counts may differ from all new ones; the new ones are also stored with the document.
    written = rows + sum(2 * (adds.written(size) - adds.each) + size for size in sizes)
    return max(1, -(-len(counts) // _PART_ITEMS), -(-written // PREDICTED_BYTES))


def _split(counts: dict[Any, int], parts: int) -> list[dict[Any, int]]:
    """The counts of each part, by the hash of the items."""
    if parts == 1:
        return [counts]
    split: list[dict[Any, int]] = [{} for _ in range(parts)]
    for item, count in counts.items():
        split[hashing.bucket_of(codec.encode(item), parts)][item] = count
    return split


def _pieces(counts: dict[Any, int]) -> Iterator[bytes]:
    """The counts as flat lists [item, count, ...] in CBOR, each small enough for a value."""
    content = [part for pair in counts.items() for part in pair]
    for start in range(0, len(content), 2 * _PIECE_ITEMS):
        yield from _halved(content[start : start + 2 * _PIECE_ITEMS])


def _halved(content: list[Any]) -> Iterator[bytes]:
    piece = codec.encode(content)
    if len(piece) <= _PIECE_BYTES:
        yield piece
    else:
        middle = len(content) // 4 * 2
        yield from _halved(content[:middle])
        yield from _halved(content[middle:])


def decode_counts(data: bytes) -> dict[Any, int]:
    """The counts in one piece of a document; raises `CorruptData`."""
    content = codec.decode(data)
    try:
        counts = dict(zip(map(_hashable, content[::2]), content[1::2], strict=True))
    except (TypeError, ValueError, RuntimeError):
        counts = {None: None}
    if not all(type(count) is int for count in counts.values()):
        raise CorruptData(f"the counts of a document were not written by cq: {data[:40]!r}")
    return counts


def _hashable(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item
