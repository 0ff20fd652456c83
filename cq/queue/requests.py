"""Requests: the updates of a queue with a decider, and their tickets.

A request is queued as an update of its key is, as a list of its ticket and its content. So adds of requests are blind,
in commit order and counted once, by the same rows and operation ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from cq import runtime
from cq.config.decider import DeciderConfig
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.codec import MAX_UPDATE_BYTES
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import InvalidConfiguration, InvalidData
from cq.keys.answers import ALONE, GROUP_BYTES, TICKET_BYTES

_TIME_BYTES: Final = 6
_OPERATION_BYTES: Final = 16
_MAX_GROUP: Final = 256
"""Requests of a group, at most: the row of their answers should stay below 10 kB."""


class Request:
    """A request of a key, as an update of a queue with a decider.

    Args:
        content: what the decider gets.
        operation: the operation id of this request, which gives it its ticket; None: none of its own.

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


def operation_of(key: object, once: str | bytes | None) -> bytes | None:
    """The operation id of a request of a key, which others of the same `once` and key have, too; None without one."""
    return None if once is None else _digest([codec.encode_operation(once), key])


def operations_of(number: int, once: str | bytes | None) -> tuple[bytes | None, list[bytes | None]]:
    """The operation id of a call with `number` requests, and that of each of them; None without `once`."""
    if once is None:
        return None, [None] * number
    operation = codec.encode_operation(once)
    # In another order than those of single requests, with which they share no id.
    return _digest([operation]), [_digest([place, operation]) for place in range(number)]


def _digest(content: list[Any]) -> bytes:
    return blake2b(codec.encode(content), digest_size=_OPERATION_BYTES).digest()


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
    """These requests as they are stored in rows; raises `InvalidData` or `TooLarge` unless all are valid ones."""
    if set(map(type, values)) - {Request}:
        raise refused_update(config)
    requests: Sequence[Request] = values
    contents = [each.content for each in requests]
    codec.encode_values(contents, MAX_UPDATE_BYTES)
    new: dict[int, list[tuple[bytes, Request]]] = {}
    for encoded, each in zip(encoded_keys, requests, strict=True):
        if each.ticket is not None:  # of an earlier try, which may have committed
            continue
        hashed = key_hash(encoded)
        if each.operation is not None:
            each.ticket = hashed.to_bytes(4, "big") + each.operation[:GROUP_BYTES] + ALONE.to_bytes(2, "big")
        else:
            new.setdefault(bucket_at(hashed, config.buckets), []).append((hashed.to_bytes(4, "big"), each))
    for some in new.values():
        _group(some)
    return [[each.ticket, content] for each, content in zip(requests, contents, strict=True)]


def _group(requests: list[tuple[bytes, Request]]) -> None:
    """Give tickets to requests of one bucket, each with the hash of its key.

    Groups begin with the time, so that they are stored in about the order of the requests.
    """
    time = (runtime.time_ns() // 1_000_000).to_bytes(_TIME_BYTES, "big")
    for first in range(0, len(requests), _MAX_GROUP):
        some = requests[first : first + _MAX_GROUP]
        group = time + runtime.token_bytes(GROUP_BYTES - _TIME_BYTES)
        for position, (hashed, each) in enumerate(some, start=0 if len(some) > 1 else ALONE):
            each.ticket = hashed + group + position.to_bytes(2, "big")


def refused_update(config: QueueConfig) -> InvalidData:
    """The error for an update of a queue that takes requests."""
    return InvalidData(
        f"queue {config.name!r} has a decider, so it takes requests and no updates: call `ask` or `ask_now`, or run "
        "`cq ask`"
    )


def decider_of(config: QueueConfig) -> DeciderConfig:
    """The decider of a queue; raises `InvalidConfiguration` unless it has one, and so takes requests."""
    if config.decider is None:
        raise InvalidConfiguration(
            f"queue {config.name!r} has no decider, so nobody would answer: configure it with `decider=`, or call `add`"
        )
    return config.decider
