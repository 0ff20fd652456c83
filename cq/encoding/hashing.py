"""Hashes of keys, and their buckets.

A hash is a number of 32 bits. Bucket b of n has all hashes h with h * n >> 32 == b. This is a contiguous range, so
values, which are stored in hash order, do not move when the number of buckets changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

HASHES: Final = 1 << 32
"""The number of hashes."""
_BITS: Final = 32

key_hash: Final = crc32
"""The hash that determines the bucket of an encoded key; it is stored, so it must never change."""


def bucket_at(hashed: int, buckets: int) -> int:
    """The bucket of a hash."""
    return hashed * buckets >> _BITS


def bucket_of(encoded_key: bytes, buckets: int) -> int:
    """The bucket of a key, `encoded_key`.

    >>> bucket_of(b"ehello", 16)
    1
    """
    return key_hash(encoded_key) * buckets >> _BITS


def buckets_of(encoded_keys: Iterable[bytes], buckets: int) -> list[int]:
    """The bucket of each encoded key."""
    return [key_hash(key) * buckets >> _BITS for key in encoded_keys]


def bucket_bounds(buckets: int, bucket: int) -> tuple[int, int]:
    """The first hash of a bucket, and the first hash after the bucket.

    >>> bucket_bounds(4, 3)
    (3221225472, 4294967296)
    """
    return -(-(bucket << _BITS) // buckets), -(-((bucket + 1) << _BITS) // buckets)


def overlapping(buckets: int, bucket: int, others: int) -> range:
    """The buckets of another shape, of `others` buckets, that share hashes with a bucket.

    >>> overlapping(4, 1, 8), overlapping(3, 1, 2)
    (range(2, 4), range(0, 2))
    """
    first, end = bucket_bounds(buckets, bucket)
    return range(bucket_at(first, others), bucket_at(end - 1, others) + 1)
