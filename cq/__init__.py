"""cq: a transactional combine queue on FoundationDB, or on one file. This module has the public names."""

import cq.outbox as _outbox  # noqa: F401 - so that `cq.outbox.add` needs no import of its own
import cq.sketches as _sketches  # noqa: F401 - as for `cq.outbox`
from cq.admin.configure import (
    put_observer,
    rebuild_observer,
    remove_observer,
)
from cq.admin.configured_queue import configure
from cq.admin.flags import (
    pause,
    prioritize,
    resume,
)
from cq.admin.purge import delete, purge
from cq.admin.rebucket import rebucket
from cq.app import App
from cq.cells.cells import Cells
from cq.cells.user_data import UserData
from cq.combiners import Combiner, changes
from cq.config.queue import QueueConfig
from cq.encoding.codec import DELETE
from cq.errors import CqError, EmitterFull, InvalidData, QueueFull, StoreError
from cq.intake.emitter import Emitter
from cq.observer import Change, Observer, ObserverSpec
from cq.queue.combine_queue import CombineQueue, Page
from cq.queue.limits import limit
from cq.store import open  # noqa: A004 - cq.open reads as the built-in does
from cq.store.api import Database, Transaction
from cq.store.api import TransactionRead as Snapshot
from cq.store.space import Space
from cq.store.transact import transact, transactional
from cq.windows.window import Window, WindowStatistics

__all__ = [
    "DELETE",
    "App",
    "Cells",
    "Change",
    "CombineQueue",
    "Combiner",
    "CqError",
    "Database",
    "Emitter",
    "EmitterFull",
    "InvalidData",
    "Observer",
    "ObserverSpec",
    "Page",
    "QueueConfig",
    "QueueFull",
    "Snapshot",
    "Space",
    "StoreError",
    "Transaction",
    "UserData",
    "Window",
    "WindowStatistics",
    "changes",
    "configure",
    "delete",
    "limit",
    "open",
    "pause",
    "prioritize",
    "purge",
    "put_observer",
    "rebucket",
    "rebuild_observer",
    "remove_observer",
    "resume",
    "transact",
    "transactional",
]
