"""Keys as they are found in a queue's ranges, where others than cq may have written, too.

The functions take the prefix of the range, and tell what a key behind it says, whatever its length.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import VERSIONSTAMP_BYTES

_BUCKET: Final = Struct(">II")
_COUNTER_BYTES: Final = 8


def is_row(prefix: bytes, key: bytes) -> bool:
    """Whether a key among the rows of a bucket is one that cq writes."""
    return len(key) == len(prefix) + VERSIONSTAMP_BYTES + _COUNTER_BYTES


def versionstamp_in(prefix: bytes, key: bytes) -> bytes:
    r"""The versionstamp behind a prefix; of a key that is too short, the lowest of those that it sorts before.

    >>> versionstamp_in(b"u", b"u\xff").hex()
    'ff000000000000000000'
    """
    return key[len(prefix) : len(prefix) + VERSIONSTAMP_BYTES].ljust(VERSIONSTAMP_BYTES, b"\x00")


def later_than(prefix: bytes, version: int) -> bytes:
    """Where those begin that are stamped later than a version."""
    return prefix + (version + 1).to_bytes(8, "big")


def bucket_in(prefix: bytes, key: bytes) -> tuple[int, int] | None:
    """Generation and bucket in a notification's key; None when it is not one that cq writes."""
    if len(key) != len(prefix) + _BUCKET.size:
        return None
    generation, bucket = _BUCKET.unpack(key[len(prefix) :])
    return generation, bucket
