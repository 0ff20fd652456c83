"""Requests: the updates of a queue with a decider, and their tickets.

A request is queued as an update of its key is, as a list of its ticket and its content. So adds of requests are blind,
in commit order and counted once, by the same rows and operation ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from cq import runtime
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.codec import MAX_UPDATE_BYTES
from cq.encoding.hashing import key_hash
from cq.errors import InvalidConfiguration, InvalidData
from cq.keys.answers import TICKET_BYTES

_HASH_BYTES: Final = 4
_TIME_BYTES: Final = 6
_ID_BYTES: Final = TICKET_BYTES - _HASH_BYTES


class Request:
    """A request of a key, as an update of a queue with a decider.

    Args:
        content: what the decider gets.
        operation: the operation id under which it is added; None: none of its own.

    Attributes:
        ticket: None until it is packed.
    """

    __slots__ = ("content", "operation", "ticket")

    def __init__(self, content: object, operation: bytes | None = None) -> None:
        self.content = content
        self.operation = operation
        self.ticket: bytes | None = None

    def __str__(self) -> str:
        """Its ticket as text."""
        return (self.ticket or b"").hex()

    def packed(self, encoded_key: bytes) -> list[Any]:
        """As it is stored in a row; raises `InvalidData` or `TooLarge`."""
        codec.encode_value(self.content, MAX_UPDATE_BYTES)
        if self.ticket is None:
            self.ticket = _new_ticket(encoded_key, self.operation)
        return [self.ticket, self.content]


def operation_of(key: object, once: str | bytes | None) -> bytes | None:
    """The operation id of a request of a key, which others of the same `once` and key have, too; None without one."""
    if once is None:
        return None
    return blake2b(codec.encode([codec.encode_operation(once), key]), digest_size=_ID_BYTES).digest()


def _new_ticket(encoded_key: bytes, operation: bytes | None) -> bytes:
    """A ticket: with an operation id always the same one.

    Others begin with the time, so that answers to requests of one key are stored in about the order of the requests.
    """
    place = key_hash(encoded_key).to_bytes(_HASH_BYTES, "big")
    if operation is not None:
        return place + operation
    milliseconds = runtime.time_ns() // 1_000_000
    return place + milliseconds.to_bytes(_TIME_BYTES, "big") + runtime.token_bytes(_ID_BYTES - _TIME_BYTES)


def is_request(update: object) -> bool:
    """Whether a queued update is a request."""
    return (
        isinstance(update, list)
        and len(update) == 2
        and type(update[0]) is bytes
        and len(update[0]) == TICKET_BYTES
    )


def parse_ticket(ticket: object) -> bytes:
    """The bytes of a ticket; raises `InvalidData`."""
    try:
        found = bytes.fromhex(ticket)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = b""
    if len(found) != TICKET_BYTES:
        raise InvalidData(f"expected a ticket that `ask` has returned, got: {codec.shown(ticket)}")
    return found


def pack_requests(config: QueueConfig, encoded_keys: Sequence[bytes], values: Sequence[Any]) -> list[Any]:
    """These requests as they are stored in rows; raises `InvalidData` unless all are valid ones."""
    for value in values:
        if type(value) is not Request:
            raise refused_update(config)
    return [value.packed(encoded) for encoded, value in zip(encoded_keys, values, strict=True)]


def refused_update(config: QueueConfig) -> InvalidData:
    """The error for an update of a queue that takes requests."""
    return InvalidData(
        f"queue {config.name!r} has a decider, so it takes requests and no updates: call `ask` or `ask_now`, or run "
        "`cq ask`"
    )


def refuse_without_decider(config: QueueConfig) -> None:
    """Raise `InvalidConfiguration` unless a queue takes requests."""
    if config.decider is None:
        raise InvalidConfiguration(
            f"queue {config.name!r} has no decider, so nobody would answer: configure it with `decider=`, or call `add`"
        )
