"""OpenTelemetry: spans and metrics made from the events of workers, spans of adds, and a worker that sends them."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry

import cq
import cq.aio
from cq import links
from cq.links import Changes
from cq.observers.telemetry.bus import Event, during, emit, surround
from cq.observers.telemetry.events import EVENTS
from cq.observers.telemetry.metrics import SECONDS as BOUNDS
from cq.observers.telemetry.metrics import prometheus_metrics
from cq.observers.telemetry.otel import OpenTelemetryUnavailable, instrument, meter_metrics, start
from cq.observers.telemetry.traced_queue import TracedQueue
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.cli.conftest import Cli, cli, here
from tests.kit.queues import add, configured
from tests.links.linkhelpers import own_link

__all__ = ["cli", "here"]

T = TypeVar("T")

WAIT_SECONDS = 60.0


class Collected:
    """Providers whose spans and metrics stay in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The ended spans of this name, or all, in the order of their ends."""
        return [each for each in self._exporter.get_finished_spans() if name in ("", each.name)]

    def values(self) -> dict[tuple[str, str], Any]:
        """{(metric, labels): value}; a histogram's is its number of values, their sum and its bounds."""
        found: dict[tuple[str, str], Any] = {}
        data = self._reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
        for metric in (metric for scope in scopes for metric in scope.metrics):
            for point in metric.data.data_points:
                attributes = dict(point.attributes or {})
                queue = labelled(
                    {each: attributes.pop(each) for each in ("queue", "link") if each in attributes}
                )
                assert attributes == {}, metric.name
                if isinstance(point, HistogramDataPoint):
                    found[metric.name, queue] = (point.count, point.sum, tuple(point.explicit_bounds))
                else:
                    assert isinstance(point, NumberDataPoint)
                    found[metric.name, queue] = point.value
        return found


@pytest.fixture
def collected() -> Iterator[Collected]:
    """The spans and metrics of all events of the test."""
    found = Collected()
    end = instrument(found.tracers, found.meters)
    yield found
    end()


def labelled(labels: Mapping[str, object]) -> str:
    """The queue in the labels of a value, or the queue and the link."""
    return " ".join(str(labels[each]) for each in ("queue", "link") if each in labels)


def event_of(name: str, **fields: Any) -> Event:
    """An event with these fields, and 1 for all others."""
    return Event(name, {**dict.fromkeys(EVENTS[name].fields, 1), **fields})


class TestSpans:
    """Spans of what workers do."""

    def test_a_pass_is_a_span_with_the_attributes_of_messaging(
        self, db: Any, name: str, collected: Collected
    ) -> None:
        cq.configure(db, name, buckets=1)
        add(db, name, {"a": 1, "b": 1}, {"a": 2})
        Worker(db, queues=[name]).drain()

        (span,) = collected.spans()
        assert (span.name, span.kind, span.parent) == (f"combine {name}", SpanKind.CONSUMER, None)
        assert span.status.status_code is StatusCode.UNSET
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 < span.end_time - span.start_time < WAIT_SECONDS * 1e9
        assert dict(span.attributes or {}) == {
            "messaging.system": "cq",
            "messaging.operation.name": "combine",
            "messaging.operation.type": "process",
            "messaging.destination.name": name,
            "messaging.destination.partition.id": "0",
            "messaging.batch.message_count": 3,
            "cq.rows": 2,
            "cq.reported": 2,
            **dict.fromkeys(
                (
                    f"cq.{field}"
                    for field in ("folded", "told", "purged", "repeated", "aside", "conflicts", "retries")
                ),
                0,
            ),
        }

    def test_code_of_a_target_runs_in_the_span_of_its_batch(
        self, db: Any, name: str, collected: Collected
    ) -> None:
        fails = [True]
        tracer = collected.tracers.get_tracer("shop")

        def send(batch: Changes) -> None:
            with tracer.start_as_current_span("send"):
                if fails:
                    fails.pop()
                    raise ConnectionError("not now")

        app = own_link(db, name, send)
        transact(db, lambda tr: links.add(tr, name, {"a": {"total": 12}}))
        Worker(db, app, [name]).drain()

        failed, done = collected.spans(f"link {name}")
        inner = collected.spans("send")
        assert [each.parent for each in inner] == [failed.context, done.context]
        assert (failed.status.status_code, done.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
        assert failed.attributes is not None
        assert done.attributes is not None
        assert failed.attributes["error.type"] == "ConnectionError"
        assert "error.type" not in done.attributes
        assert done.attributes["messaging.batch.message_count"] == 1
        assert done.attributes["messaging.operation.name"] == "link"

    def test_a_failed_step_is_a_span_with_the_error(self, collected: Collected) -> None:
        emit(
            "task_failed",
            task="bucket 3 of queue 'words'",
            queue="words",
            error="OSError: full",
            pause=1.0,
            seconds=2.0,
        )

        (span,) = collected.spans("run words")
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "OSError: full")
        assert span.attributes is not None
        assert span.attributes["error.type"] == "OSError"
        assert span.attributes["cq.task"] == "bucket 3 of queue 'words'"
        assert span.start_time is not None
        assert (span.end_time or 0) - span.start_time == 2_000_000_000

    def test_every_event_with_an_operation_makes_a_span_and_no_other_does(self, collected: Collected) -> None:
        for name, kind in EVENTS.items():
            before = len(collected.spans())
            emit(name, **event_of(name, queue="words", error="ValueError: no").fields if kind.fields else {})
            assert len(collected.spans()) - before == (kind.operation is not None), name
            assert kind.operation is None or {"queue", "seconds"} <= {*kind.fields}, name

    def test_an_ended_instrumentation_makes_none(self) -> None:
        found = Collected()
        instrument(found.tracers, found.meters)()
        with during("link_done", queue="words", link="report", bucket=0):
            emit("link_done", queue="words", link="report", bucket=0, entries=1, seconds=0.1)
        assert found.spans() == []
        assert found.values() == {}

    def test_a_context_that_fails_harms_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(name: str, fields: Any) -> nullcontext[None]:
            raise RuntimeError("mine")

        end = surround(fail)
        ran = []
        with during("link_done", queue="words", link="report", bucket=0):
            ran.append(True)
        end()
        assert ran
        assert caplog.messages == ["a context failed for the event link_done"]


