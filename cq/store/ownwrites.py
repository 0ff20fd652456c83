"""What transactions have written, where cq must know it whatever their options say.

cq relies on reading what a transaction has written before: a pending read after an add must fail, and a document that
is stored twice must be compared with what the first call stored. An application can hide its own writes from a
transaction (`set_read_your_writes_disable`, `set_snapshot_ryw_disable`), and options cannot be read back. So cq notes
such writes itself, and tries out whether the transaction sees its writes when it reads again what is noted.

A note outlives a try of its transaction, which no hook reports, unless `transact` retries it. Such an outdated note
costs a transaction that sees its writes only the trial.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final
from weakref import WeakKeyDictionary, ref

from cq.store.api import Transaction, TransactionRead, snapshot_of

# Keyed by the snapshot reads, which a reader may have without their transaction.
_noted: Final[WeakKeyDictionary[TransactionRead, tuple[ref[Transaction], set[Hashable]]]] = (
    WeakKeyDictionary()
)


def note_writes(tr: Transaction, written: Iterable[Hashable]) -> None:
    """Note what the transaction has written."""
    snapshot = tr.snapshot
    found = _noted.get(snapshot)
    if found is None:
        found = _noted[snapshot] = ref(tr), set()
    found[1].update(written)


def forget_writes(tr: Transaction) -> None:
    """Forget what is noted of a transaction that begins another try."""
    _noted.pop(snapshot_of(tr), None)


def hides_writes(tr: TransactionRead, written: Iterable[Hashable], unused: bytes) -> bool:
    """Whether the transaction has written any of these, and its reads by `tr` do not see its writes.

    If any is noted, this tries it out by writing the key `unused`, which nothing else uses, and clearing it again.
    """
    owner, noted = _noted.get(snapshot_of(tr), (None, frozenset[Hashable]()))
    writer = None if owner is None or noted.isdisjoint(written) else owner()
    if writer is None:
        return False
    writer.set(unused, b"")
    is_hidden = tr.get(unused).value is None
    writer.clear(unused)
    return is_hidden
