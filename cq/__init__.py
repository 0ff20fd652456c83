"""cq: a transactional combine queue on FoundationDB, or on one file.

This module has what most programs use. Each other public name is in the package of its topic, such as `cq.admin`,
`cq.windows`, `cq.cells`, `cq.feeds`, `cq.links` and `cq.observers.top`.
"""

# So that `cq.outbox.add`, `cq.errors` and `cq.sketches` need no import of their own, for type checkers, too.
from cq import errors as errors
from cq import outbox as outbox
from cq import sketches as sketches
from cq.admin.configured_queue import configure
from cq.app import App
from cq.combiners import Combiner, changes
from cq.deciders import Decider
from cq.encoding.codec import DELETE
from cq.errors import CqError, EmitterFull, InvalidData, NoAnswer, QueueFull, StoreError
from cq.intake.emitter import Emitter
from cq.observer import Change, Observer
from cq.queue.combine_queue import CombineQueue
from cq.store import open  # noqa: A004 - cq.open reads as the built-in does
from cq.store.api import Database, Transaction
from cq.store.api import TransactionRead as Snapshot
from cq.store.transact import transact, transactional

__all__ = [
    "DELETE",
    "App",
    "Change",
    "CombineQueue",
    "Combiner",
    "CqError",
    "Database",
    "Decider",
    "Emitter",
    "EmitterFull",
    "InvalidData",
    "NoAnswer",
    "Observer",
    "QueueFull",
    "Snapshot",
    "StoreError",
    "Transaction",
    "changes",
    "configure",
    "open",
    "transact",
    "transactional",
]
