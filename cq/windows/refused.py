"""Updates that are refused for their time, and their counts."""

from __future__ import annotations

from typing import Final

from cq.queue.packing import split_pairs
from cq.store.api import Transaction

TAKEN: Final = "taken"
LATE: Final = "late"
FUTURE: Final = "future"
_COUNTER_BYTES: Final = 8


def count_refused(tr: Transaction, updates: object, counter: bytes, why: str) -> str:
    """Count refused updates by an atomic addition, which conflicts with no other transaction; returns `why`."""
    number = len(split_pairs(updates)[0])
    tr.add(counter, number.to_bytes(_COUNTER_BYTES, "little"))
    return why
