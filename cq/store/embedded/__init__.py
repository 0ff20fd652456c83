"""FoundationDB's transactions on one SQLite file: the Python binding's Database and Transaction, and its errors.

From the ground up: `keys`, `atomic`, `error` and `future` have the types and numbers of the binding; `file` and
`lock_file` say who may open a store, and which process may commit; `writes` keeps what one transaction has written and
read; `snapshots`, `conflict_log`, `watches`, `wal`, `committer` and `engine` are of one open file; `state`, `reading`
and `transaction` are of one transaction. A module imports only those before it, and none imports the binding itself.

db = Database("counters.db")
db.transact(lambda tr: tr.add(b"hits", (1).to_bytes(8, "little")))
"""

from cq.store.embedded.database import Database
from cq.store.embedded.error import FDBError
from cq.store.embedded.file import PRIVATE, is_writable, made_at
from cq.store.embedded.keys import KeySelector, KeyValue
from cq.store.embedded.read_only import ReadOnlyDatabase
from cq.store.embedded.transaction import Transaction

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
