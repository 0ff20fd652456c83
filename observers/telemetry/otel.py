"""Sending of spans and metrics by OpenTelemetry: for `cq worker --otel`, and for applications with workers.

The environment configures it, by the variables that OpenTelemetry's specification names: which exporters
(`$OTEL_TRACES_EXPORTER`, `$OTEL_METRICS_EXPORTER`), to which address (`$OTEL_EXPORTER_OTLP_ENDPOINT`), and so on.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from cq import runtime
from cq.distribution import install_command, version
from cq.errors import InvalidConfiguration
from cq.observers.telemetry.bus import Event, subscribe, surround
from cq.observers.telemetry.events import Metric
from cq.observers.telemetry.metrics import SECONDS, Update, event_metrics
from cq.observers.telemetry.spans import Spans
from cq.plain_text import describe

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

SCOPE: Final = "cq"
"""The name of the instrumentation scope of all spans and metrics."""
SERVICE: Final = "cq-worker"
"""The attribute `service.name` of a worker, unless the environment names another."""
END_SECONDS: Final = 5.0
"""How long an ending process tries to send its last spans and metrics."""
_UNITS: Final = {"seconds": "s", "bytes": "By"}
"""{last word of a metric's name: unit}. Others have none: Prometheus would add the suffix `_ratio` for the unit 1."""
_DEFAULTS: Final = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}
"""{variable: its value, unless the environment has one}."""


class OpenTelemetryUnavailable(InvalidConfiguration):
    """Spans and metrics cannot be sent: a package is missing, or the environment asks for an unknown exporter."""


def instrument(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Make spans and metrics of all events of this process from now on; returns a function that ends this.

    For an application that runs a `Worker` in its own process and has set OpenTelemetry up. Create the worker with
    `measure=True` for metrics of the backlog.

    Args:
        tracer_provider: for the spans; default: the global one.
        meter_provider: for the metrics; default: the global one.

    Raises:
        OpenTelemetryUnavailable: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise missing() from error
    spans = Spans(trace.get_tracer(SCOPE, version(), tracer_provider))
    instruments = meter_metrics(metrics.get_meter(SCOPE, version(), meter_provider))
    ends = [subscribe(spans), subscribe(instruments), surround(spans.during)]

    def end() -> None:
        for each in ends:
            each()

    return end


def meter_metrics(meter: Meter) -> Callable[[Event], None]:
    """A subscriber that updates instruments of OpenTelemetry; names, labels and bounds are those for Prometheus.

    So alerts and dashboards work with either output: Prometheus adds `_total` to the names of counters that it receives
    by OTLP, too.
    """
    from opentelemetry.metrics import CallbackOptions, Observation

    def make(metric: Metric, labels: Sequence[str]) -> Update:
        settings: dict[str, Any] = {
            "unit": _UNITS.get(metric.name.rpartition("_")[2], ""),
            "description": metric.description,
        }

        def named(given: Sequence[str]) -> dict[str, str]:
            return dict(zip(labels, given, strict=True))

        if metric.type == "gauge":
            # Observed, because the value of a queue that another worker measures must go, and other gauges keep it.
            values: dict[tuple[str, ...], float] = {}

            def observe(options: CallbackOptions) -> list[Observation]:
                return [Observation(value, named(given)) for given, value in list(values.items())]

            def put(value: float | None, given: Sequence[str]) -> None:
                values.pop(tuple(given), None)
                if value is not None:
                    values[tuple(given)] = value

            meter.create_observable_gauge(metric.name, [observe], **settings)
            return put

        if metric.type == "counter":
            update: Any = meter.create_counter(metric.name, **settings).add
        else:
            update = meter.create_histogram(
                metric.name, explicit_bucket_boundaries_advisory=SECONDS, **settings
            ).record
        return lambda value, given: update(value, named(given))

    return event_metrics(make)


def start() -> Callable[[], None]:
    """Send spans and metrics of this process as the environment says; returns a function that sends the rest and ends.

    Sets the global providers, so code of the application can use them, too. If they are set already, as under
    `opentelemetry-instrument`, spans and metrics go there. The returned function takes up to `END_SECONDS`.

    Raises:
        OpenTelemetryUnavailable: opentelemetry-sdk is not installed, or an exporter that the environment names.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as error:
        raise missing() from error
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return instrument()
    try:
        shut_down = _set_providers()
    except Exception as error:  # exporters are plug-ins, which may raise anything for their settings
        raise OpenTelemetryUnavailable(
            f"OpenTelemetry cannot be set up: {describe(error)}: check the OTEL_* environment variables"
        ) from error
    finish = instrument()

    def end() -> None:
        finish()
        # Daemons, because a collector that does not answer must not delay the end of the process.
        threads = [threading.Thread(target=each, name="otel", daemon=True) for each in shut_down]
        for thread in threads:
            thread.start()
        deadline = runtime.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - runtime.monotonic()))

    return end


def _set_providers() -> list[Callable[[], None]]:
    """Set the global providers by the environment; returns the functions that send the rest and shut them down."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk._configuration import _OTelSDKConfigurator  # as OpenTelemetry's distributions do

    for variable, value in _DEFAULTS.items():
        os.environ.setdefault(variable, value)
    configurator: Any = _OTelSDKConfigurator
    configurator().configure(resource_attributes=_resource_attributes())
    providers: list[Any] = [trace.get_tracer_provider(), metrics.get_meter_provider()]
    for each in providers:
        atexit.unregister(each.shutdown)  # it would wait for a collector that does not answer
    return [each.shutdown for each in providers]


def _resource_attributes() -> dict[str, Any]:
    """The name and the id of this process, unless the environment has them."""
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource

    found = Resource.create().attributes
    # Without an id the metrics of two workers would be one series.
    more = {} if SERVICE_INSTANCE_ID in found else {SERVICE_INSTANCE_ID: str(uuid4())}
    if str(found.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        more[SERVICE_NAME] = SERVICE
    return more


def missing() -> OpenTelemetryUnavailable:
    """The error for packages that are not installed."""
    return OpenTelemetryUnavailable(
        f"OpenTelemetry needs packages that are not installed: run `{install_command('otel')}`"
    )
