"""The random id of a store, which distinguishes queues of the same name in two stores."""

from __future__ import annotations

from typing import Final

from cq import keys, runtime
from cq.errors import CorruptData
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

STORE_ID_BYTES: Final = 16


def store_id(tr: TransactionRead) -> bytes | None:
    """The store's id; None if no process has needed it yet."""
    return tr.get(keys.STORE_ID).value


def ensure_store_id(db: Database) -> bytes:
    """The store's id; creates it if the store has none."""
    return transact(db, _ensure)


def _ensure(tr: Transaction) -> bytes:
    # With a conflict range: of two processes that create it, one retries and reads the other's.
    found = store_id(tr)
    if found is None:
        found = runtime.token_bytes(STORE_ID_BYTES)
        tr.set(keys.STORE_ID, found)
    if len(found) != STORE_ID_BYTES:
        raise CorruptData(f"the id of the store is not one that cq made: {found[:40]!r}")
    return found
