"""Logging by events: a line for each, for people or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from cq.observers.telemetry.bus import Event
from cq.plain_text import printable


class TextFormatter(logging.Formatter):
    """A line of text for each record, made printable: time, level and message.

    The lines of a traceback follow indented, so that none can be mistaken for a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, and those of a traceback."""
        lines = [f"{self.formatTime(record)} {record.levelname} {printable(record.getMessage())}"]
        # Not the text that another formatter has left in the record: that is not printable.
        for more in (record.exc_info and self.formatException(record.exc_info), record.stack_info):
            lines += [f"    {printable(line)}" for line in (more or "").splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """A line of JSON for each record: time, level, the event with its fields, and the line for people.

    Records that are no events, of other libraries say, have the name of their logger for that of the event.
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
    """Log everything of this process to standard error; with `verbose` each pass and batch, too."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if verbose:
        logging.getLogger("cq").setLevel(logging.DEBUG)
