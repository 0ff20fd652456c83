"""The keys of reports that observers missed, all below `P "m"`; P is the prefix of the queue.

Numbers are big-endian, so that keys sort as the numbers do. `h` is the hash of the encoded key, `g` the generation of
an observer.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import QueueKeys, bucket_range, prefix_end

_NUMBER: Final = Struct(">I")


class MissedKeys:
    r"""The keys of the reports that observers of a queue missed.

        "g" g4 h4 key   what the observer last received of the key, or nothing at all   a pass
        "n" h4 key      why, for the operator                                           a pass
        "r" h4 key      ""  for a report that is to be retried                          the operator, cleared by a pass

    >>> MissedKeys("words").received(1, b"\x00\x00\x00\x02ehello")
    b'cq/q/words/mg\x00\x00\x00\x01\x00\x00\x00\x02ehello'
    """

    def __init__(self, name: str) -> None:
        self.prefix = QueueKeys(name).prefix + b"m"
        self._received = self.prefix + b"g"
        self._notes = self.prefix + b"n"
        self._retries = self.prefix + b"r"

    def received(self, generation: int, where: bytes) -> bytes:
        """The key of what an observer last received of the key at a place in hash order."""
        return self._received + _NUMBER.pack(generation) + where

    def of_generation(self, generation: int) -> tuple[bytes, bytes]:
        """The range of what an observer last received of each key of which it missed a report."""
        begin = self.received(generation, b"")
        return begin, prefix_end(begin)

    def of_generations(self) -> tuple[bytes, bytes]:
        """The same, of all observers."""
        return self._received, prefix_end(self._received)

    def of_bucket(self, generation: int, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The same, of a bucket's keys."""
        return bucket_range(self.received(generation, b""), buckets, bucket)

    def note(self, where: bytes) -> bytes:
        """The key of the reason why reports of a key were missed."""
        return self._notes + where

    def notes(self) -> tuple[bytes, bytes]:
        """The range of all reasons, in hash order."""
        return self._notes, prefix_end(self._notes)

    def place_of_note(self, key: bytes) -> bytes:
        """The inverse of `note`."""
        return key[len(self._notes) :]

    def retry(self, where: bytes) -> bytes:
        """The key that asks for another report of a key."""
        return self._retries + where

    def retries(self) -> tuple[bytes, bytes]:
        """The range of all reports to be retried."""
        return self._retries, prefix_end(self._retries)

    def retries_of_bucket(self, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of a bucket's reports to be retried, in hash order."""
        return bucket_range(self._retries, buckets, bucket)

    def place_of_retry(self, key: bytes) -> bytes:
        """The inverse of `retry`."""
        return key[len(self._retries) :]
