"""Events of workers, and their consumers: logs, metrics and counts.

The room may import only the rooms of `cq`, of which it needs errors, text functions and the results of passes.
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
