"""The event bus: it passes events to subscribers and to the log. `cq.observers.telemetry.events` has their table.

As with logging, there is one bus per process, whatever the number of its workers.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from cq.observers.telemetry.events import EVENTS, EventKind
from cq.plain_text import printable

log = logging.getLogger("cq.worker")
T = TypeVar("T")

_LOGGERS: Final = {"link": "cq.link", "entry": "cq.link", "operator": "cq.web"}
"""{first word of the names of events: their logger}."""


class Event(NamedTuple):
    """An event that a worker has emitted.

    Attributes:
        name: a key of `EVENTS`.
        fields: {name: value}, those of its kind.
    """

    name: str
    fields: Mapping[str, Any]

    @property
    def kind(self) -> EventKind:
        """The entry of the table for such events."""
        return EVENTS[self.name]

    @property
    def logger(self) -> logging.Logger:
        """The logger of such events."""
        return logging.getLogger(_LOGGERS.get(self.name.partition("_")[0], "cq.worker"))

    def __str__(self) -> str:
        """The line for the log."""
        return printable(self.kind.text.format_map(self.fields))


_subscribers: Final[list[Callable[[Event], object]]] = []
_surroundings: Final[list[Callable[[str, Mapping[str, Any]], AbstractContextManager[object]]]] = []


def _registered(functions: list[T], function: T) -> Callable[[], None]:
    """Add a function; returns a function that removes it. Other threads iterate over copies of the list."""
    functions.append(function)

    def end() -> None:
        if function in functions:
            functions.remove(function)

    return end


def subscribe(subscriber: Callable[[Event], object]) -> Callable[[], None]:
    """Call `subscriber` with every event of this process from now on; returns a function that ends the subscription.

    The subscriber is called in the worker's threads, so it must be quick. Its errors are logged, not raised.
    """
    return _registered(_subscribers, subscriber)


def surround(
    context: Callable[[str, Mapping[str, Any]], AbstractContextManager[object]],
) -> Callable[[], None]:
    """Enter a context during each operation that calls code of others; returns a function that ends this.

    `context` is called with the name of the event that ends the operation, and the fields known at its start.
    """
    return _registered(_surroundings, context)


@contextmanager
def during(name: str, **fields: Any) -> Iterator[None]:
    """A context for an operation that ends with an event of this name, which is emitted in the context."""
    with ExitStack() as entered:
        for context in tuple(_surroundings):
            try:
                entered.enter_context(context(name, fields))
            except Exception:  # noqa: BLE001 - logged
                _log(log, logging.ERROR, "a context failed for the event %s", name, exc_info=True)
        yield


def emit(name: str, **fields: Any) -> None:
    """Pass an event of the table, with all of its fields, to the subscribers and then to the log.

    In this order, an event that a reader has seen in the log is already counted in the metrics. No error of a
    subscriber or of the log reaches the caller.
    """
    event = Event(name, fields)
    for subscriber in tuple(_subscribers):
        try:
            subscriber(event)
        except Exception:  # noqa: BLE001 - logged
            _log(log, logging.ERROR, "a subscriber failed for the event %s", name, exc_info=True)
    logger, level = event.logger, event.kind.level
    if logger.isEnabledFor(level):
        _log(logger, level, "%s", event, extra={"event": event})


def _log(logger: logging.Logger, level: int, *args: Any, **kwargs: Any) -> None:
    """Log a message. An error of a handler or filter does not end the worker: it is printed, as `logging` does."""
    try:
        logger.log(level, *args, **kwargs)
    except Exception:  # noqa: BLE001 - a failure of the log harms nobody else
        if logging.raiseExceptions:
            traceback.print_exc(file=sys.stderr)
