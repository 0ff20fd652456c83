"""Events of workers, and their consumers: logs, metrics, spans, counts, and the history of each queue.

The room may import only the rooms of `cq`.
"""

from cq.observers.telemetry.bus import Event, emit, subscribe
from cq.observers.telemetry.history import HistoryMinute, read_history
from cq.observers.telemetry.logs import JsonFormatter, TextFormatter
from cq.observers.telemetry.metrics import serve
from cq.observers.telemetry.otel import instrument
from cq.observers.telemetry.traced_queue import TracedQueue

__all__ = [
    "Event",
    "HistoryMinute",
    "JsonFormatter",
    "TextFormatter",
    "TracedQueue",
    "emit",
    "instrument",
    "read_history",
    "serve",
    "subscribe",
]