class TestInstruments:
    """Metrics for OpenTelemetry: those of the table, as Prometheus gets them."""

    def test_both_outputs_have_the_same_values(self) -> None:
        registry, found = CollectorRegistry(), Collected()
        outputs = prometheus_metrics(registry), meter_metrics(found.meters.get_meter("cq"))
        for name, kind in EVENTS.items():
            for queue in ("words", "words", "views"):
                fields = {each: queue for each in ("queue", "link") if each in kind.fields}
                for output in outputs:
                    output(event_of(name, **fields))

        served: dict[tuple[str, str], Any] = {}
        for sample in (sample for family in registry.collect() for sample in family.samples):
            queue = labelled(sample.labels)
            if sample.name.endswith("_count"):
                served[sample.name.removesuffix("_count"), queue] = sample.value
            elif not sample.name.endswith(("_created", "_bucket", "_sum")):
                served[sample.name.removesuffix("_total"), queue] = sample.value
        sent = found.values()

        assert sent["cq_pass_seconds", "words"] == (2, 2, BOUNDS)
        assert {key: value[0] if isinstance(value, tuple) else value for key, value in sent.items()} == served
        assert {name for name, _ in sent} == {
            metric.name for kind in EVENTS.values() for metric in kind.metrics
        } - {
            metric.name
            for event in ("queue_handed_over", "link_handed_over", "limit_handed_over")
            for metric in EVENTS[event].metrics
        }


class TestTracedQueue:
    """Spans of adds."""

    def test_an_add_is_a_child_of_the_callers_span(self, db: Any, name: str) -> None:
        found = Collected()
        configured(db, name)
        words = TracedQueue[str, int](name, tracer_provider=found.tracers)
        with found.tracers.get_tracer("shop").start_as_current_span("request") as request:
            words.add_now(db, {"a": 1, "b": 2})
        Worker(db, queues=[name]).drain()

        span = found.spans()[0]
        assert (span.name, span.kind) == (f"add {name}", SpanKind.PRODUCER)
        assert span.parent == request.get_span_context()
        assert dict(span.attributes or {}) == {
            "messaging.system": "cq",
            "messaging.operation.name": "add",
            "messaging.operation.type": "send",
            "messaging.destination.name": name,
            "messaging.batch.message_count": 2,
        }
        assert transact(db, lambda tr: words.get(tr, "b")) == 2

    def test_an_add_in_asyncio_is_a_child_of_the_tasks_span(self, db: Any, name: str) -> None:
        found = Collected()
        configured(db, name)
        words = cq.aio.CombineQueue(TracedQueue[str, int](name, tracer_provider=found.tracers))

        async def request(key: str) -> None:
            with found.tracers.get_tracer("shop").start_as_current_span(f"request {key}"):
                if key == "a":
                    await words.add_now(cq.aio.AsyncDatabase(db), {key: 1})
                else:
                    await cq.aio.AsyncDatabase(db).transact(lambda tr: words.add(tr, {key: 1}))

        async def both() -> None:
            await asyncio.gather(request("a"), request("b"))

        asyncio.run(both())
        requests = {each.context.span_id for each in found.spans() if each.name.startswith("request")}
        added = [each.parent for each in found.spans(f"add {name}")]
        assert {each.span_id for each in added if each} == requests
        assert len(requests) == 2


