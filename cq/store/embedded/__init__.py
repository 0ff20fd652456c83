"""FoundationDB's transactions on one SQLite file: the Python binding's Database and Transaction, and its errors.

db = Database("counters.db")
db.transact(lambda tr: tr.add(b"hits", (1).to_bytes(8, "little")))
"""

from .database import Database
from .error import FDBError
from .keys import KeySelector, KeyValue
from .transaction import Transaction

__all__ = ["Database", "FDBError", "KeySelector", "KeyValue", "Transaction"]
