"""Metrics of a worker for Prometheus, made from its events, and the endpoint that serves them.

`cq.observers.telemetry.events` lists the metrics. Their only labels are the queue and the link: labels for buckets or
keys would create too many series.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cq import runtime
from cq.distribution import install_command
from cq.errors import CqError, InvalidConfiguration, MissingPackage
from cq.observers.telemetry.bus import Event, emit, subscribe
from cq.observers.telemetry.events import EVENTS, Metric
from cq.observers.telemetry.hosts import hosts_of, is_host

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

LOOPBACK: Final = "127.0.0.1"
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The bounds of histograms, in seconds: a pass takes less than one, and no transaction lives longer than five."""
CONNECTION_SECONDS: Final = 10.0
"""Within this time a client must send its request, and then take the answer, because each connection holds a thread."""
_VERBS: Final = {"counter": "inc", "histogram": "observe", "gauge": "set"}
Update = Callable[[float | None, Sequence[str]], None]
"""Updates a metric by a value, under the values of its labels; None removes the gauge."""
_ADDRESS: Final = re.compile(r"(?:(\[[^]]+\]|[^\s:\[\]]*):)?(\d{1,5})")


class MetricsUnavailable(CqError):
    """The endpoint for metrics cannot be opened at this address."""


class Address(NamedTuple):
    """Where the endpoint listens; port 0 stands for any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `9100`, `127.0.0.1:9100`, `0.0.0.0:9100` or `[::1]:9100`; the default host is the loopback address."""
        found = _ADDRESS.fullmatch(text)
        if not found or int(found[2]) > 65_535:
            raise InvalidConfiguration(f"expected an address such as 127.0.0.1:9100, got: {text!r}")
        return cls((found[1] or LOOPBACK).strip("[]"), int(found[2]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def plus(self, number: int) -> Address:
        """The address for the process of this number: the next ports, or any free port for each if the port is 0."""
        return self._replace(port=self.port + number) if self.port else self


def event_metrics(make: Callable[[Metric, Sequence[str]], Update]) -> Callable[[Event], None]:
    """A subscriber that updates the metrics of the table of events; `make` makes each, given its labels."""
    # Of each kind once: the labels are found by parsing the text of the kind.
    labels = {name: kind.labels for name, kind in EVENTS.items()}
    updates: dict[str, Update] = {}
    for name, kind in EVENTS.items():
        for metric in kind.metrics:
            if metric.name not in updates:
                updates[metric.name] = make(metric, labels[name])

    def update(event: Event) -> None:
        given = [event.fields.get(name, "") for name in labels[event.name]]
        for metric in event.kind.metrics:
            value = event.fields[metric.value] if isinstance(metric.value, str) else metric.value
            updates[metric.name](value, given)

    return update


def prometheus_metrics(registry: CollectorRegistry) -> Callable[[Event], None]:
    """A subscriber that updates metrics in a registry of prometheus-client."""
    import prometheus_client

    def make(metric: Metric, labels: Sequence[str]) -> Update:
        more: dict[str, Any] = {"buckets": SECONDS} if metric.type == "histogram" else {}
        made = getattr(prometheus_client, metric.type.capitalize())(
            metric.name, metric.description, labels, registry=registry, **more
        )

        def update(value: float | None, values: Sequence[str]) -> None:
            if value is None:
                with suppress(KeyError):  # the metric was never set under these labels
                    made.remove(*values)
            else:
                getattr(made.labels(*values) if values else made, _VERBS[metric.type])(value)

        return update

    return event_metrics(make)


def serve(address: Address, hosts: Sequence[str] = ()) -> Callable[[], None]:
    """Serve metrics of all events of this process from now on; returns a function that stops the endpoint.

    It answers under localhost, the name of this machine, IP addresses, the host of the address, and `hosts`. Raises
    `MissingPackage` without prometheus-client, and `MetricsUnavailable` if the address cannot be used.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app, start_http_server
    except ImportError as error:
        raise MissingPackage(
            f"metrics need a package that is not installed: run `{install_command('metrics')}`"
        ) from error
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics = prometheus_metrics(registry)
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        raise MetricsUnavailable(
            f"metrics cannot be served at {address}: {error.strerror}: give --metrics another address"
        ) from error
    server.RequestHandlerClass = _limited(server.RequestHandlerClass)
    server.set_app(_for_hosts(make_wsgi_app(registry), hosts_of([*hosts, address.host])))
    unsubscribe = subscribe(metrics)
    emit("metrics_served", address=str(address._replace(port=server.server_port)))

    def end() -> None:
        unsubscribe()
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def _for_hosts(app: WSGIApplication, hosts: frozenset[str]) -> WSGIApplication:
    """The application for requests under known host names only."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if is_host(environ.get("HTTP_HOST", ""), hosts):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [
            b"this worker does not answer under that host name; `cq worker --metrics-host NAME` adds one\n"
        ]

    return answer


def _limited(handler: Any) -> Any:
    """A subclass of a request handler, with a time limit for the request and for each write of the answer."""

    class Limited(handler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            self.rfile = BufferedReader(_TimedReads(self.connection))

        def handle(self) -> None:
            with suppress(ConnectionError, TimeoutError):  # the client has closed it, or is too slow
                super().handle()

    return Limited


class _TimedReads(RawIOBase):
    """What a client sends; all its reads together have a time limit, as bytes may come one by one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._until = connection, runtime.monotonic() + CONNECTION_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self._connection.settimeout(max(0.001, self._until - runtime.monotonic()))
        read = self._connection.recv_into(into)
        self._connection.settimeout(CONNECTION_SECONDS)  # of the answer
        return read
