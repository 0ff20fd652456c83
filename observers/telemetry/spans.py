"""Spans of the operations of workers, made from their events, for OpenTelemetry.

Names and attributes follow OpenTelemetry's semantic conventions for messaging: a queue is a destination, a bucket is
a partition of it, and a pass processes a batch of messages. Each other field of an event is an attribute `cq.FIELD`.

An operation gets its span when it ends, so an operation without work gets no span. An export calls code of
others, whose spans must be children of its own: its span begins before this code, see `cq.observers.telemetry.bus`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cq import runtime
from cq.observers.telemetry.bus import Event
from cq.observers.telemetry.events import EVENTS, TracedOperation

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SYSTEM: Final = "cq"
"""The attribute `messaging.system` of all spans."""
ERROR_TYPE: Final = "error.type"


def attributes_of(name: str, kind: str, queue: str) -> dict[str, Any]:
    """The attributes that each span has.

    Args:
        name: of the operation.
        kind: one of the types of operations of the semantic conventions, for example "process".
        queue: the name of the queue.
    """
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }


class Spans:
    """Makes a span for each event that ends an operation.

    Args:
        tracer: makes the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begun = threading.local()

    def __call__(self, event: Event) -> None:
        """Make the event's span, or complete the span that `during` has begun for it in this thread."""
        operation = event.kind.operation
        if operation is None:
            return
        begun: Span | None = getattr(self._begun, event.name, None)
        if begun is not None:
            begun.set_attributes(_attributes(operation, event.fields))
            return
        end = runtime.time_ns()
        span = self._start(operation, event.fields, end - int(event.fields["seconds"] * 1e9))
        if event.kind.level >= logging.WARNING:
            _fail(span, event.fields["error"])
        span.end(end)

    @contextmanager
    def during(self, name: str, fields: Mapping[str, Any]) -> Iterator[None]:
        """A context with the current span of an operation that ends with an event of this name.

        Args:
            name: of an event that has an operation.
            fields: those known at the start: at least `queue`.
        """
        from opentelemetry.trace import use_span

        operation = EVENTS[name].operation
        assert operation is not None, name  # noqa: S101
        span = self._start(operation, fields)
        setattr(self._begun, name, span)
        try:
            with use_span(span, end_on_exit=True):
                try:
                    yield
                except BaseException as error:
                    span.set_attribute(ERROR_TYPE, type(error).__qualname__)
                    raise
        finally:
            delattr(self._begun, name)

    def _start(self, operation: TracedOperation, fields: Mapping[str, Any], at: int | None = None) -> Span:
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            f"{operation.name} {fields['queue']}",
            kind=SpanKind.CONSUMER,
            attributes=_attributes(operation, fields),
            start_time=at,
        )


def _fail(span: Span, error: str) -> None:
    """Mark a span as failed; `error` is the type and the message of an error."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(ERROR_TYPE, error.partition(":")[0])
    span.set_status(Status(StatusCode.ERROR, error))


def _attributes(operation: TracedOperation, fields: Mapping[str, Any]) -> dict[str, Any]:
    found = attributes_of(operation.name, "process", fields["queue"])
    for name, value in fields.items():
        if name == "bucket":
            found["messaging.destination.partition.id"] = str(value)
        elif name == operation.messages:
            found["messaging.batch.message_count"] = value
        elif name not in ("queue", "seconds", "error"):
            found[f"cq.{name}"] = value
    return found
