"""FoundationDB's transactions on one SQLite file: the Python binding's Database and Transaction, and its errors.

The package has the database classes. Its folders have the transactions, the engine and the file. It may import all of
them, and must not import the binding itself.

db = Database("counters.db")
db.transact(lambda tr: tr.add(b"hits", (1).to_bytes(8, "little")))
"""

from cq.store.embedded.binding.error import FDBError
from cq.store.embedded.binding.keys import KeySelector, KeyValue
from cq.store.embedded.client.transaction import Transaction
from cq.store.embedded.database import Database
from cq.store.embedded.file.file import PRIVATE, is_writable, made_at
from cq.store.embedded.read_only import ReadOnlyDatabase

__all__ = [
    "PRIVATE",
    "Database",
    "FDBError",
    "KeySelector",
    "KeyValue",
    "ReadOnlyDatabase",
    "Transaction",
    "is_writable",
    "made_at",
]
