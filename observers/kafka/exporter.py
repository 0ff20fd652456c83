"""The exporter that appends changes to a topic of Kafka: at least once, in commit order for each key.

Messages of a key are in one partition. Each has its entry's sequence as its position. Positions of a key grow, and cq
appends the entries of a bucket in order, without gaps, from the first one that the store still holds. So whatever
batches are repeated, after a crash or by a delayed worker, a consumer that ignores messages of a key whose position is
not above the last one gets each change once, in order. A topic has no fence: cq cannot see what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from cq.observers.export.batch import CannotExport, ExportBatch, ExportStopped
from cq.observers.kafka.client import KafkaTopic, TopicMessage
from cq.observers.sink.exporter import SentPosition, SinkExporter, in_json

STORE, QUEUE, BUCKET = "cq-store", "cq-queue", "cq-bucket"
POSITION, PREVIOUS, SWEEP = "cq-position", "cq-previous", "cq-sweep"
"""The names of headers."""
_FORM: Final = (",", ":")


class KafkaExporter(SinkExporter):
    """An exporter to a topic, for all buckets of an export queue; thread-safe.

    Args:
        store: the id of the store.
        queue: the name of the queue.
        topic: the topic.
    """

    def __init__(self, store: bytes, queue: str, topic: KafkaTopic) -> None:
        self._queue = queue
        self._topic = topic
        self._source = [(STORE, store.hex().encode()), (QUEUE, queue.encode())]

    def __call__(self, batch: ExportBatch) -> None:
        messages = self._messages(batch)
        if messages:
            self._run(lambda: self._topic.append(messages))
        self.signal("delivered")

    def check(self, batches: Sequence[ExportBatch]) -> None:
        self._run(self._topic.check)

    def check_settings(self) -> str:
        return f"the brokers at {self._topic.check_settings()} have the topic {self._topic.name!r}"

    def positions(self, batches: Sequence[ExportBatch]) -> list[SentPosition]:
        self.check(batches)
        return []

    def sweep(self, queue: str, epoch: int, below: bytes) -> int:
        """Append to each partition that keys last sent below this sequence have no value; returns 0."""
        # Compacted topics refuse messages without a key. No queue has this one: keys are texts, numbers and lists.
        key = _text({"sweep": queue})
        headers = [*self._source, (SWEEP, below.hex().encode())]
        self._run(
            lambda: self._topic.append_to_all(TopicMessage(key, _text({"below": below.hex()}), headers))
        )
        return 0

    def close(self) -> None:
        self._topic.close()

    def _messages(self, batch: ExportBatch) -> list[TopicMessage]:
        """The messages of a batch in order; raises `CannotExport` for entries without a form in JSON or too large."""
        previous, longest = batch.cleared, self._topic.longest_message()
        messages: list[TopicMessage] = []
        errors: dict[bytes, str] = {}
        for entry, content in zip(batch.ordered, in_json(batch.ordered), strict=True):
            headers = [
                *self._source,
                (BUCKET, str(batch.bucket).encode()),
                (POSITION, entry.sequence.hex().encode()),
                (PREVIOUS, previous.hex().encode()),
            ]
            # A deletion is a tombstone: its position is in the headers, and compacted topics drop the key.
            message = TopicMessage(
                _text(content["key"]), None if entry.value is None else _text(content), headers
            )
            size = len(message.key) + len(message.value or b"")
            if size > longest:
                errors[entry.sequence] = (
                    f"a message of {size:,} bytes is larger than message.max.bytes, {longest:,}"
                )
            messages.append(message)
            previous = entry.sequence
        if errors:
            raise CannotExport(next(iter(errors.values())), errors)
        return messages

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except ExportStopped as error:
            raise ExportStopped(f"{error}. {self.advice(self._queue)}") from None


def _text(content: Any) -> bytes:
    return json.dumps(content, separators=_FORM).encode()
