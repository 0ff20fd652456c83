"""The keys of reports that observers missed, below `P "m"`; `P` is the prefix of the queue.

`h` is the hash of the encoded key, `g` the generation of an observer.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import QueueKeys, below, bucket_range

_NUMBER: Final = Struct(">I")


class MissedKeys:
    r"""The keys of the reports that observers of a queue missed.

        "g" g4 h4 key   the value that the observer last received, or that it had none  a pass
        "n" h4 key      the reason, for the operator                                    a pass
        "r" h4 key      "", while the report waits for a retry                          the operator, cleared by a pass

    >>> MissedKeys("words").received(1, b"\x00\x00\x00\x02ehello")
    b'cq/q/words/mg\x00\x00\x00\x01\x00\x00\x00\x02ehello'
    """

    def __init__(self, name: str) -> None:
        self.prefix = QueueKeys(name).prefix + b"m"
        self._received = self.prefix + b"g"
        self._notes = self.prefix + b"n"
        self._retries = self.prefix + b"r"

    def received(self, generation: int, where: bytes) -> bytes:
        """The key of the value that an observer last received for the key at a place in hash order."""
        return self._received + _NUMBER.pack(generation) + where

    def of_generation(self, generation: int) -> tuple[bytes, bytes]:
        """The range of the last received values of the keys of which an observer missed a report."""
        return below(self.received(generation, b""))

    def of_generations(self) -> tuple[bytes, bytes]:
        """The range of these values for all observers."""
        return below(self._received)

    def of_bucket(self, generation: int, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of these values for one observer and a bucket's keys."""
        return bucket_range(self.received(generation, b""), buckets, bucket)

    def note(self, where: bytes) -> bytes:
        """The key of the reason why observers missed reports of a key."""
        return self._notes + where

    def notes(self) -> tuple[bytes, bytes]:
        """The range of all reasons, in hash order."""
        return below(self._notes)

    def place_of_note(self, key: bytes) -> bytes:
        """The inverse of `note`."""
        return key[len(self._notes) :]

    def retry(self, where: bytes) -> bytes:
        """The key that requests another report of a key."""
        return self._retries + where

    def retries(self) -> tuple[bytes, bytes]:
        """The range of all requested reports."""
        return below(self._retries)

    def retries_of_bucket(self, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of a bucket's requested reports, in hash order."""
        return bucket_range(self._retries, buckets, bucket)

    def place_of_retry(self, key: bytes) -> bytes:
        """The inverse of `retry`."""
        return key[len(self._retries) :]
