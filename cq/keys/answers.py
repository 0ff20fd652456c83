"""The keys of the answers to requests, below `P "A"`; `P` is the prefix of the queue.

A ticket is the hash of the encoded key and 16 bytes that no other request of the key has.
"""

from __future__ import annotations

from typing import Final

from cq.keys.queue import VERSIONSTAMP_BYTES, QueueKeys, below, bucket_range, stamped

TICKET_BYTES: Final = 20
_PAGE_BYTES: Final = 4


class AnswerKeys:
    r"""The keys of the answers of a queue with a decider.

        "a" ticket20            version8, outcome1, answer  a pass, trimmed by workers
        "d" versionstamp10 n4   tickets that a pass answered  a pass, trimmed by workers
        "w" ticket20            ""                          whoever withdraws a request, cleared by a pass

    >>> AnswerKeys("stock").answer(b"\x00\x01\x02\x03" + b"t" * 16)
    b'cq/q/stock/Aa\x00\x01\x02\x03tttttttttttttttt'
    """

    def __init__(self, name: str) -> None:
        self.prefix = QueueKeys(name).prefix + b"A"
        self._answers = self.prefix + b"a"
        self._decided = self.prefix + b"d"
        self._withdrawn = self.prefix + b"w"

    def answer(self, ticket: bytes) -> bytes:
        """The key of the answer to the request with this ticket."""
        return self._answers + ticket

    def new_decided(self, number: int) -> bytes:
        """The key argument of `set_versionstamped_key` for tickets that a pass answers; `number` orders its rows."""
        return stamped(self._decided, number.to_bytes(_PAGE_BYTES, "big"))

    def decided(self) -> tuple[bytes, bytes]:
        """The range of the tickets of all answers, in the order of their commits."""
        return below(self._decided)

    def versionstamp_of_decided(self, key: bytes) -> bytes:
        """The versionstamp in the key of tickets that a pass answered."""
        return key[len(self._decided) :][:VERSIONSTAMP_BYTES]

    def withdrawn(self, ticket: bytes) -> bytes:
        """The key which says that a request is withdrawn."""
        return self._withdrawn + ticket

    def withdrawn_of_bucket(self, buckets: int, bucket: int) -> tuple[bytes, bytes]:
        """The range of these keys for the requests of a bucket."""
        return bucket_range(self._withdrawn, buckets, bucket)
