"""Load of JSON lines: adds the lines of a file to a queue in batches, and can be interrupted and continued.

Each line is `{"key": ..., "update": ...}`; for a queue with a roll-up or a window, `"at"` is the time of the update.
Each transaction that adds lines also writes the position reached and a fingerprint of all bytes before it. So every
line is added exactly once, even if the load is killed and run again many times; lines appended to the file are added by
the next run. A file that changed before the position is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, BinaryIO, Final, NamedTuple

from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.config.window import checked_time
from cq.encoding import codec
from cq.encoding.json_values import key_from_json, value_from_json
from cq.encoding.stored import StoredRecord
from cq.errors import InvalidData
from cq.keys import QueueKeys
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import PREDICTED_BYTES
from cq.store.transact import transact
from cq.windows.window import TAKEN, Window

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


class LoadedLines(NamedTuple):
    """The result of a load.

    Attributes:
        position: the position reached in the file.
        added: the number of updates added by this run.
        refused: the number of updates that this run did not add, because their time is too long ago or in the future:
            see `cq.windows.Window.add`.
    """

    position: FilePosition
    added: int
    refused: int


class _AddedBatch(NamedTuple):
    """The position after a batch, the hasher of the bytes before it, the error of the next line; numbers of updates."""

    reached: FilePosition
    hasher: Any
    error: InvalidData | None = None
    added: int = 0
    refused: int = 0


def add_jsonl(
    db: Database,
    queue: CombineQueue,
    stream: BinaryIO,
    *,
    name: bytes | None = None,
    progress: Callable[[FilePosition], object] = lambda position: None,
) -> LoadedLines:
    """Add the lines of a stream to a queue; returns the position reached and the numbers of updates.

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
    key = None if name is None else QueueKeys(queue.name).load(name)
    position = transact(db, lambda tr: _begin(tr, queue.name, key))
    hasher = _skip(stream, position)
    added = refused = 0
    for lines in _batches(stream):
        left = lines
        while left:
            batch = _add(db, _NextLines(queue, left, position, hasher), key)
            left = left[batch.reached.lines - position.lines :]
            position, hasher = batch.reached, batch.hasher
            added, refused = added + batch.added, refused + batch.refused
            progress(position)
            if batch.error is not None:
                raise batch.error
    return LoadedLines(position, added, refused)


def _begin(tr: Transaction, queue: str, key: bytes | None) -> FilePosition:
    """The stored position; raises `QueueNotConfigured`, also for a stream without lines."""
    read_config(tr.snapshot, queue)
    return FilePosition() if key is None else _read_position(tr.snapshot, key)


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


@dataclass(frozen=True, slots=True)
class _NextLines:
    """Lines to add, at least one, the position before them, and the hasher of the bytes before it."""

    queue: CombineQueue
    lines: list[bytes]
    position: FilePosition
    hasher: Any

    def parsed(self, config: QueueConfig) -> tuple[list[_Line], int, InvalidData | None]:
        """The first lines that fit into one transaction, up to a bad line; the number of lines done; its error."""
        adds, size = AddCheck(config), 0
        parsed: list[_Line] = []
        for number, line in enumerate(self.lines):
            if not line.strip():
                continue
            try:
                found, bytes_written = _line(adds, line)
            except InvalidData as error:
                return parsed, number, self._named(number, error)
            size += bytes_written
            if parsed and size > PREDICTED_BYTES:
                return parsed, number, None
            parsed.append(found)
        return parsed, len(self.lines), None

    def after(self, number: int) -> tuple[FilePosition, Any]:
        """The position after this number of lines, and the hasher of the bytes before it."""
        content, hasher, before = b"".join(self.lines[:number]), self.hasher.copy(), self.position
        hasher.update(content)
        return FilePosition(before.offset + len(content), before.lines + number, hasher.digest()), hasher

    def _named(self, number: int, error: InvalidData) -> InvalidData:
        """The error of the line of this number."""
        done = self.position.lines + number
        before = {0: "no line is", 1: "the line before it is"}.get(done, f"the {done:,} lines before it are")
        return InvalidData(f"line {done + 1}: {error}; {before} committed")


def _line(adds: AddCheck, line: bytes) -> tuple[_Line, int]:
    """The update of a line, and the bytes that an add of it writes; raises `InvalidData`."""
    config = adds.config
    try:
        # Without this, a float in between would round a decimal.
        content = json.loads(line, parse_float=Decimal if config.value.name == "decimal" else None)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidData(f"expected JSON, got: {_shown(line)} ({_reason(error)})") from None
    if not isinstance(content, dict) or content.keys() - {"at"} != {"key", "update"}:
        raise InvalidData(f'expected {{"key": ..., "update": ...}}, got: {_shown(line)}')
    if "at" in content and not config.is_timed:
        raise InvalidData(
            f"expected no time in a line, as queue {config.name!r} has no roll-up and no window: {_shown(line)}"
        )
    key = key_from_json(config.key, content["key"])
    update = value_from_json(config.value, content["update"])
    size = adds.check(key, update).size
    return (key, update, _time(content.get("at"))), size


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


def _add(db: Database, batch: _NextLines, key: bytes | None) -> _AddedBatch:
    """Add the first lines of a batch in one transaction.

    The lines are checked for the configuration under which the same transaction adds them.
    """
    # Without a stored position, an operation id prevents that a retry adds the batch again.
    once = runtime.token_bytes(16) if key is None else None
    tried = _AddedBatch(batch.position, batch.hasher)

    def add(tr: Transaction) -> _AddedBatch:
        nonlocal tried
        config = read_config(tr, batch.queue.name)
        lines, done, error = batch.parsed(config)
        reached, hasher = batch.after(done)
        if not done:
            return _AddedBatch(reached, hasher, error)
        if key is not None:
            stored = _read_position(tr, key)
            if stored == tried.reached != batch.position:
                return tried  # an earlier try has committed
            if stored != batch.position:
                raise InvalidData(
                    "another process is adding this file at the same time: run this again when it has finished"
                )
            tr.set(key, reached.to_bytes())
        taken = len(lines)
        if config.is_timed:
            taken = Window[Any, Any](batch.queue).add_each(tr, lines, once)[TAKEN]
        else:
            batch.queue.add(tr, [(key, update) for key, update, _ in lines], once=once)
        tried = _AddedBatch(reached, hasher, error, taken, len(lines) - taken)
        return tried

    return transact(db, add)


def _read_position(tr: TransactionRead, key: bytes) -> FilePosition:
    return FilePosition.from_bytes(tr.get(key).value)
