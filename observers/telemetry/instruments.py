"""Metrics of a worker for OpenTelemetry, made from the same table as those for Prometheus.

Names, the label `queue` and the bounds of histograms are those of `cq.observers.telemetry.metrics`. So alerts and
dashboards work with either output: Prometheus adds `_total` to the names of counters that it receives by OTLP, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cq.observers.telemetry.event_kind import Metric
from cq.observers.telemetry.metrics import SECONDS, EventMetrics, Update

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_UNITS: Final = {"seconds": "s", "bytes": "By"}
"""{last word of a name: unit}. Other metrics have none: Prometheus would add the suffix `_ratio` for the unit 1."""


class Instruments(EventMetrics):
    """Instruments that a meter of OpenTelemetry makes."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        super().__init__()

    def make(self, metric: Metric, labels: Sequence[str]) -> Update:
        """Make an instrument."""
        settings: dict[str, Any] = {
            "unit": _UNITS.get(metric.name.rpartition("_")[2], ""),
            "description": metric.description,
        }
        if metric.type == "gauge":
            # Observed, because the value of a queue that another worker measures must go, and other gauges keep it.
            values: dict[tuple[str, ...], float] = {}
            observe = partial(_observe, labels, values)
            self._meter.create_observable_gauge(metric.name, [observe], **settings)
            return partial(_set, values)
        if metric.type == "counter":
            update: Any = self._meter.create_counter(metric.name, **settings).add
        else:
            update = self._meter.create_histogram(
                metric.name, explicit_bucket_boundaries_advisory=SECONDS, **settings
            ).record
        return lambda value, given: update(value, dict(zip(labels, given, strict=True)))


def _set(values: dict[tuple[str, ...], float], value: float | None, given: Sequence[str]) -> None:
    """Set the value of a gauge under the values of its labels, or remove it."""
    if value is None:
        values.pop(tuple(given), None)
    else:
        values[tuple(given)] = value


def _observe(
    labels: Sequence[str], values: Mapping[tuple[str, ...], float], options: CallbackOptions
) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    return [
        Observation(value, dict(zip(labels, given, strict=True))) for given, value in list(values.items())
    ]