class TestSetUp:
    """Errors that say what to do."""

    @pytest.mark.parametrize("use", [start, instrument, lambda: TracedQueue("words")])
    def test_missing_packages_are_said(
        self, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        with pytest.raises(OpenTelemetryUnavailable, match=r"run `pip install 'combine-queue\[otel\]'`"):
            use()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"OTEL_TRACES_EXPORTER": "pigeon"},
                "cannot be set up: .*'pigeon'.*: check the OTEL_. environment",
            ),
            ({"OTEL_METRICS_EXPORTER": "smoke"}, "'smoke'"),
            ({"OTEL_EXPORTER_OTLP_PROTOCOL": "x"}, "protocol 'x'"),
            ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, "'otlp_proto_grpc'"),
        ],
    )
    def test_settings_that_cannot_be_used_are_said(
        self, settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable, value in settings.items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(OpenTelemetryUnavailable, match=message):
            start()


class Collector(ThreadingHTTPServer):
    """A collector of OTLP over HTTP, which keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[tuple[str, bytes]] = []
        self._changed = threading.Condition()

    def keep(self, path: str, body: bytes) -> None:
        with self._changed:
            self.bodies.append((path, body))
            self._changed.notify_all()

    def wait_for(self, find: Callable[[], T]) -> T:
        """What `find` finds, once it finds anything."""
        with self._changed:
            assert self._changed.wait_for(find, WAIT_SECONDS), [path for path, _ in self.bodies]
            return find()

    def span(self, name: str) -> Any:
        """The resource and the first span of this name, None without any."""
        for path, body in self.bodies:
            if path == "/v1/traces":
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for span in (span for scope in each.scope_spans for span in scope.spans):
                        if span.name == name:
                            return each.resource, span
        return None

    def metrics(self) -> set[str]:
        """The names of the metrics that have come."""
        return {
            metric.name
            for path, body in self.bodies
            if path == "/v1/metrics"
            for each in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in each.scope_metrics
            for metric in scope.metrics
        }


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.keep(self.path, body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A running collector."""
    with ExitStack() as opened:
        found = opened.enter_context(Collector())
        thread = threading.Thread(target=found.serve_forever, args=[0.01])
        thread.start()
        opened.callback(thread.join)
        opened.callback(found.shutdown)
        yield found


def test_a_worker_sends_spans_and_metrics_while_it_runs(cli: Cli, collector: Collector) -> None:
    """A worker that the environment alone sets up."""
    assert cli.run("configure", "words", "--buckets", "1").status == 0
    assert cli.run("add", "words", "a=1", "b=2").status == 0
    cli.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "CQ_WORKER_OTEL": "true",
    }
    worker = cli.start("worker")
    resource, span = collector.wait_for(lambda: collector.span("combine words"))
    collector.wait_for(lambda: "cq_waiting_bytes" in collector.metrics())
    worker.terminate()
    _, said = worker.communicate(timeout=WAIT_SECONDS)

    assert worker.returncode == 0, said
    attributes = {each.key: each.value for each in span.attributes}
    assert attributes["messaging.batch.message_count"].int_value == 2
    about = {each.key: each.value.string_value for each in resource.attributes}
    assert about["service.name"] == "cq-worker"
    assert about["deployment.environment.name"] == "test"
    assert about["service.instance.id"]
    assert {"cq_passes", "cq_updates", "cq_pass_seconds", "cq_workers"} <= collector.metrics()


def test_a_worker_sends_the_rest_at_its_end(cli: Cli, collector: Collector) -> None:
    """A drain ends before any interval has passed."""
    assert cli.run("configure", "words", "--buckets", "1").status == 0
    assert cli.run("add", "words", "a=1").status == 0
    cli.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    outcome = cli.run("worker", "--drain", "--otel")

    assert outcome.status == 0, outcome.err
    assert collector.span("combine words")
    assert "cq_passes" in collector.metrics()
