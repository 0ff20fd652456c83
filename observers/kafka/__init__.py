"""Export to a topic of Kafka: an observer and an exporter that append the changes of a queue to it, in order.

The room may import `cq.observers.sink` and the rooms below it.
"""

from cq.observers.kafka.observer import (
    kafka_spec,
)

__all__ = [
    "kafka_spec",
]
