"""What transactions have written, where cq must know it whatever their options say.

cq relies on reading what a transaction has written before: a pending read after an add must fail, and a document that
is stored twice must be compared with what the first call stored. An application can hide its own writes from a
transaction (`set_read_your_writes_disable`, `set_snapshot_ryw_disable`), and options cannot be read back. So cq notes
such writes itself, and tries out whether the transaction sees its writes when it reads again what is noted.

A note is an attribute of the transaction's snapshot reads, which a reader may have without their transaction. A
dictionary with weak references beside the transactions would cost each add several times as much.

A note outlives a try of its transaction, which no hook reports, unless `transact` retries it. Such an outdated note
costs a transaction that sees its writes only the trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from cq.store.api import Transaction, TransactionRead, snapshot_of

_Noted = tuple[ref[Transaction], set[str | bytes]]


def note_writes(tr: Transaction, written: str | bytes, parts: Iterable[bytes] = ()) -> None:
    """Note what the transaction has written: a key, or the name of a queue and keys of the parts that it touched."""
    snapshot: Any = tr.snapshot
    found: _Noted | None = getattr(snapshot, "cq_noted", None)
    if found is None:
        snapshot.cq_noted = ref(tr), {written, *parts}  # weak: the transaction keeps its snapshot reads
    else:
        found[1].update([written, *parts])


def forget_writes(tr: Transaction) -> None:
    """Forget what is noted of a transaction that begins another try."""
    snapshot: Any = snapshot_of(tr)
    snapshot.cq_noted = None


def hides_writes(tr: TransactionRead, written: str | bytes, unused: bytes) -> bool:
    """Whether the transaction has written this, as noted, and its reads by `tr` do not see its writes.

    If it is noted, this tries it out by writing the key `unused`, which nothing else uses, and clearing it again.
    """
    found: _Noted | None = getattr(snapshot_of(tr), "cq_noted", None)
    writer = None if found is None or written not in found[1] else found[0]()
    if writer is None:
        return False
    writer.set(unused, b"")
    is_hidden = tr.get(unused).value is None
    writer.clear(unused)
    return is_hidden
