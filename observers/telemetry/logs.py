"""Log formats for events: one line each, as text or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from cq.observers.telemetry.bus import Event
from cq.plain_text import printable


class TextFormatter(logging.Formatter):
    """Formats a record as a printable line of text: time, level and message.

    The lines of a traceback are indented, so that they cannot be mistaken for records.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the lines of a traceback."""
        lines = [f"{self.formatTime(record)} {record.levelname} {printable(record.getMessage())}"]
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
            "message": record.getMessage(),
        }
        if isinstance(event, Event):
            line |= event.fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(*, as_json: bool = False, verbose: bool = False) -> None:
    """Log all events of this process to standard error; with `verbose` also each pass and batch."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if verbose:
        logging.getLogger("cq").setLevel(logging.DEBUG)
