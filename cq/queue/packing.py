"""Packing of updates into queued rows: the rows that `CombineQueue.add` writes for each bucket.

For speed, built-in functions that loop in C process all updates of a transaction at once: the checks of types and
sizes, the encoding and hashing of keys, and one call of CBOR's encoder for each row. Only if that finds a wrong update
are the updates checked one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import cbor2

from cq.arguments import repeatable
from cq.combiners import REFUSED_FLOATS, check_combinable
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.cbor import dumps
from cq.encoding.codec import DELETE, MAX_UPDATE_BYTES, are_int64
from cq.encoding.hashing import buckets_of
from cq.errors import InvalidData, WrongType
from cq.queue.requests import Request, decider_of, pack_requests, refused_update

ROW_BYTES: Final = 8_000
"""Maximum bytes of a row with several updates: FoundationDB recommends values below 10 kB."""
# Types of at most nine bytes in CBOR, which need no check of size.
_NINE_BYTES: Final = frozenset((float, bool))


class Checked(NamedTuple):
    """Updates that a queue takes: their encoded keys and the updates, in the same order."""

    encoded: list[bytes]
    values: list[Any]

    @property
    def pairs(self) -> list[tuple[bytes, Any]]:
        """(encoded key, update) of each."""
        return list(zip(self.encoded, self.values, strict=True))


def check(config: QueueConfig, keys: list[Any], values: list[Any]) -> Checked:
    """These updates of these keys.

    Raises `InvalidData` or `TooLarge` unless the queue takes all.
    """
    encoded = config.key.encode_all(keys)
    check_updates(config, keys, values)
    return Checked(encoded, values)


def check_requests(config: QueueConfig, keys: list[Any], values: list[Any]) -> Checked:
    """These requests of these keys; raises `InvalidData` or `TooLarge` unless all values are valid requests."""
    encoded = config.key.encode_all(keys)
    return Checked(encoded, pack_requests(config, encoded, values))


def pack(
    buckets: int, updates: Checked, operation: bytes | None, times: Sequence[int] = ()
) -> dict[int, list[bytes]]:
    """The rows of these updates for each bucket that they touch, in CBOR, each of at most about `ROW_BYTES`.

    `times` has the time of each update in milliseconds, or one time for all; empty for a queue without times.
    """
    if len(times) > 1:
        return _pack_with_times(buckets, updates, operation, times)
    head = [operation, times[0]] if times else operation
    contents = _by_bucket(buckets, head, *updates)
    return {bucket: split(content) for bucket, content in contents.items()}


def _by_bucket(
    buckets: int, head: Any, encoded: Sequence[bytes], values: Sequence[Any]
) -> dict[int, list[Any]]:
    """{bucket: [head, encoded key, update, ...]} of the buckets with updates."""
    if buckets == 1 and encoded:
        return {0: [head, *chain.from_iterable(zip(encoded, values, strict=True))]}
    contents: dict[int, list[Any]] = {}
    for bucket, key, value in zip(buckets_of(encoded, buckets), encoded, values, strict=True):
        content = contents.get(bucket)
        if content is None:
            content = contents[bucket] = [head]
        content.append(key)
        content.append(value)
    return contents


def _pack_with_times(
    buckets: int, updates: Checked, operation: bytes | None, times: Sequence[int]
) -> dict[int, list[bytes]]:
    """The rows of updates that have a time each."""
    contents: dict[int, list[Any]] = {}
    for bucket, *each in zip(buckets_of(updates.encoded, buckets), times, *updates, strict=True):
        time, key, value = each
        content = contents.setdefault(bucket, [[operation, []]])
        content[0][1].append(time)
        content += (key, value)
    return {bucket: split(content) for bucket, content in contents.items()}


def split_pairs(updates: object) -> tuple[list[Any], list[Any]]:
    """The keys and the updates of a dict, or of pairs, in order.

    Raises `WrongType` for any other object, `OneShotIterable` for an iterator.
    """
    if type(updates) is dict or isinstance(updates, Mapping):
        return list(updates.keys()), list(updates.values())
    if not isinstance(updates, Iterable) or isinstance(updates, str | bytes):
        raise WrongType(
            f"expected a dict of updates, as in `add(tr, {{key: update}})`, got: {codec.shown(updates)}"
        )
    pairs = list(repeatable(updates, "updates"))
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise WrongType(
                f"expected a dict of updates, as in `add(tr, {{key: update}})`, or pairs of key and update, "
                f"got a {type(updates).__name__} with: {codec.shown(pair)}"
            )
    return [key for key, _ in pairs], [value for _, value in pairs]


def check_updates(config: QueueConfig, keys: Sequence[Any], values: Sequence[Any]) -> None:
    """Raises `InvalidData` or `TooLarge` unless the queue takes these updates of these keys."""
    kinds = set(map(type, values))
    types = config.value.types
    if not types or kinds.issubset(types):
        # A sketch may refuse infinite floats.
        if (
            kinds <= _NINE_BYTES
            and config.value.sketch is None
            and not (
                config.combiner.name in REFUSED_FLOATS
                and any(map(REFUSED_FLOATS[config.combiner.name], values))
            )
        ):
            return
        if kinds == {int} and are_int64(values):
            return
    for key, value in zip(keys, values, strict=True):
        check_update(config, key, value)


def check_update(config: QueueConfig, key: Any, update: Any) -> int:
    """The size of an update in bytes; raises `InvalidData` or `TooLarge` unless the queue takes it."""
    if config.decider is not None:
        raise refused_update(config)
    if type(update) is Request:
        decider_of(config)
    if not (update is DELETE and config.takes_delete):
        try:
            config.value.check(update)
        except InvalidData as error:
            raise InvalidData(f"key {codec.brief(key)}: {error}") from None
    try:
        size = len(codec.encode_value(update, MAX_UPDATE_BYTES))
        check_combinable(config.combiner.name, config.combiner.version, update)
    except InvalidData as error:
        raise type(error)(f"key {codec.brief(key)}: {error}") from None
    return size


def split(content: list[Any]) -> list[bytes]:
    """The rows, in CBOR, of [head, encoded key, update, ...]; each row has the head, and the times of its updates."""
    try:
        row = cbor2.dumps(content)
    except cbor2.CBOREncodeError:  # contains sketches; without them, the plain encoder takes less time
        row = dumps(content)
    updates = len(content) // 2
    if len(row) <= ROW_BYTES or updates == 1:
        return [row]
    # Updates differ in size, so an even division by number may leave a row too large: it is divided again.
    pieces = min(updates, -(-len(row) // ROW_BYTES))
    number = -(-updates // pieces)
    return [row for first in range(0, updates, number) for row in split(_piece(content, first, number))]


def _piece(content: list[Any], first: int, number: int) -> list[Any]:
    """A row's content with some of its updates."""
    head = content[0]
    if isinstance(head, list) and isinstance(head[1], list):
        head = [head[0], head[1][first : first + number]]
    return [head, *content[1 + 2 * first : 1 + 2 * (first + number)]]
