"""A queue's flags: its pause, its priority and its limits.

They are a value of their own. Adds do not read it, so a change of it does not abort them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, get_args, get_type_hints

from cq import keys
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.store.api import Transaction, TransactionRead

DEFAULT_PRIORITY: Final = 10
MAX_PRIORITY: Final = 100


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings of a queue that workers read and adds do not, so that changing them does not abort adds.

    Attributes:
        paused, reason: whether the queue is paused, and why.
        until: the end of the pause in seconds since 1970; None if it lasts until `resume`.
        max_seconds, max_bytes, when_full: the limits of the backlog, see `cq.admin.limit`.
        priority: the queue's share of the workers' time, relative to other queues with work; 1 to 100.
    """

    paused: bool = False
    reason: str = ""
    until: float | None = None
    priority: int = DEFAULT_PRIORITY
    max_seconds: float | None = None
    max_bytes: int | None = None
    when_full: str = "raise"

    def is_paused(self, now: float) -> bool:
        """Whether the queue is paused at the time `now`, in seconds since 1970."""
        return self.paused and (self.until is None or now < self.until)

    @property
    def is_limited(self) -> bool:
        """Whether the backlog has limits."""
        return self.max_seconds is not None or self.max_bytes is not None

    def to_bytes(self) -> bytes:
        """The stored form of the flags."""
        return codec.encode(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Flags:
        """The inverse of `to_bytes`; the default flags for None. Raises `CorruptData`."""
        if data is None:
            return cls()
        stored = codec.decode(data)
        if (
            type(stored) is not dict
            or not all(what in _FLAGS and _is_flag(what, value) for what, value in stored.items())
            or not 1 <= stored.get("priority", DEFAULT_PRIORITY) <= MAX_PRIORITY
        ):
            raise CorruptData(f"the flags of a queue are not ones that cq wrote: {data[:40]!r}")
        return cls(**stored)


def _is_flag(what: str, value: object) -> bool:
    kinds = _FLAGS[what]
    return type(value) in kinds or (type(value) is int and float in kinds and abs(value) < 1 << 63)


_FLAGS: Final = {what: get_args(kind) or (kind,) for what, kind in get_type_hints(Flags).items()}


def read_flags(tr: TransactionRead, name: str) -> Flags:
    """The flags of a queue: its pause, its limits and its priority."""
    return Flags.from_bytes(tr.get(QueueKeys(name).flags).value)


def change_flags(tr: Transaction, name: str, **changes: Any) -> None:
    """Change some of a queue's flags, and wake workers so that they read them.

    The caller has read the configuration with a conflict range.
    """
    before = read_flags(tr, name)
    after = replace(before, **changes)
    if after != before:
        tr.set(QueueKeys(name).flags, after.to_bytes())
        tr.set_versionstamped_value(keys.CHANGED, keys.INCOMPLETE_VERSIONSTAMP)
