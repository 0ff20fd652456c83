"""What a bucket keeps in the store beside its rows and values: its state, and what its worker remembers of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from cq import codec
from cq.errors import CorruptData

ABSENT: Final = object()
"""Remembered of a key that has no current value."""
UNKNOWN: Final = object()
"""Told of a key whose value is too large to be remembered."""


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket's state, written by every pass that changes anything: the lock between passes.

    Attributes:
        token: random, fresh for each pass; a worker that finds its own knows that nobody has passed since.
        staged: whether updates folded ahead of their report may exist.
        cursor: hash and encoded key of the last key reported while others waited; empty at first.
        unfinished_since: read version of the first of the passes since which the bucket could not be read to its
            end; 0 when the last one could.
    """

    token: bytes = b""
    staged: bool = False
    cursor: bytes = b""
    unfinished_since: int = 0

    def to_bytes(self) -> bytes:
        """As stored."""
        return codec.encode([self.token, self.staged, self.cursor, self.unfinished_since])

    @classmethod
    def from_bytes(cls, data: bytes | None) -> BucketState:
        """The inverse of `to_bytes`; None is the state of a bucket that no pass has touched."""
        if data is None:
            return cls()
        content = codec.decode(data)
        if not isinstance(content, list) or list(map(type, content)) != [bytes, bool, bytes, int]:
            raise CorruptData(f"a bucket's state is not one that cq wrote: {data!r}")
        return cls(*content)


def fresh_token() -> bytes:
    """A token that no other pass has."""
    return secrets.token_bytes(12)


@dataclass(slots=True)
class Memory:
    """Current values that a worker remembers of a bucket, valid while the bucket's token is its own.

    Taken over only after a known commit. Bounded by the number and the size of values.
    """

    max_values: int = 20_000
    max_value_bytes: int = 200
    token: bytes = b""
    values: dict[bytes, Any] = field(default_factory=dict)

    def forget(self) -> None:
        """Remember nothing: somebody else may have passed."""
        self.token = b""
        self.values.clear()

    def take(self, token: bytes, values: dict[bytes, Any]) -> None:
        """Take over the values that a committed pass has written."""
        if len(self.values) + len(values) > self.max_values:
            self.values.clear()
        for encoded_key, value in values.items():
            if value is UNKNOWN:
                self.values.pop(encoded_key, None)
            elif len(self.values) < self.max_values:
                self.values[encoded_key] = value
        self.token = token
