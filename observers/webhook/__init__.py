"""Export to a webhook: an observer and an exporter that send the changes of a queue to a URL, signed and in order.

The room may import `cq.observers.export` and the rooms below it.
"""

from cq.observers.webhook.observer import (
    webhook_spec,
)

__all__ = [
    "webhook_spec",
]
