"""Adding the lines of a file to a queue: in batches, and so that it can be broken off and gone on with.

Each line is `{"key": ..., "update": ...}`. The position reached and a fingerprint of all before it are written in the
transactions that add, so every line is added exactly once, however often the loading is killed and run again; lines
appended to a file are added by the next run. A file changed before the position is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, BinaryIO, Final, NamedTuple

from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.encoding.json_values import key_from_json, value_from_json
from cq.errors import InvalidData
from cq.keys import QueueKeys
from cq.queue.combine_queue import CombineQueue
from cq.queue.packing import check_update
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

_BATCH_LINES: Final = 2_000
_BATCH_BYTES: Final = 200_000
_LONGEST_LINE: Final = 1_000_000
_SHOWN: Final = 60  # characters of a bad line


class FilePosition(NamedTuple):
    """How far a file has been added, in bytes and in lines, and the fingerprint (BLAKE2b) of those bytes."""

    offset: int
    lines: int
    fingerprint: bytes


_START: Final = FilePosition(0, 0, hashlib.blake2b(digest_size=16).digest())


def add_jsonl(
    db: Database,
    queue: CombineQueue,
    stream: BinaryIO,
    *,
    name: bytes | None = None,
    progress: Callable[[FilePosition], object] = lambda position: None,
) -> tuple[FilePosition, int]:
    """Add the lines of a stream to a queue; returns the position reached and how many lines were added now.

    Args:
        db: a database of either store.
        queue: the queue, which must be configured.
        stream: a binary file at its beginning.
        name: what the stream is called, to go on where the last run stopped; its bytes are read again up to there. None
            for a stream that cannot be read again: then nothing is remembered.
        progress: called with the position after each batch.

    Raises:
        InvalidData: a line is no update of this queue (the lines before it are committed), the stream has changed
            since it was partly added, or somebody else is adding it at the same time.
        QueueNotConfigured: the queue is not configured.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue.name))
    key = None if name is None else QueueKeys(queue.name).load(name)
    position = _START if key is None else transact(db, lambda tr: _read_position(tr, key))
    hasher = _skip(stream, position)
    first = position.lines
    for lines in _batches(stream):
        pairs, good, error = _parsed(config, lines, position.lines)
        for line in lines[:good]:
            hasher.update(line)
        size = sum(map(len, lines[:good]))
        reached = FilePosition(position.offset + size, position.lines + good, hasher.digest())
        _add(db, queue, key, pairs, position, reached)
        position = reached
        progress(position)
        if error is not None:
            raise error
    return position, position.lines - first


def _skip(stream: BinaryIO, position: FilePosition) -> Any:
    """Read up to the position; returns the hasher of what was read."""
    hasher = hashlib.blake2b(digest_size=16)
    left = position.offset
    while left and (piece := stream.read(min(left, 1 << 20))):
        hasher.update(piece)
        left -= len(piece)
    if hasher.digest() != position.fingerprint:
        raise InvalidData(
            f"the file has changed before byte {position.offset:,}, up to which it is added already: "
            "put new lines into a new file"
        )
    return hasher


def _batches(stream: BinaryIO) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    while line := stream.readline(_LONGEST_LINE):
        batch.append(line)
        size += len(line)
        if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parsed(
    config: QueueConfig, lines: list[bytes], before: int
) -> tuple[list[tuple[Any, Any]], int, InvalidData | None]:
    """The updates of the lines up to the first bad one, how many lines these are, and what is bad about it."""
    pairs: list[tuple[Any, Any]] = []
    for number, line in enumerate(lines):
        try:
            if line.strip():
                pairs.append(_pair(config, line))
        except InvalidData as error:
            done = before + number
            lines_before = {0: "no line is", 1: "the line before it is"}.get(
                done, f"the {done:,} lines before it are"
            )
            return pairs, number, InvalidData(f"line {done + 1}: {error}; {lines_before} committed")
    return pairs, len(lines), None


def _pair(config: QueueConfig, line: bytes) -> tuple[Any, Any]:
    try:
        # A float in between would round a decimal.
        content = json.loads(line, parse_float=Decimal if config.value.name == "decimal" else None)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidData(f"expected JSON, got: {_shown(line)} ({_reason(error)})") from None
    if not isinstance(content, dict) or content.keys() != {"key", "update"}:
        raise InvalidData(f'expected {{"key": ..., "update": ...}}, got: {_shown(line)}')
    key = key_from_json(config.key, content["key"])
    update = value_from_json(config.value, content["update"])
    config.key.encoder()(key)
    check_update(config, key, update)
    return key, update


def _reason(error: Exception) -> str:
    # The line that the decoder names is always 1.
    return f"{error.msg} at {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _shown(line: bytes) -> str:
    """The beginning of a line as text, in quotes."""
    text = line.decode(errors="backslashreplace").strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _add(
    db: Database,
    queue: CombineQueue,
    key: bytes | None,
    pairs: list[tuple[Any, Any]],
    position: FilePosition,
    reached: FilePosition,
) -> None:
    # Where no position can be kept, an operation id keeps a retry from adding the batch again.
    once = runtime.token_bytes(16) if key is None else None

    def add(tr: Transaction) -> None:
        if key is not None:
            stored = _read_position(tr, key)
            if stored == reached:
                return  # an earlier try has committed
            if stored != position:
                raise InvalidData(
                    "somebody else is adding this file at the same time: run it again when that is done"
                )
            tr.set(key, codec.encode(list(reached)))
        queue.add(tr, pairs, once=once)

    if reached != position:
        transact(db, add)


def _read_position(tr: TransactionRead, key: bytes) -> FilePosition:
    stored = tr.get(key).value
    return (
        _START
        if stored is None
        else FilePosition(*codec.decode_list(stored, (int, int, bytes), "the position in a file"))
    )
