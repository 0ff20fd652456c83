"""The keys of a queue's audit, below `P "j"`; `P` is the prefix of the queue."""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import QueueKeys, below

_GENERATION: Final = Struct(">I")
_BUCKET: Final = Struct(">II")


class AuditKeys:
    r"""The keys of a queue's audit; each start of the audit begins a new generation.

        g4 bucket4 "a"   sum of the added updates                  add (blind)
        g4 bucket4 "d"   sum of the dropped updates                passes, `cq aside drop` (blind)
        g4 bucket4 "i"   exists once "a" includes older updates    the process that starts the audit

    >>> AuditKeys("words").added(1, 2)
    b'cq/q/words/j\x00\x00\x00\x01\x00\x00\x00\x02a'
    """

    def __init__(self, name: str) -> None:
        self._prefix = QueueKeys(name).prefix + b"j"

    def added(self, generation: int, bucket: int) -> bytes:
        """The key of the sum of the updates added to a bucket."""
        return self._prefix + _BUCKET.pack(generation, bucket) + b"a"

    def dropped(self, generation: int, bucket: int) -> bytes:
        """The key of the sum of the updates dropped from a bucket."""
        return self._prefix + _BUCKET.pack(generation, bucket) + b"d"

    def included(self, generation: int, bucket: int) -> bytes:
        """The key that exists once the sum of added updates includes the bucket's content at the start of the audit."""
        return self._prefix + _BUCKET.pack(generation, bucket) + b"i"

    def of_generation(self, generation: int) -> tuple[bytes, bytes]:
        """The range of all keys of a generation of the audit."""
        return below(self._prefix + _GENERATION.pack(generation))
