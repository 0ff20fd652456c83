"""The keys of a queue's outbox, below `P "g"`; `P` is the prefix of the queue."""

from __future__ import annotations

from cq.keys.link import OUTBOX
from cq.keys.notes import NoteKeys
from cq.keys.queue import QueueKeys


class OutboxKeys(NoteKeys):
    r"""The keys of the outbox of one queue, below `P "g"`.

        "o"   name of the URL's variable, schema                         cq outbox init
        "b"   the latest batch, the one before, ids not known as deleted the worker that moves rows (the lock)
        "k"   notification: the table may have rows                      workers, cq outbox init
        "f"   failure: reason, start                                     workers
        "s"   reason of a stop                                           workers
        "c"   whether it is paused                                       cq link pause, cq link resume

    >>> OutboxKeys("words").state
    b'cq/q/words/gb'
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, OUTBOX, QueueKeys(name).prefix + b"g")
        self.settings = self.prefix + b"o"
        self.state = self.prefix + b"b"
