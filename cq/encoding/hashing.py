"""Hashes of keys, and the buckets that they fall into.

A hash is a number of 32 bits. Of n buckets, number b has all hashes h with h * n >> 32 == b: a contiguous range, so
that values need not move when the number of buckets changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

HASHES: Final = 1 << 32
"""How many hashes there are."""
_BITS: Final = 32


def key_hash(encoded_key: bytes) -> int:
    """The stable hash (CRC-32) by which keys are spread over buckets.

    >>> key_hash(b"ehello")
    432631505
    """
    return crc32(encoded_key)


def bucket_at(hashed: int, buckets: int) -> int:
    """The bucket that a hash is in."""
    return hashed * buckets >> _BITS


def bucket_of(encoded_key: bytes, buckets: int) -> int:
    """The bucket of an encoded key.

    >>> bucket_of(b"ehello", 16)
    1
    """
    return crc32(encoded_key) * buckets >> _BITS


def buckets_of(encoded_keys: Iterable[bytes], buckets: int) -> list[int]:
    """The bucket of each encoded key."""
    return [crc32(key) * buckets >> _BITS for key in encoded_keys]


def bucket_bounds(buckets: int, bucket: int) -> tuple[int, int]:
    """First hash of a bucket and first hash behind it.

    >>> bucket_bounds(4, 3)
    (3221225472, 4294967296)
    """
    return -(-(bucket << _BITS) // buckets), -(-((bucket + 1) << _BITS) // buckets)


def overlapping(buckets: int, bucket: int, others: int) -> range:
    """Which of so many other buckets share hashes with a bucket.

    >>> overlapping(4, 1, 8), overlapping(3, 1, 2)
    (range(2, 4), range(0, 2))
    """
    first, end = bucket_bounds(buckets, bucket)
    return range(bucket_at(first, others), bucket_at(end - 1, others) + 1)
