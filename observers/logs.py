"""Logging by events: a line for each, for people or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from cq.observers.telemetry import Event

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


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
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if verbose:
        logging.getLogger("cq").setLevel(logging.DEBUG)
