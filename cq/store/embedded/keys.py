"""Keys, key selectors and rows, and the limits of the key space."""

from __future__ import annotations

from typing import Any, NamedTuple

USER_END = b"\xff"
"""User keys sort before it."""

SYSTEM_END = b"\xff\xff"
"""All keys sort before it. Keys from `USER_END` on need the system key options."""

MAX_KEY_BYTES = 10_000
MAX_VALUE_BYTES = 100_000
MAX_TRANSACTION_BYTES = 10_000_000
STAMP_BYTES = 10

Range = tuple[bytes, bytes]
"""A key range: its first key, and the first key after it."""


Row = tuple[bytes, bytes]
"""A key and its value."""


def key_bytes(key: Any) -> bytes:
    """A key argument as bytes: bytes, or an object with `as_foundationdb_key`."""
    if type(key) is bytes:
        return key
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key


def value_bytes(value: Any) -> bytes:
    """A value argument as bytes: bytes, or an object with `as_foundationdb_value`."""
    if type(value) is bytes:
        return value
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value


def clip(key: bytes) -> bytes:
    """A range bound of legal length with the same keys before it: no stored key is longer than the limit."""
    return key[: MAX_KEY_BYTES + 1]


def after(key: bytes) -> bytes:
    """The smallest key greater than `key`."""
    return key + b"\x00"


def strinc(prefix: bytes) -> bytes:
    """The first key after all keys that begin with `prefix`."""
    prefix = prefix.rstrip(b"\xff")
    if not prefix:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return prefix[:-1] + bytes([prefix[-1] + 1])


class KeySelector:
    """Selects the key `offset` keys after the last key before `key` (or at `key`, if `or_equal`)."""

    __slots__ = ("key", "offset", "or_equal")

    def __init__(self, key: Any, or_equal: bool, offset: int) -> None:
        self.key = key
        self.or_equal = or_equal
        self.offset = offset

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    def __repr__(self) -> str:
        return f"KeySelector({self.key!r}, {self.or_equal!r}, {self.offset!r})"

    @classmethod
    def last_less_than(cls, key: Any) -> KeySelector:
        """The last key before `key`."""
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: Any) -> KeySelector:
        """`key`, or the last one before it."""
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: Any) -> KeySelector:
        """The first key after `key`."""
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: Any) -> KeySelector:
        """`key`, or the first one after it."""
        return cls(key, False, 1)


class KeyValue(NamedTuple):
    """One row of a range: `.key` and `.value`, or `key, value = row`."""

    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"
