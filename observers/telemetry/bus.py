"""Telling events: to the log, and to whoever subscribes; `cq.observers.telemetry.events` has the table of them.

As with logging, there is one of it in a process, whatever the number of its workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cq.observers.telemetry.events import EVENTS, EventKind
from cq.plain_text import printable

log = logging.getLogger("cq.worker")


class Event(NamedTuple):
    """Something that has happened.

    Attributes:
        name: a key of `EVENTS`.
        fields: {name: value}, those of its kind.
    """

    name: str
    fields: Mapping[str, Any]

    @property
    def kind(self) -> EventKind:
        """What such events are."""
        return EVENTS[self.name]

    def __str__(self) -> str:
        """One line for people."""
        return printable(self.kind.text.format_map(self.fields))


_subscribers: tuple[Callable[[Event], object], ...] = ()


def subscribe(told: Callable[[Event], object]) -> Callable[[], None]:
    """Call `told` with every event of this process from now on; returns a function that ends this.

    It is called in the threads that do the work: it must be quick, and what it raises is logged and goes no further.
    """
    global _subscribers  # noqa: PLW0603 - one of it in a process
    _subscribers = (*_subscribers, told)

    def end() -> None:
        global _subscribers  # noqa: PLW0603
        _subscribers = tuple(each for each in _subscribers if each is not told)

    return end


def emit(name: str, **fields: Any) -> None:
    """Report an event of the table, with all of its fields: to the subscribers, then to the log.

    In this order, a reader of the log finds in the metrics what it has read.
    """
    event = Event(name, fields)
    for told in _subscribers:
        try:
            told(event)
        except Exception:
            log.exception("a subscriber failed for the event %s", name)
    kind = event.kind
    logger = logging.getLogger(kind.logger)
    if logger.isEnabledFor(kind.level):
        logger.log(kind.level, "%s", event, extra={"event": event})
