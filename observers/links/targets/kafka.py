"""A topic of Kafka as a target: at least once, in commit order for each key.

Messages of a key are in one partition. Each has its entry's sequence as its position. Positions of a key grow, and cq
appends the entries of a bucket in order, without gaps, from the first one that the store still holds. So whatever
batches are repeated, after a crash or by a delayed worker, a consumer that ignores messages of a key whose position is
not above the last one gets each change once, in order. A topic has no fence: cq cannot see what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cq.app import App
from cq.config.queue import QueueConfig
from cq.keys.link import Position
from cq.observers.links.target import CannotSend, Changes, Source, Target, in_json
from cq.observers.links.targets.brokers import KafkaTopic, TopicMessage

STORE, QUEUE, BUCKET = "cq-store", "cq-queue", "cq-bucket"
POSITION, PREVIOUS, SWEEP = "cq-position", "cq-previous", "cq-sweep"
"""The names of headers."""
_FORM: Final = (",", ":")


def make_target(source: Source, config: QueueConfig, settings: Mapping[str, Any], app: App) -> Target:
    """The topic in the settings."""
    return KafkaTarget(source, KafkaTopic(settings["topic"], settings["url_env"]))


class KafkaTarget(Target):
    """A topic of Kafka, which keeps no positions; thread-safe."""

    noun = "the topic"

    def __init__(self, source: Source, topic: KafkaTopic) -> None:
        self._queue = source.queue
        self._topic = topic
        self._source = [(STORE, source.store.hex().encode()), (QUEUE, source.queue.encode())]

    def apply(self, changes: Changes) -> None:
        if messages := self._messages(changes):
            self._topic.append(messages)
        self.signal("delivered")

    def check(self) -> None:
        self._topic.check()

    def check_settings(self) -> str:
        return f"the brokers at {self._topic.check_settings()} have the topic {self._topic.name!r}"

    def sweep(self, epoch: int, below: bytes) -> int:
        """Append to each partition that keys last sent below this sequence have no value; returns 0.

        The message needs no epoch: a store that was set back to before a generation of which a topic has entries needs
        another topic, as consumers ignore lower positions.
        """
        # Compacted topics refuse messages without a key. No queue has this one: keys are texts, numbers and lists.
        key = _text({"sweep": self._queue})
        headers: list[tuple[str, str | bytes | None]] = [*self._source, (SWEEP, below.hex().encode())]
        self._topic.append_to_all(TopicMessage(key, _text({"below": below.hex()}), headers))
        return 0

    def close(self) -> None:
        self._topic.close()

    def _messages(self, changes: Changes) -> list[TopicMessage]:
        """The messages of changes in order; raises `CannotSend` for entries without a form in JSON or too large."""
        before = Position.parse(changes.previous)
        previous = before.sequence if before else b""
        longest = self._topic.longest_message()
        messages: list[TopicMessage] = []
        errors: dict[bytes, str] = {}
        for entry, content in zip(changes.entries, in_json(changes.entries), strict=True):
            headers: list[tuple[str, str | bytes | None]] = [
                *self._source,
                (BUCKET, str(changes.bucket).encode()),
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
            raise CannotSend(next(iter(errors.values())), errors)
        return messages


def _text(content: Any) -> bytes:
    return json.dumps(content, separators=_FORM).encode()
