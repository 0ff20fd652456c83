"""The form of workers' events: the log message, the fields, the metrics and the operation of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """A metric that an event updates; it has the labels `queue` and `link` if the event has these fields.

    Attributes:
        name: with its unit; a counter is exposed with the suffix `_total`.
        type: a counter is increased, a histogram observes, a gauge is set.
        value: the field with the value, or the value itself; None removes the gauge.
        description: empty if an earlier event of the table has it.
    """

    name: str
    type: Literal["counter", "histogram", "gauge"]
    value: str | float | None = 1.0
    description: str = ""


class TracedOperation(NamedTuple):
    """An operation that an event ends; OpenTelemetry gets a span for it, of the event's `seconds`.

    Attributes:
        name: the verb; the span's name is the verb and the queue.
        messages: the field with the number of messages that the operation has processed, if any.
    """

    name: str
    messages: str | None = None


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event.

    Attributes:
        level: of the log record.
        text: format of the log message, with names of fields.
        description: when the event is emitted.
        others: fields that the text does not contain, except the queue of a task.
        metrics: the metrics that it updates.
        operation: the operation that it ends, if any.
    """

    level: int
    text: str
    description: str
    others: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    operation: TracedOperation | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its metrics."""
        return tuple(name for name in ("queue", "link") if name in self.fields)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields."""
        shown = [name for _, name, _, _ in Formatter().parse(self.text) if name]
        of_task = ["queue"] if "task" in shown else []
        return tuple(dict.fromkeys([*shown, *of_task, *self.others]))
