"""`TracedQueue`: a queue whose adds make spans of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from cq.combiners import Combiner
from cq.distribution import version
from cq.observers.telemetry.otel import SCOPE, missing
from cq.observers.telemetry.spans import attributes_of
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction
from cq.type_variables import K, V

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

_COUNT: Final = "messaging.batch.message_count"


class TracedQueue(CombineQueue[K, V]):
    """A `cq.CombineQueue` that makes a span for each call of `add` and `add_now`, below the caller's current span.

    Use it in place of a `cq.CombineQueue`, also for `cq.Emitter`; other handles of the queue make no spans. The span of
    `add` covers the call: the updates are checked and written into the transaction, which commits later. A transaction
    that is retried adds again, with another span. The span of `add_now` ends when its updates are committed. The
    updates carry no trace context, so spans of passes have no links to those of adds.

    Args:
        name: as for `cq.CombineQueue`.
        combiner: as for `cq.CombineQueue`.
        tracer_provider: for the spans; default: the global one.

    Raises:
        OpenTelemetryUnavailable: opentelemetry-api is not installed.
    """

    def __init__(
        self, name: str, *, combiner: Combiner | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        super().__init__(name, combiner=combiner)
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise missing() from error
        self._tracer = trace.get_tracer(SCOPE, version(), tracer_provider)
        self._kind = trace.SpanKind.PRODUCER

    def add(
        self,
        tr: Transaction,
        updates: Mapping[K, V] | Collection[tuple[K, V]],
        once: str | bytes | None = None,
    ) -> None:
        """Queue an update for each key, in a span. `tr`, `updates`, `once` and errors are those of the base class."""
        with self._span() as span:
            super().add(tr, updates, once)
            span.set_attribute(_COUNT, len(updates))

    def add_now(
        self,
        db: Database,
        updates: Mapping[K, V] | Collection[tuple[K, V]],
        once: str | bytes | None = None,
    ) -> None:
        """Queue and commit updates, in a span. `db`, `updates`, `once` and errors are those of the base class."""
        with self._span() as span:
            super().add_now(db, updates, once)
            span.set_attribute(_COUNT, len(updates))

    def _span(self) -> AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(
            f"add {self.name}", kind=self._kind, attributes=attributes_of("add", "send", self.name)
        )
