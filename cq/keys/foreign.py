"""Parsing of keys that cq may not have written: other programs can write into the ranges of a queue, too.

The functions take the prefix of a range and a key in the range, of any length.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.keys.queue import VERSIONSTAMP_BYTES

_BUCKET: Final = Struct(">II")
_COUNTER_BYTES: Final = 8


def is_row(prefix: bytes, key: bytes) -> bool:
    """Whether a key in the range of a bucket's rows has the form that cq writes."""
    return len(key) == len(prefix) + VERSIONSTAMP_BYTES + _COUNTER_BYTES


def versionstamp_in(prefix: bytes, key: bytes) -> bytes:
    r"""The versionstamp after a prefix; for a key that is too short, the lowest one after it in key order.

    >>> versionstamp_in(b"u", b"u\xff").hex()
    'ff000000000000000000'
    """
    return key[len(prefix) : len(prefix) + VERSIONSTAMP_BYTES].ljust(VERSIONSTAMP_BYTES, b"\x00")


def later_than(prefix: bytes, version: int) -> bytes:
    """The first possible key that was committed after `version`."""
    return prefix + (version + 1).to_bytes(8, "big")


def bucket_in(prefix: bytes, key: bytes) -> tuple[int, int] | None:
    """Generation and bucket in the key of a notification; None if it does not have the form that cq writes."""
    if len(key) != len(prefix) + _BUCKET.size:
        return None
    generation, bucket = _BUCKET.unpack(key[len(prefix) :])
    return generation, bucket
