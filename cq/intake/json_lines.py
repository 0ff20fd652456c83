"""Load of JSON lines: adds the lines of a file to a queue in batches, and can be interrupted and continued.

Each line is `{"key": ..., "update": ...}`; for a queue with a roll-up, `"at"` is the time of the update. Each
transaction that adds lines also writes the position reached and a fingerprint of all bytes before it. So every line is
added exactly once, even if the load is killed and run again many times; lines appended to the file are added by the
next run. A file that changed before the position is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, BinaryIO, Final

from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.config.window import checked_time
from cq.encoding import codec
from cq.encoding.json_values import key_from_json, value_from_json
from cq.encoding.stored import StoredRecord
from cq.errors import InvalidData
from cq.keys import QueueKeys
from cq.queue.combine_queue import CombineQueue
from cq.queue.packing import check_update
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact
from cq.windows.series import Series

_BATCH_LINES: Final = 2_000
_BATCH_BYTES: Final = 200_000
_LONGEST_LINE: Final = 1_000_000
_Line = tuple[Any, Any, float | None]  # key, update, and its time if the line has one
_SHOWN: Final = 60  # characters of a bad line in error messages


@dataclass(frozen=True, slots=True)
class FilePosition(StoredRecord):
    """The bytes and the lines of a file added so far, and the fingerprint (BLAKE2b) of these bytes."""

    NOUN = "the position in a file"

    offset: int = 0
    lines: int = 0
    fingerprint: bytes = hashlib.blake2b(digest_size=16).digest()


def add_jsonl(
    db: Database,
    queue: CombineQueue,
    stream: BinaryIO,
    *,
    name: bytes | None = None,
    progress: Callable[[FilePosition], object] = lambda position: None,
) -> tuple[FilePosition, int]:
    """Add the lines of a stream to a queue; returns the position reached and the number of lines added now.

    Args:
        db: a database of either store.
        queue: the queue, which must be configured.
        stream: a binary file at its beginning.
        name: the name under which the position is stored, so that the next run continues there; its bytes are read
            again up to the position. None for a stream that cannot be read again: then no position is stored.
        progress: called with the position after each batch.

    Raises:
        InvalidData: a line is not an update of this queue (the lines before it are committed), the stream has changed
            since it was partly added, or another process is adding it at the same time.
        QueueNotConfigured: the queue is not configured.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue.name))
    key = None if name is None else QueueKeys(queue.name).load(name)
    position = FilePosition() if key is None else transact(db, lambda tr: _read_position(tr, key))
    hasher = _skip(stream, position)
    first = position.lines
    for lines in _batches(stream):
        parsed, good, error = _parsed(config, lines, position.lines)
        for line in lines[:good]:
            hasher.update(line)
        size = sum(map(len, lines[:good]))
        reached = FilePosition(position.offset + size, position.lines + good, hasher.digest())
        _add(db, _adder(config, queue, parsed), key, position, reached)
        position = reached
        progress(position)
        if error is not None:
            raise error
    return position, position.lines - first


def _skip(stream: BinaryIO, position: FilePosition) -> Any:
    """Read up to the position; returns the hasher of these bytes."""
    hasher = hashlib.blake2b(digest_size=16)
    left = position.offset
    while left and (piece := stream.read(min(left, 1 << 20))):
        hasher.update(piece)
        left -= len(piece)
    if hasher.digest() != position.fingerprint:
        raise InvalidData(
            f"the file has changed before byte {position.offset:,}, and its lines up to there are already added: "
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
) -> tuple[list[_Line], int, InvalidData | None]:
    """The updates of the lines before the first bad one, the number of these lines, and the bad line's error."""
    parsed: list[_Line] = []
    for number, line in enumerate(lines):
        try:
            if line.strip():
                parsed.append(_line(config, line))
        except InvalidData as error:
            done = before + number
            lines_before = {0: "no line is", 1: "the line before it is"}.get(
                done, f"the {done:,} lines before it are"
            )
            return parsed, number, InvalidData(f"line {done + 1}: {error}; {lines_before} committed")
    return parsed, len(lines), None


def _line(config: QueueConfig, line: bytes) -> _Line:
    try:
        # Without this, a float in between would round a decimal.
        content = json.loads(line, parse_float=Decimal if config.value.name == "decimal" else None)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidData(f"expected JSON, got: {_shown(line)} ({_reason(error)})") from None
    if not isinstance(content, dict) or content.keys() - {"at"} != {"key", "update"}:
        raise InvalidData(f'expected {{"key": ..., "update": ...}}, got: {_shown(line)}')
    if "at" in content and config.rollup is None:
        raise InvalidData(
            f"expected no time in a line, as queue {config.name!r} has no roll-up: {_shown(line)}"
        )
    key = key_from_json(config.key, content["key"])
    update = value_from_json(config.value, content["update"])
    config.key.encoder()(key)
    check_update(config, key, update)
    return key, update, _time(content.get("at"))


def _time(given: object) -> float | None:
    """Seconds since 1970, or a time in ISO 8601, in UTC if it names no zone; None for none."""
    try:
        if isinstance(given, str):
            time = datetime.fromisoformat(given)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        return (
            None
            if given is None
            else checked_time(float(given) if isinstance(given, Decimal) else given) / 1000
        )
    except (ValueError, OverflowError):
        raise InvalidData(
            f"expected a time in seconds since 1970, or as 2026-01-31T12:00:00, got: {codec.shown(given)}"
        ) from None


def _reason(error: Exception) -> str:
    # Each line is decoded alone, so the decoder's line number is always 1 and useless.
    return f"{error.msg} at {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _shown(line: bytes) -> str:
    """The beginning of a line as text, in quotes."""
    text = line.decode(errors="backslashreplace").strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _adder(
    config: QueueConfig, queue: CombineQueue, lines: list[_Line]
) -> Callable[[Transaction, bytes | None], object]:
    """A function that adds the updates of lines, with an operation id or None."""
    if config.rollup is not None:
        series = Series(queue)
        return lambda tr, once: series.add_each(tr, lines, once)
    pairs = [(key, update) for key, update, _ in lines]
    return lambda tr, once: queue.add(tr, pairs, once=once)


def _add(
    db: Database,
    write: Callable[[Transaction, bytes | None], object],
    key: bytes | None,
    position: FilePosition,
    reached: FilePosition,
) -> None:
    # Without a stored position, an operation id prevents that a retry adds the batch again.
    once = runtime.token_bytes(16) if key is None else None

    def add(tr: Transaction) -> None:
        if key is not None:
            stored = _read_position(tr, key)
            if stored == reached:
                return  # an earlier try has committed
            if stored != position:
                raise InvalidData(
                    "another process is adding this file at the same time: run this again when it has finished"
                )
            tr.set(key, reached.to_bytes())
        write(tr, once)

    if reached != position:
        transact(db, add)


def _read_position(tr: TransactionRead, key: bytes) -> FilePosition:
    return FilePosition.from_bytes(tr.get(key).value)
