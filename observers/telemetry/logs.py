"""The log: events as lines of text or JSON, with repeated warnings counted."""

from __future__ import annotations

import copy
import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from cq import runtime
from cq.observers.telemetry.bus import Event
from cq.observers.telemetry.events import FIELDS
from cq.plain_text import printable

REPEAT_SECONDS: Final = 60.0
"""How long equal warnings are counted after the first one."""
MAX_LINES: Final = 1_000
"""Different warnings that are counted at once; others are all logged."""


class TextFormatter(logging.Formatter):
    """Formats a record as a printable line of text: time, level and message.

    The lines of a traceback, and of the field `trace` of an event, are indented: they cannot be mistaken for records.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the lines of a traceback."""
        lines = [
            f"{self.formatTime(record)} {record.levelname} {printable(record.getMessage())}{_repeats(record)}"
        ]
        event = getattr(record, "event", None)
        if isinstance(event, Event) and not hasattr(record, "repeats"):
            lines += [f"    {printable(str(line))}" for line in event.fields.get("trace") or ()]
        # Not `record.exc_text`, which another formatter may have cached with control characters.
        for more in (record.exc_info and self.formatException(record.exc_info), record.stack_info):
            lines += [f"    {printable(line)}" for line in (more or "").splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON: time, level, the event with its fields, and the message.

    Records without an event, for example of other libraries, have the logger's name as `event`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, in ASCII."""
        event = getattr(record, "event", None)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event.name if isinstance(event, Event) else record.name,
            "message": record.getMessage() + _repeats(record),
        }
        if isinstance(event, Event):
            line |= event.fields
        if repeats := getattr(record, "repeats", None):
            line["repeated"] = repeats[0]
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _repeats(record: logging.LogRecord) -> str:
    """The text of `repeats`, a pair of count and seconds that `RepeatHandler` adds to records; else empty."""
    repeats = getattr(record, "repeats", None)
    if repeats is None:
        return ""
    count, seconds = repeats
    return f" ({count:,} {'time' if count == 1 else 'times'} more in the last {seconds:.0f} s)"


class _Counted:
    """A warning that was logged, how often it has been repeated since, and its latest repetition."""

    def __init__(self) -> None:
        self.record: logging.LogRecord | None = None
        self.begun = runtime.monotonic()
        self.count = 0

    def repeat(self, record: logging.LogRecord) -> None:
        """Count a repetition."""
        self.count += 1
        self.record = copy.copy(record)
        self.record.exc_info = self.record.stack_info = None  # the first line has shown them


class RepeatHandler(logging.StreamHandler[Any]):
    """Writes lines to standard error, and counts repeated warnings instead of writing them.

    The first warning is written at once. Equal ones of the next `REPEAT_SECONDS` are counted, and the next record after
    this time writes the latest of them with their number. Warnings are equal if event and fields, or logger and
    message, are equal, and the exception. Fields in seconds do not count: the pause until the next try grows with each
    warning.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counted: dict[tuple[str, ...], _Counted] = {}  # in the order of their first lines
        self._is_closed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a record; the caller holds the handler's lock."""
        self._write_counts(REPEAT_SECONDS)
        if record.levelno < logging.WARNING or self._is_closed:
            super().emit(record)
            return
        key = _content(record)
        counted = self._counted.get(key)
        if counted is not None:
            counted.repeat(record)
            return
        if len(self._counted) < MAX_LINES:
            self._counted[key] = _Counted()
        super().emit(record)

    def close(self) -> None:
        """Write all counts; later records are all written. `logging.shutdown` calls this when the process ends."""
        self.acquire()
        try:
            self._is_closed = True
            self._write_counts(0.0)
        finally:
            self.release()
        super().close()

    def _write_counts(self, least_seconds: float) -> None:
        """Write the counts of warnings whose first line is at least so old, and forget these warnings."""
        now = runtime.monotonic()
        for key, each in list(self._counted.items()):
            if now - each.begun < least_seconds:
                return
            del self._counted[key]
            if each.record is not None:
                each.record.repeats = (each.count, now - each.begun)
                each.record.created = runtime.time()
                each.record.msecs = each.record.created % 1 * 1_000
                super().emit(each.record)


def _content(record: logging.LogRecord) -> tuple[str, ...]:
    """The content of a record without times, to compare records."""
    event = getattr(record, "event", None)
    error = repr(record.exc_info[1]) if record.exc_info else ""
    if not isinstance(event, Event):
        return record.name, record.levelname, record.getMessage(), error
    fields = sorted((name, value) for name, value in event.fields.items() if FIELDS[name][0] != "s")
    return event.name, record.levelname, repr(fields), error


def log_to_stderr(*, as_json: bool = False, verbose: bool = False) -> None:
    """Log all events of this process to standard error; with `verbose` also each pass and batch.

    Repeated warnings are counted, see `RepeatHandler`.
    """
    handler = RepeatHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if verbose:
        logging.getLogger("cq").setLevel(logging.DEBUG)
