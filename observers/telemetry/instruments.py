"""Metrics of a worker for OpenTelemetry, made from the same table as those for Prometheus.

Names, the label `queue` and the bounds of histograms are those of `cq.observers.telemetry.metrics`. So alerts and
dashboards work with either output: Prometheus adds `_total` to the names of counters that it receives by OTLP, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cq.observers.telemetry.bus import Event
from cq.observers.telemetry.event_kind import Metric
from cq.observers.telemetry.events import EVENTS
from cq.observers.telemetry.metrics import SECONDS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_UNITS: Final = {"seconds": "s", "bytes": "By"}
"""{last word of a name: unit}. Other metrics have none: Prometheus would add the suffix `_ratio` for the unit 1."""


class Instruments:
    """Instruments that events update.

    Args:
        meter: makes the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._gauges: dict[str, dict[str, float]] = {}  # {name: {queue, or "" without this label: value}}
        self._updates: dict[str, Callable[[float | None, str], None]] = {}
        for kind in EVENTS.values():
            for metric in kind.metrics:
                if metric.name not in self._updates:
                    self._updates[metric.name] = self._make(metric)

    def __call__(self, event: Event) -> None:
        """Update the instruments by an event."""
        for metric in event.kind.metrics:
            value = event.fields[metric.value] if isinstance(metric.value, str) else metric.value
            self._updates[metric.name](value, event.fields.get("queue", ""))

    def _make(self, metric: Metric) -> Callable[[float | None, str], None]:
        """Make an instrument; returns the function that updates it by a value and the name of a queue."""
        settings: dict[str, Any] = {
            "unit": _UNITS.get(metric.name.rpartition("_")[2], ""),
            "description": metric.description,
        }
        if metric.type == "gauge":
            # Observed, because the value of a queue that another worker measures must go, and other gauges keep it.
            values = self._gauges[metric.name] = {}
            self._meter.create_observable_gauge(metric.name, [partial(_observe, values)], **settings)
            return partial(_set, values)
        if metric.type == "counter":
            counter = self._meter.create_counter(metric.name, **settings)
            return lambda value, queue: counter.add(value or 0.0, _labels(queue))
        histogram = self._meter.create_histogram(
            metric.name, explicit_bucket_boundaries_advisory=SECONDS, **settings
        )
        return lambda value, queue: histogram.record(value or 0.0, _labels(queue))


def _set(values: dict[str, float], value: float | None, queue: str) -> None:
    """Set the value of a queue's gauge, or remove it."""
    if value is None:
        values.pop(queue, None)
    else:
        values[queue] = value


def _observe(values: Mapping[str, float], options: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    return [Observation(value, _labels(queue)) for queue, value in list(values.items())]


def _labels(queue: str) -> dict[str, str]:
    return {"queue": queue} if queue else {}
