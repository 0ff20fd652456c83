"""Records of a transaction's own writes, for reads that must see them under any transaction option.

cq relies on reading its own writes: a pending read after an add must be refused, and storing a document twice must
compare it with the first one. An application can hide own writes from reads (`set_read_your_writes_disable`,
`set_snapshot_ryw_disable`), and options cannot be read back. So cq records such writes itself. Before it reads a
recorded key, it tests whether the transaction sees its writes.

Where the store writes a versionstamp, reads fail with 1036, and the transaction can then no longer commit. So cq also
tests whether a recorded write has made a key unreadable, before it reads the key.

A record is an attribute of the transaction's snapshot reads, since a reader may have only these. A dictionary with weak
references to transactions would make each add several times as expensive.

The store reports no retries, so a record stays valid after a retry, unless `transact` makes the retry. An outdated
record costs one additional test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from cq.store.api import ACCESSED_UNREADABLE, Transaction, TransactionRead, error_code
from cq.store.mistakes import refuse_snapshot
from cq.store.reads import own_snapshot

_Noted = tuple[ref[Transaction], set[str | bytes]]


def note_writes(tr: Transaction, written: str | bytes, parts: Iterable[bytes] = ()) -> None:
    """Record a write: `written` is a key, or the name of a queue, of which `parts` are keys of its changed parts."""
    snapshot: Any = own_snapshot(tr)
    if snapshot is tr:
        refuse_snapshot(tr)
    found: _Noted | None = getattr(snapshot, "cq_noted", None)
    if found is None:
        snapshot.cq_noted = ref(tr), {written, *parts}  # weak: the transaction refers to its snapshot reads
    else:
        found[1].update([written, *parts])


def forget_writes(tr: Transaction) -> None:
    """Drop the record of a transaction before its retry."""
    snapshot: Any = own_snapshot(tr)
    snapshot.cq_noted = None


def hides_writes(tr: TransactionRead, written: str | bytes, unused: bytes) -> bool:
    """Whether `written` is recorded for the transaction, and its reads by `tr` do not see its writes.

    If it is recorded, tests this: writes the key `unused`, which has no other use, reads it and clears it.
    """
    writer = _writer(tr, written)
    if writer is None:
        return False
    writer.set(unused, b"")
    is_hidden = tr.get(unused).value is None
    writer.clear(unused)
    return is_hidden


def makes_unreadable(tr: TransactionRead, written: str | bytes, key: bytes) -> bool:
    """Whether `written` is recorded for the transaction, and its present try has made `key` unreadable.

    If it is recorded, tests this with a watch: unlike a read, a watch that fails lets the transaction commit.

    Args:
        key: a key that no transaction writes, in the range that `written` makes unreadable. If `written` is of an
            earlier try, the test adds a read conflict on it.
    """
    writer = _writer(tr, written)
    if writer is None:
        return False
    watch = writer.watch(key)
    writer.get_approximate_size().wait()  # answered after the watch: an own write fails it without a request
    if not watch.is_ready():
        watch.cancel()
        return False
    try:
        watch.wait()
    except Exception as error:
        if error_code(error) is None:
            raise
        return error_code(error) == ACCESSED_UNREADABLE
    return False


def recorded(tr: TransactionRead) -> set[str | bytes]:
    """The writes recorded for the transaction, perhaps of an earlier try."""
    found: _Noted | None = getattr(own_snapshot(tr), "cq_noted", None)
    return set() if found is None else found[1]


def _writer(tr: TransactionRead, written: str | bytes) -> Transaction | None:
    """The transaction of the reads `tr`, if `written` is recorded for it."""
    found: _Noted | None = getattr(own_snapshot(tr), "cq_noted", None)
    return None if found is None or written not in found[1] else found[0]()
