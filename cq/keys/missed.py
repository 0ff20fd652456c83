"""The keys of reports that observers missed, below `P "m"`; `P` is the prefix of the queue.

`h` is the hash of the encoded key, `g` the generation of an observer.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import Prefix, QueueKeys, below, bucket_range

_NUMBER: Final = Struct(">I")


class MissedKeys:
    r"""The keys of the reports that observers of a queue missed.

        "g" g4 h4 key   the value that the observer last received, or that it had none  a pass
        "n" h4 key      the reason, for the operator                                    a pass
        "r" h4 key      "", while the report waits for a retry                          the operator, cleared by a pass

    >>> MissedKeys("words").received(1, b"\x00\x00\x00\x02ehello")
    b'cq/q/words/mg\x00\x00\x00\x01\x00\x00\x00\x02ehello'

    Attributes:
        of_generations: the prefix of the last received values, for all observers.
        notes, retries: the prefixes of the reasons, and of the requested reports, in hash order.
    """

    def __init__(self, name: str) -> None:
        self.prefix = QueueKeys(name).prefix + b"m"
        self.of_generations = Prefix(self.prefix + b"g")
        self.notes = Prefix(self.prefix + b"n")
        self.retries = Prefix(self.prefix + b"r")

    def received(self, generation: int, where: bytes) -> bytes:
        """The key of the value that an observer last received for the key at a place in hash order."""
        return self.of_generations + _NUMBER.pack(generation) + where

    def of_generation(self, generation: int) -> tuple[bytes, bytes]:
        """The range of the last received values of the keys of which an observer missed a report."""
        return below(self.received(generation, b""))

    def of_bucket(self, generation: int, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of these values for one observer and a bucket's keys."""
        return bucket_range(self.received(generation, b""), buckets, bucket)

    def note(self, where: bytes) -> bytes:
        """The key of the reason why observers missed reports of a key."""
        return self.notes + where

    def retry(self, where: bytes) -> bytes:
        """The key that requests another report of a key."""
        return self.retries + where
