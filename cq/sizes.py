"""What writes count towards the size of a transaction, as FoundationDB counts them.

A mutation counts with its key and value, and again with both ends of its write conflict range. So a key counts three
times when it is set, and four times when it is cleared.
"""

from __future__ import annotations

from typing import Final

SET_COPIES: Final = 3
CLEAR_COPIES: Final = 4
WRITE_BYTES: Final = 75
"""What a set or a clear costs in addition to its key and value, about."""
_RANGE_BYTES: Final = 26


def clear_bytes(key: bytes) -> int:
    """The bytes of clearing a key, about; setting it without a value costs less."""
    return CLEAR_COPIES * len(key) + WRITE_BYTES


def conflict_bytes(key: bytes) -> int:
    """The bytes of a read conflict range of a key, about."""
    return 2 * len(key) + _RANGE_BYTES
