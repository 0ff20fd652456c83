"""Lines of a file, each added once: the transaction that adds lines also stores the position reached.

A position has a fingerprint of all bytes before it. So a file is recognised by its content, also under another name.
A file whose content before the position has changed is another file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

from cq import runtime
from cq.encoding.stored import StoredRecord
from cq.errors import InvalidData
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

_BATCH_LINES: Final = 2_000
_BATCH_BYTES: Final = 200_000
LONGEST_LINE: Final = 1_000_000
"""Maximum bytes of a line; a longer one is read as several."""
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FilePosition(StoredRecord):
    """A position in a file, which is recognised by the bytes before it, or at its beginning by its inode.

    Attributes:
        offset: number of bytes added so far.
        lines: number of lines in them.
        fingerprint: BLAKE2b of these bytes.
        inode: of the file with which a follower of a log has begun, until it has added lines; 0: any file.
    """

    NOUN = "the position in a file"

    offset: int = 0
    lines: int = 0
    fingerprint: bytes = hashlib.blake2b(digest_size=16).digest()
    inode: int = 0


class AddedLines(NamedTuple):
    """What a transaction has done with some lines.

    Attributes:
        lines: the number of lines that are done, the first ones; 0 only with an error.
        added: the number of updates that were added.
        refused: the number of updates that were not added, because of their time.
        error: why the next line cannot be added; None if it can, in another transaction.
        skipped: the number of lines that are done without an update, because they have another form.
        problem: why the first of these was skipped.
        outside: the number of the added updates that are not in a window, because of their time.
    """

    lines: int
    added: int = 0
    refused: int = 0
    error: InvalidData | None = None
    skipped: int = 0
    problem: str = ""
    outside: int = 0


LineAdder = Callable[[Transaction, Sequence[bytes], bytes | None], AddedLines]
"""Adds the first of some lines, as many as fit into the transaction, with an operation id or None."""


class ReachedPosition(NamedTuple):
    """A position after lines, and the hasher of the bytes before it."""

    position: FilePosition
    hasher: Any


class LineReader:
    """A stream that is read up to a position.

    Args:
        stream: a binary file at its beginning.
        position: read up to there.

    Attributes:
        position: the position before the next lines to add.

    Raises `InvalidData` if the stream does not begin with the bytes before the position.
    """

    def __init__(self, stream: BinaryIO, position: FilePosition) -> None:
        self.stream, self.position = stream, position
        self._hasher = hashlib.blake2b(digest_size=16)
        left = position.offset
        while left and (piece := stream.read(min(left, _PIECE_BYTES))):
            self._hasher.update(piece)
            left -= len(piece)
        if self._hasher.digest() != position.fingerprint:
            raise InvalidData(
                f"the file has changed before byte {position.offset:,}, and its lines up to there are already added: "
                "put new lines into a new file"
            )

    def next_lines(self) -> list[bytes]:
        """Read the next lines, a batch at most; none at the end."""
        batch: list[bytes] = []
        size = 0
        while len(batch) < _BATCH_LINES and size < _BATCH_BYTES:
            line = self.stream.readline(LONGEST_LINE)
            if not line:
                break
            batch.append(line)
            size += len(line)
        return batch

    def after(self, lines: Sequence[bytes]) -> ReachedPosition:
        """The position after these lines."""
        content, hasher, before = b"".join(lines), self._hasher.copy(), self.position
        hasher.update(content)
        position = FilePosition(before.offset + len(content), before.lines + len(lines), hasher.digest())
        return ReachedPosition(position, hasher)

    def advance(self, reached: ReachedPosition) -> None:
        """Move to a position after lines that are added."""
        self.position, self._hasher = reached


class StoredPosition(NamedTuple):
    """Where the position in a file is stored.

    Attributes:
        key: its key.
        before: the position that is stored there, which may be one in another file.
        former: the key that gets this position when the key gets one in the next file; None: none.
    """

    key: bytes
    before: FilePosition
    former: bytes | None = None


def add_lines(
    db: Database, reader: LineReader, lines: Sequence[bytes], add: LineAdder, stored: StoredPosition | None
) -> AddedLines:
    """Add the first of the next lines of a reader in one transaction, with the position; advances the reader.

    Args:
        db: a database of either store.
        reader: at the position before the lines.
        lines: at least one line.
        add: called in the transaction.
        stored: where the position is stored; None: an operation id prevents that a retry adds the lines again.

    Raises `InvalidData` if another process has moved the stored position.
    """
    once = runtime.token_bytes(16) if stored is None else None
    tried: tuple[ReachedPosition, AddedLines] | None = None

    def add_once(tr: Transaction) -> tuple[ReachedPosition, AddedLines]:
        nonlocal tried
        if stored is not None:
            found = read_position(tr, stored.key)
            if tried is not None and found == tried[0].position != stored.before:
                return tried  # an earlier try has committed
            if found != stored.before:
                raise InvalidData(
                    "another process is adding this file at the same time, or a purge has cleared the position in it: "
                    "run this again when that has finished"
                )
        added = add(tr, lines, once)
        reached = reader.after(lines[: added.lines])
        if stored is not None and added.lines:
            tr.set(stored.key, reached.position.to_bytes())
            if stored.former is not None:
                tr.set(stored.former, stored.before.to_bytes())
        tried = reached, added
        return tried

    reached, added = transact(db, add_once)
    reader.advance(reached)
    return added


def read_position(tr: TransactionRead, key: bytes) -> FilePosition:
    """The position that is stored under a key; by default the beginning of a file."""
    return FilePosition.from_bytes(tr.get(key).value)
