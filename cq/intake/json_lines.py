"""Load of JSON lines: adds the lines of a file to a queue in batches, and can be interrupted and continued.

Each line is `{"key": ..., "update": ...}`; for a queue with a roll-up or a window, `"at"` is the time of the update.
Each transaction that adds lines also writes the position reached and a fingerprint of all bytes before it. So every
line is added exactly once, even if the load is killed and run again many times; lines appended to the file are added by
the next run. A file that changed before the position is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, BinaryIO, Final, NamedTuple

from cq.config.queue import QueueConfig, read_config
from cq.config.window import checked_time
from cq.encoding import codec
from cq.encoding.json_values import key_from_json, value_from_json
from cq.errors import InvalidData
from cq.intake.lines import AddedLines, FilePosition, LineReader, StoredPosition, add_lines, read_position
from cq.keys import QueueKeys
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction
from cq.store.sizes import PREDICTED_BYTES
from cq.store.transact import transact
from cq.windows.window import TAKEN, Window

_Line = tuple[Any, Any, float | None]  # key, update, and its time if the line has one
_SHOWN: Final = 60  # characters of a bad line in error messages


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
    reader = LineReader(stream, transact(db, lambda tr: _begin(tr, queue.name, key)))
    added = refused = 0
    while lines := reader.next_lines():
        while lines:
            stored = None if key is None else StoredPosition(key, reader.position)
            done = add_lines(db, reader, lines, partial(_add, queue), stored)
            lines = lines[done.lines :]
            added, refused = added + done.added, refused + done.refused
            progress(reader.position)
            if done.error is not None:
                raise _named(done.error, reader.position.lines)
    return LoadedLines(reader.position, added, refused)


def _begin(tr: Transaction, queue: str, key: bytes | None) -> FilePosition:
    """The stored position; raises `QueueNotConfigured`, also for a stream without lines."""
    read_config(tr.snapshot, queue)
    return FilePosition() if key is None else read_position(tr.snapshot, key)


def _add(queue: CombineQueue, tr: Transaction, lines: Sequence[bytes], once: bytes | None) -> AddedLines:
    """Add the first lines that fit into one transaction, up to a bad line.

    They are checked for the configuration under which the same transaction adds them.
    """
    config = read_config(tr, queue.name)
    parsed, done, error = _parsed(config, lines)
    taken = len(parsed)
    if parsed and config.is_timed:
        taken = Window[Any, Any](queue).add_each(tr, parsed, once).count(TAKEN)
    elif parsed:
        queue.add(tr, [(key, update) for key, update, _ in parsed], once=once)
    return AddedLines(done, taken, len(parsed) - taken, error)


def _parsed(config: QueueConfig, lines: Sequence[bytes]) -> tuple[list[_Line], int, InvalidData | None]:
    """The first lines that fit into one transaction, up to a bad line; the number of lines done; its error."""
    adds, size = AddCheck(config), 0
    parsed: list[_Line] = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found, bytes_written = _line(adds, line)
        except InvalidData as error:
            return parsed, number, error
        size += bytes_written
        if parsed and size > PREDICTED_BYTES:
            return parsed, number, None
        parsed.append(found)
    return parsed, len(lines), None


def _named(error: InvalidData, done: int) -> InvalidData:
    """The error of the line after `done` lines."""
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
