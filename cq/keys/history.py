"""The keys of a queue's history, below `P "h"`; `P` is the prefix of the queue."""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.errors import CorruptData
from cq.keys.queue import QueueKeys, below

_MINUTE: Final = Struct(">I")
COUNTS: Final = b"c"
OLDEST: Final = b"o"


class HistoryKeys:
    r"""The keys of a queue's history. A minute is a number of minutes since 1970, in UTC.

        minute4 "c"   counts of the work in the minute             workers (atomic addition)
        minute4 "o"   highest age of an update that passes left    workers (atomic maximum)

    >>> HistoryKeys("words").counts(1)
    b'cq/q/words/h\x00\x00\x00\x01c'
    """

    def __init__(self, name: str) -> None:
        self._prefix = QueueKeys(name).prefix + b"h"

    def counts(self, minute: int) -> bytes:
        """The key of the counts of a minute."""
        return self._prefix + _MINUTE.pack(minute) + COUNTS

    def oldest(self, minute: int) -> bytes:
        """The key of the highest age in a minute."""
        return self._prefix + _MINUTE.pack(minute) + OLDEST

    def between(self, first: int, end: int) -> tuple[bytes, bytes]:
        """The range of the minutes from `first` up to `end`, without `end`."""
        return self._prefix + _MINUTE.pack(first), self._prefix + _MINUTE.pack(end)

    def outside(self, first: int, end: int) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """The ranges of all other minutes: those before `first`, and those from `end` on."""
        begin, after_all = below(self._prefix)
        inside = self.between(first, end)
        return (begin, inside[0]), (inside[1], after_all)


def letter_of(rest: bytes) -> bytes:
    """The last letter of a key, given its rest after the prefix of the history; raises `CorruptData`."""
    letter = rest[_MINUTE.size :]
    if letter not in (COUNTS, OLDEST):
        raise CorruptData("cq writes no key of this form")
    return letter
