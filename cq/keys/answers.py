"""The keys of the answers to requests, below `P "A"`; `P` is the prefix of the queue.

A ticket is the hash of the encoded key (4 bytes), a group (14) and a position (2). The requests that a transaction
queues in one bucket by one call are a group, whose answers are one row. Other requests are alone in their groups.
"""

from __future__ import annotations

from typing import Final

from cq.keys.queue import Prefix, QueueKeys, stamped

TICKET_BYTES: Final = 20
GROUP_BYTES: Final = 14
ALONE: Final = 0xFFFF
"""The position in a ticket of a request that is alone in its group."""
_HASH_BYTES: Final = TICKET_BYTES - GROUP_BYTES - 2
_PAGE_BYTES: Final = 4


def group_of(ticket: bytes) -> bytes:
    """The group of the request with this ticket."""
    return ticket[_HASH_BYTES:-2]


def position_of(ticket: bytes) -> int:
    """The position in its group of the request with this ticket."""
    return ticket[-2] << 8 | ticket[-1]


class AnswerKeys:
    r"""The keys of the answers of a queue with a decider.

        "a" group14             version8, answers by position  a pass, trimmed by workers
        "a" group14 position2   an answer of over 200 bytes  a pass, trimmed by workers
        "d" versionstamp10 n4   groups that a pass answered  a pass, trimmed by workers
        "w" ticket20            ""                          whoever withdraws a request, cleared by a pass

    >>> AnswerKeys("stock").answers(b"g" * 14)
    b'cq/q/stock/Aagggggggggggggg'

    Attributes:
        decided: the prefix of the groups of all answers, in the order of their commits.
        all_withdrawn: the prefix of the keys of withdrawn requests.
    """

    def __init__(self, name: str) -> None:
        self.prefix = QueueKeys(name).prefix + b"A"
        self._answers = self.prefix + b"a"
        self.decided = Prefix(self.prefix + b"d")
        self.all_withdrawn = Prefix(self.prefix + b"w")

    def answers(self, group: bytes) -> Prefix:
        """The key of the answers to the requests of a group, and the prefix of those of its large answers."""
        return Prefix(self._answers + group)

    def large(self, group: bytes, position: int) -> bytes:
        """The key of a large answer to the request at a position of a group."""
        return self._answers + group + position.to_bytes(2, "big")

    def new_decided(self, number: int) -> bytes:
        """The key argument of `set_versionstamped_key` for groups that a pass answers; `number` orders its rows."""
        return stamped(self.decided, number.to_bytes(_PAGE_BYTES, "big"))

    def withdrawn(self, ticket: bytes) -> bytes:
        """The key which says that a request is withdrawn."""
        return self.all_withdrawn + ticket
