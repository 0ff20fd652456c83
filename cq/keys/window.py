"""The keys of a queue's window, below `P "v"`; `P` is the prefix of the queue."""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import VERSIONSTAMP_BYTES, QueueKeys, below, stamped, version_of

MAX_TIME_MS: Final = (1 << 62) - 1
"""The latest time in a key, in milliseconds since 1970; later numbers are ends of ranges."""
_TIME: Final = Struct(">Q")
_COUNTER: Final = Struct(">Q")
_STAMPED_BYTES: Final = VERSIONSTAMP_BYTES + _COUNTER.size


class WindowKeys:
    r"""The keys of a queue's window. Times are milliseconds since 1970.

        "r" due8 versionstamp10 counter8   packed updates, which expire at `due8`    add (blind), cleared by workers
        "o" versionstamp10 counter8        "", for each row with an operation id     add (blind), cleared by workers
        "b"                                the lock of expiry                        workers
        "l"                                number of updates that were too late      add (blind)
        "f"                                number of updates with a future time      add (blind)

    >>> WindowKeys("visits").due_until(1_000)
    (b'cq/q/visits/vr', b'cq/q/visits/vr\x00\x00\x00\x00\x00\x00\x03\xe9')
    """

    def __init__(self, name: str) -> None:
        self.prefix = QueueKeys(name).prefix + b"v"
        self.lock = self.prefix + b"b"
        self.late = self.prefix + b"l"
        self.future = self.prefix + b"f"
        self._rows = self.prefix + b"r"
        self._operations = self.prefix + b"o"

    def rows(self) -> tuple[bytes, bytes]:
        """The range of all rows, in the order in which they expire."""
        return below(self._rows)

    def due_until(self, time: int) -> tuple[bytes, bytes]:
        """The range of the rows that expire up to and including a time."""
        # The end is exclusive, so it is one millisecond later. The bounds keep it within eight bytes.
        return self._rows, self._rows + _TIME.pack(min(max(time, -1), MAX_TIME_MS) + 1)

    def new_row(self, due: int, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for a row."""
        return stamped(self._rows + _TIME.pack(due), _COUNTER.pack(counter))

    def is_row(self, key: bytes) -> bool:
        """Whether a key in the range of rows has the form that cq writes."""
        return len(key) == len(self._rows) + _TIME.size + _STAMPED_BYTES

    def version_of(self, row: bytes) -> int:
        """The commit version in the key of a row."""
        return version_of(row[-_STAMPED_BYTES:])

    def due_of(self, key: bytes) -> int:
        """The time at which a row expires; for a key that is too short, the earliest time after it in key order."""
        start = len(self._rows)
        due: int = _TIME.unpack(key[start : start + _TIME.size].ljust(_TIME.size, b"\x00"))[0]
        return due

    def operations(self) -> tuple[bytes, bytes]:
        """The range of the keys for rows with operation ids, in commit order."""
        return below(self._operations)

    def new_operation(self, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for the second key of a row with an operation id."""
        return stamped(self._operations, _COUNTER.pack(counter))

    def operation_of(self, row: bytes) -> bytes:
        """The second key of a row with an operation id, given the row's key."""
        return self._operations + row[-_STAMPED_BYTES:]

    def stamp_of_operation(self, key: bytes) -> bytes:
        """The versionstamp in a row's second key; for a key that is too short, the lowest one that sorts after it."""
        start = len(self._operations)
        return key[start : start + VERSIONSTAMP_BYTES].ljust(VERSIONSTAMP_BYTES, b"\x00")

    def is_operation(self, key: bytes) -> bool:
        """Whether a key in the range of `operations` has the form that cq writes."""
        return len(key) == len(self._operations) + _STAMPED_BYTES
