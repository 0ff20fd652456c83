"""Why an update, a report or a value failed: the error, where in the application's code it was raised, and when."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from traceback import FrameSummary, StackSummary, walk_tb
from typing import Any, Final

from cq import runtime
from cq.errors import CorruptData
from cq.plain_text import describe, printable

_HERE: Final = os.path.dirname(os.path.abspath(__file__))
_OWN: Final = tuple(
    folder + os.sep
    for folder in {_HERE, *(os.path.realpath(os.path.join(_HERE, name)) for name in ("", "observers", "cli"))}
)
"""The folders of cq's own code, whose frames say nothing about the application."""
_FIRST_FRAMES: Final = 4
_LAST_FRAMES: Final = 8
_MAX_CAUSES: Final = 2
_LINE_CHARACTERS: Final = 240
_FILE_CHARACTERS: Final = 100
MAX_TRACE_BYTES: Final = 2_000
"""Limit of a stored trace: many keys may fail in one pass."""
_CUT: Final = "..."
_TYPES: Final = (str, str, list, str, float, float, int)


@dataclass(frozen=True, slots=True)
class KeyFailure:
    """A failure of the application's code for one key, or of stored data that cannot be read.

    Attributes:
        error: type and message of the error, in one printable line.
        code: name and version of the combiner or observer that raised, such as "combiner summary@1"; else empty.
        trace: the frames of the application's code, the innermost last, and those of the error's causes: each a
            printable line with file, line number, function and source text. No values of variables; at most 2,000
            bytes. Empty if only cq's own code was involved.
        worker: host and process of the worker; empty if unknown.
        first, last: times of the first and the latest try, in seconds since 1970; 0 if unknown.
        tries: number of failed tries.
    """

    error: str
    code: str = ""
    trace: tuple[str, ...] = ()
    worker: str = ""
    first: float = 0.0
    last: float = 0.0
    tries: int = 1

    def __str__(self) -> str:
        return self.error

    @classmethod
    def of(cls, error: BaseException, code: str = "", *, text: str | None = None) -> KeyFailure:
        """The failure of a try now in this process; `text` replaces type and message of the error."""
        now = runtime.time()
        shown = describe(error) if text is None else printable(text)
        return cls(shown, code, trace_of(error), _process(), now, now)

    def after(self, first: float, tries: int) -> KeyFailure:
        """The same failure after earlier tries: the time of the first one, and the number of all."""
        return replace(self, first=min(first, self.first), tries=tries)

    def merged(self, earlier: KeyFailure | None) -> KeyFailure:
        """This failure with the times and tries of an earlier one of the same key."""
        if earlier is None:
            return self
        known = [time for time in (self.first, earlier.first) if time]
        return replace(self, first=min(known, default=0.0), tries=self.tries + earlier.tries)

    def to_stored(self) -> list[Any]:
        """The stored form, a list that the codec can encode."""
        error = printable(self.error)
        return [error, self.code, list(self.trace), self.worker, self.first, self.last, self.tries]

    @classmethod
    def from_stored(cls, stored: object) -> KeyFailure:
        """The inverse of `to_stored`; raises `CorruptData`."""
        if (
            not isinstance(stored, list)
            or len(stored) != len(_TYPES)
            or not all(type(part) is kind for part, kind in zip(stored, _TYPES, strict=True))
            or not all(type(line) is str for line in stored[2])
            or not all(0 <= time < 1 << 40 for time in stored[4:6])
        ):
            raise CorruptData("the note of a failure is not one that cq wrote")
        error, code, trace, worker, first, last, tries = stored
        return cls(error, code, tuple(trace), worker, first, last, tries)


def is_failure(error: BaseException) -> bool:
    """Whether an error that code of the application raised is a failure of this code, as `sys.exit()` is.

    ^C in the main thread is not a failure, nor is an error that ends a task of `cq.aio`. A worker calls the code in
    other threads, where only this code can raise such errors.
    """
    return isinstance(error, Exception | SystemExit) or not (runtime.is_interruptible() or runtime.is_task())


def trace_of(error: BaseException) -> tuple[str, ...]:
    """The frames of the application's code in the traceback of an error and of its causes, as bounded lines."""
    lines: list[str] = []
    cause: BaseException | None = error
    for number in range(1 + _MAX_CAUSES):
        if cause is None:
            break
        frames = list(_frames(cause))
        if number and frames:
            lines.append(_line(f"caused by {describe(cause)}"))
        lines += frames
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return _bounded(lines)


def _frames(error: BaseException) -> Iterator[str]:
    found = StackSummary.extract(walk_tb(error.__traceback__), lookup_lines=False)
    frames = [frame for frame in found if not frame.filename.startswith(_OWN)]
    left_out = len(frames) - _FIRST_FRAMES - _LAST_FRAMES
    if left_out <= 0:
        yield from map(_shown, frames)
        return
    yield from map(_shown, frames[:_FIRST_FRAMES])
    yield f"{_CUT} {left_out:,} more frames"
    yield from map(_shown, frames[-_LAST_FRAMES:])


def _shown(frame: FrameSummary) -> str:
    name = frame.filename
    file = name if len(name) <= _FILE_CHARACTERS else _CUT + name[-_FILE_CHARACTERS:]
    source = _source(frame)
    return _line(f"{file}:{frame.lineno} in {frame.name}" + (f": {source}" if source else ""))


def _source(frame: FrameSummary) -> str | None:
    try:
        return frame.line
    except Exception:  # noqa: BLE001 - compiled code may have any file name, and a loader may raise anything
        return None


def _line(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LINE_CHARACTERS else shown[: _LINE_CHARACTERS - len(_CUT)] + _CUT


def _bounded(lines: list[str]) -> tuple[str, ...]:
    """The lines without some in the middle, so that they fit into the limit."""
    kept = list(lines)
    while sum(len(line.encode("utf-8", "replace")) for line in kept) > MAX_TRACE_BYTES - len(_CUT):
        del kept[len(kept) // 3]
    if len(kept) < len(lines):
        kept.insert(len(kept) // 3, _CUT)
    return tuple(kept)


def _process() -> str:
    return printable(f"process {os.getpid()} on {socket.gethostname()}")
