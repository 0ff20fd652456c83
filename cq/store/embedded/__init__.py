"""FoundationDB's transactions on one SQLite file: the Python binding's Database and Transaction, and its errors.

db = Database("counters.db")
db.transact(lambda tr: tr.add(b"hits", (1).to_bytes(8, "little")))
"""

from .access import PRIVATE
from .database import Database
from .error import FDBError
from .file import is_writable
from .keys import KeySelector, KeyValue
from .readonly import ReadOnlyDatabase
from .transaction import Transaction

__all__ = [
    "PRIVATE",
    "Database",
    "FDBError",
    "KeySelector",
    "KeyValue",
    "ReadOnlyDatabase",
    "Transaction",
    "is_writable",
]
