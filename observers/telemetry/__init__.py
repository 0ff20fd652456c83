"""Events of workers, and what is made of them: logs, metrics, totals.

The room may import only the words that every room uses, and results of passes.
"""

from cq.observers.telemetry.bus import (
    Event,
    emit,
    subscribe,
)
from cq.observers.telemetry.logs import (
    JsonFormatter,
    TextFormatter,
)
from cq.observers.telemetry.metrics import (
    serve,
)

__all__ = [
    "Event",
    "JsonFormatter",
    "TextFormatter",
    "emit",
    "serve",
    "subscribe",
]
