"""Logs that are written and rotated while their lines are added: each line is added once, also if processes are killed.

The position is that of `cq.intake.lines`: a file is recognised by the fingerprint of the bytes before the position,
whatever its name. So a follower finds a log again that was renamed, or copied and truncated, and perhaps compressed. It
finishes this file before it begins with the next one.

Servers may write to a renamed file for a while, so two positions are stored: in the file that is read, and in the one
before it, which can still get lines. The transaction that adds the first lines of a file stores both.

    load(name)                position in the file that is read
    load(name) 00 "former"    position in the file before it

A process that is killed before it has added a line leaves no fingerprint of the file, but its inode. The next process
finds the file by it, as a renamed file keeps its inode.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import stat
import zlib
from collections.abc import Container
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, cast

from cq.config.queue import read_config
from cq.errors import InvalidData
from cq.intake.lines import (
    LONGEST_LINE,
    AddedLines,
    FilePosition,
    LineAdder,
    LineReader,
    StoredPosition,
    add_lines,
    read_position,
)
from cq.keys import QueueKeys
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_FORMER: Final = b"\x00former"
_GZIP: Final = b"\x1f\x8b"
_HEAD_BYTES: Final = 4_096
_ROTATED: Final = re.compile(r"[.-]\d[-.\d_T]*?(?:\.gz)?")
_DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_MAX_NUMBER: Final = 100_000  # a larger number in a name is a date

_Identity = tuple[int, int]  # device and inode

log = logging.getLogger("cq.logs")


def open_log(path: Path) -> BinaryIO:
    """Open a plain or gzip file; raises `OSError`."""
    if not _is_regular(path):
        # The open of a named pipe would block, and a pipe cannot be read again from a position.
        raise OSError(f"{path}: expected a regular file, which can be read again from a position")
    plain = path.open("rb")
    if plain.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
        return plain
    plain.close()
    return cast(BinaryIO, gzip.open(path))


class LogFile:
    """An open file of a log, read up to a position.

    Args:
        path: its path; a gzip file counts as its content.
        position: read up to there.

    Attributes:
        identity: device and inode.
        reader: at the position before the next lines to add.

    Raises `InvalidData` if the file does not begin with the bytes before the position, and `OSError`.
    """

    def __init__(self, path: Path, position: FilePosition) -> None:
        self._stream = open_log(path)
        try:
            self.path, self.identity = path, _identity(self._stream.fileno())
            self._is_done = False  # a compressed file does not grow
            self._is_plain = not isinstance(self._stream, gzip.GzipFile)
            # Before the fingerprint is compared: then these are bytes of the file that it is of.
            self._head = self._first_bytes(min(position.offset, _HEAD_BYTES))
            self.reader = LineReader(self._stream, position)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def next_lines(self) -> list[bytes] | None:
        """Read the next complete lines, a batch at most; none at the end, None if the file was truncated."""
        offset = self.reader.position.offset
        if self._is_done:
            return []
        try:
            if self._stream.tell() != offset:  # the last line was not complete
                self._stream.seek(offset)
            lines = self.reader.next_lines()
        except _DAMAGED as error:
            raise OSError(f"{self.path}: the file is damaged: {error}") from None
        if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < LONGEST_LINE:
            lines.pop()
        self._is_done = not (lines or self._is_plain)
        # After the read: what was read before a truncation is not a mixture of two files.
        return lines if self._is_whole(lines) else None

    def advanced(self, lines: list[bytes]) -> None:
        """Note that these lines were added."""
        if len(self._head) < _HEAD_BYTES:
            self._head = (self._head + b"".join(lines))[:_HEAD_BYTES]

    def _is_whole(self, lines: list[bytes]) -> bool:
        """Whether the file still has all bytes that were read, by its beginning and its size."""
        if not self._is_plain:
            return True
        content = b"".join(lines)
        head = (self._head + content)[:_HEAD_BYTES]
        size = os.fstat(self._stream.fileno()).st_size
        return size >= self.reader.position.offset + len(content) and self._first_bytes(len(head)) == head

    def _first_bytes(self, number: int) -> bytes:
        return os.pread(self._stream.fileno(), number, 0) if self._is_plain else b""


class LogFollower:
    """Adds the lines of a log, and continues where an earlier one of the same name has stopped.

    Args:
        db: a database of either store.
        queue: the queue below whose keys the position is stored.
        path: the file that the servers write. Files beside it whose names continue with a number or a date, such as
            `access.log.1` and `access.log-20261101.gz`, are former ones.
        name: the name of the position; by default the absolute path.

    Raises:
        InvalidData: the file that was read up to the stored position is not there any more.
        QueueNotConfigured: the queue is not configured.
        OSError: the file cannot be read.
    """

    def __init__(self, db: Database, queue: str, path: Path, name: str | None = None) -> None:
        self._db, self._path = db, path.absolute()
        name = os.fspath(self._path) if name is None else name
        self._key, self._former_key = (
            QueueKeys(queue).load(os.fsencode(name) + suffix) for suffix in (b"", _FORMER)
        )

        def begin(tr: Transaction) -> list[FilePosition]:
            read_config(tr.snapshot, queue)
            return [read_position(tr.snapshot, key) for key in (self._key, self._former_key)]

        self._stored, former = transact(db, begin)
        found = self._find(self._stored) if self._stored != FilePosition() else None
        if found is None and self._stored.offset:
            raise InvalidData(
                f"{path}: {self._stored.offset:,} bytes of a file are added under the name {name!r}, and neither this "
                "file nor a former one beside it begins with them: put the former file beside it, as "
                f"{path.name}.1, or give another name to begin at the start of {path.name}"
            )
        self._file = found or self._first(queue)
        with ExitStack() as stack:
            stack.callback(self._file.close)
            self._former = self._find(former) if former.offset else self._begun_before(former.inode)
            stack.pop_all()
        # The files among which the present one was not found.
        self._searched: list[tuple[Path, _Identity]] = []

    def close(self) -> None:
        """Close the files."""
        for file in (self._former, self._file):
            if file is not None:
                file.close()

    def add_next(self, add: LineAdder) -> AddedLines | None:
        """Add the next complete lines, as many as one transaction takes.

        Args:
            add: called in the transaction with lines and None, which would be an operation id; returns what it did with
                the first of them. It may be called again with the same lines if the transaction is retried.

        Returns:
            What was done; None if there are no complete lines now.

        Raises:
            InvalidData: another process adds the same log under the same name.
        """
        for file in (self._former, self._file):
            lines = None if file is None else file.next_lines()
            if lines:
                return self._add(cast(LogFile, file), lines, add)
            if file is not None and lines is None:
                self._reopen(file)
                return AddedLines(0)
        for path, identity in self._later_files():
            try:
                later = LogFile(path, FilePosition())
            except FileNotFoundError:
                return None  # the files are being renamed
            try:
                if later.identity != identity:
                    return None
                if lines := later.next_lines():
                    return self._add(later, lines, add)
            finally:
                if later is not self._file:
                    later.close()
        return None

    def _add(self, file: LogFile, lines: list[bytes], add: LineAdder) -> AddedLines:
        if file is self._former:
            stored = StoredPosition(self._former_key, file.reader.position)
        else:
            stored = StoredPosition(self._key, self._stored, None if file is self._file else self._former_key)
        added = add_lines(self._db, file.reader, lines, add, stored)
        file.advanced(lines[: added.lines])
        if file is not self._former:
            self._stored = file.reader.position
        if file not in (self._former, self._file):
            if self._former is not None:
                self._former.close()
            self._former, self._file = self._file, file
        return added

    # The files

    def _first(self, queue: str) -> LogFile:
        """Begin with the present file, and store its inode for the next process."""
        if self._stored.inode:
            log.warning(
                "%s: the file that was there at the first start is gone, and none of its lines was added: this begins "
                "with the present file",
                self._path,
            )

        def store(tr: Transaction) -> None:
            read_config(tr, queue)
            # Otherwise another process has begun with another file, and the first add raises.
            if read_position(tr, self._key) == self._stored:
                tr.set(self._key, begun.to_bytes())

        with ExitStack() as stack:
            file = LogFile(self._path, FilePosition())
            stack.callback(file.close)
            begun = FilePosition(inode=file.identity[1])
            transact(self._db, store)
            stack.pop_all()
        self._stored = begun
        return file

    def _later_files(self) -> list[tuple[Path, _Identity]]:
        """The files after the present one, oldest first."""
        with suppress(FileNotFoundError):
            if _identity(self._path) == self._file.identity:
                return []
        files = self._files()
        if self._file.identity not in dict(files).values() and files != self._searched:
            self._searched = files  # it was compressed, or deleted
            if found := self._find(self._file.reader.position):
                self._file.close()
                self._file = found
        order = [identity for _, identity in files]
        if self._file.identity not in order:
            return [each for each in files if each[0] == self._path]
        return files[order.index(self._file.identity) + 1 :]

    def _find(self, position: FilePosition) -> LogFile | None:
        """Open the newest file that a position may be in; None if there is none."""
        while True:
            files = self._files()
            for path, _ in reversed(files):
                with suppress(InvalidData, FileNotFoundError, *_DAMAGED):
                    found = LogFile(path, position)
                    if position.inode in (0, found.identity[1]):
                        return found
                    found.close()
            if files == self._files():  # otherwise they were renamed meanwhile
                return None

    def _begun_before(self, inode: int) -> LogFile | None:
        """Open the file directly before the present one if it has this inode; no line of it was added."""
        # Only there: the inode of a deleted file may be that of a newer one.
        for (path, identity), (_, following) in pairwise(self._files()):
            if following == self._file.identity and identity[1] == inode:
                with suppress(FileNotFoundError):
                    return LogFile(path, FilePosition(inode=inode))
        return None

    def _reopen(self, file: LogFile) -> None:
        """Replace a file that was truncated by its copy, or else by what is written into it now."""
        file.close()
        found = self._find(file.reader.position)
        if file is self._former:
            self._former = found
        elif found is not None:
            self._file = found
        else:
            log.warning(
                "%s was truncated after byte %s, and no file beside it has these bytes: lines written just before may "
                "be missing",
                self._path,
                f"{file.reader.position.offset:,}",
            )
            self._file = LogFile(self._path, FilePosition())

    def _files(self) -> list[tuple[Path, _Identity]]:
        """The present file and the former ones with their identities, oldest first."""
        found, before = self._listed(), None
        while found != before:  # files that are renamed meanwhile may be missing
            found, before = self._listed(), found
        return found

    def _listed(self) -> list[tuple[Path, _Identity]]:
        found = []
        paths = set(self._path.parent.iterdir())
        for path in paths:
            suffix = path.name.removeprefix(self._path.name)
            if path == self._path or (suffix != path.name and _ROTATED.fullmatch(suffix)):
                with suppress(FileNotFoundError):
                    if path != self._path and not _is_former(path, paths):
                        continue
                    found.append((_age(suffix, is_live=path == self._path), path, _identity(path)))
        return [(path, identity) for _, path, identity in sorted(found)]


def _is_former(path: Path, paths: Container[Path]) -> bool:
    """Whether a file is a former one: a file is compressed into another one, and removed when this is complete."""
    return _is_regular(path) and not (path.suffix == ".gz" and path.with_suffix("") in paths)


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(os.stat(path).st_mode)


def _identity(file: Path | int) -> _Identity:
    status = os.stat(file)
    return status.st_dev, status.st_ino


def _age(suffix: str, *, is_live: bool) -> tuple[bool, list[int]]:
    """A key that sorts files from the oldest to the present one: by falling numbers, or by rising dates."""
    numbers = [int(number) for number in re.findall(r"\d+", suffix)]
    is_count = len(numbers) == 1 and numbers[0] < _MAX_NUMBER
    return is_live, [-numbers[0]] if is_count else numbers
