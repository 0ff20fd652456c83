"""Links to Kafka against a real broker: the messages, and what failures and settings do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

import cq
from cq import links
from cq.links import LinkFailed, LinkStopped
from cq.observers.links.registry import opened_link
from cq.observers.links.spec import KAFKA_ENV
from cq.observers.links.targets import brokers
from cq.observers.links.targets.brokers import FIXED, KafkaTopic, TopicMessage, read_settings
from cq.testing import drain
from tests.cli.conftest import Cli, cli, here
from tests.kit.queues import add
from tests.links.kafkahelpers import Broker, history, once, stopped
from tests.links.linkhelpers import combine, link_tasks, status, step

__all__ = ["cli", "here"]

QUEUE, LINK = "words", "kafka"


def change(db: Any) -> None:
    """Change a value, without sending the change."""
    add(db, QUEUE, {"a": 1})
    combine(db, QUEUE)


@pytest.fixture
def db(cli: Cli) -> Iterator[Any]:
    database: Any = cq.open(cli.url)
    yield database
    database.close()


@pytest.fixture(autouse=True)
def _address(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_ENV, broker.address)
    monkeypatch.delenv(f"{KAFKA_ENV}_CONFIG", raising=False)


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic of three partitions."""
    name = f"words.{secrets.token_hex(8)}"
    broker.create(name)
    return name


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with settings of the client, which the environment names."""
    file = tmp_path / "kafka.properties"
    monkeypatch.setenv(f"{KAFKA_ENV}_CONFIG", str(file))
    return file


class TestMessages:
    """What a topic gets."""

    def test_a_rebuild_sends_all_values_and_then_a_sweep_to_each_partition(
        self, db: Any, broker: Broker, topic: str
    ) -> None:
        cq.configure(db, QUEUE, links=[links.kafka(topic)])
        add(db, QUEUE, {"a": 1, "b": 2})
        drain(db, QUEUE)
        with opened_link(db, QUEUE) as sink:
            assert sink.rebuild() > 1
        drain(db, QUEUE)

        received = broker.received(topic)
        sweeps = [each for each in received if each.key == {"sweep": QUEUE}]
        below = max(each.headers["cq-sweep"] for each in sweeps)
        assert {each.partition for each in sweeps if each.headers["cq-sweep"] == below} == {0, 1, 2}
        values = once(received)
        assert len({(each.key, each.partition) for each in values}) == 2
        for each in values:
            assert (each.value["key"], each.value["sequence"]) == (each.key, each.position)
            assert each.headers["cq-queue"] == QUEUE
            assert each.headers["cq-previous"] < each.position
        assert history(values) == {"a": [1, 1], "b": [2, 2]}
        assert sorted(each.key for each in values if each.position >= below) == ["a", "b"]

    def test_large_values_and_many_keys_arrive_whole(self, db: Any, broker: Broker, topic: str) -> None:
        cq.configure(db, QUEUE, value=str, combiner="last", links=[links.kafka(topic)])
        values = {f"k{number}": str(number % 10) * 80_000 for number in range(30)}
        values |= {f"small{number}": "" for number in range(2_000)}
        for key, value in values.items():
            if len(value) > 1:
                add(db, QUEUE, {key: value})
        add(db, QUEUE, {key: value for key, value in values.items() if not value})
        drain(db, QUEUE)
        assert broker.values(topic) == values


class TestFailures:
    """The broker is away, or refuses."""

    def test_a_broker_that_does_not_answer_is_tried_again(
        self, db: Any, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cq.configure(db, QUEUE, links=[links.kafka(topic)])
        add(db, QUEUE, {"a": 1})
        drain(db, QUEUE)
        change(db)
        with stopped(broker), monkeypatch.context() as short:
            short.setattr(brokers, "CONNECT_SECONDS", 0.2)
            short.setattr(brokers, "STORE_SECONDS", 0.2)  # if the link is connected already
            assert step(db, QUEUE).startswith(f"failing: LinkFailed: topic '{topic}' of Kafka in $CQ_KAFKA: ")
        drain(db, QUEUE)
        assert status(db, QUEUE) == "active: "
        assert history(once(broker.received(topic))) == {"a": [1, 2]}

    def test_a_batch_without_an_answer_is_given_up_whole(
        self, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sending = KafkaTopic(topic, KAFKA_ENV)
        messages = [_message(number) for number in range(300)]
        sending.append(messages[:100])
        with stopped(broker), monkeypatch.context() as short:
            short.setattr(brokers, "STORE_SECONDS", 0.2)
            with pytest.raises(LinkFailed, match=f"topic '{topic}' of Kafka in"):
                sending.append(messages[100:200])
        sending.append(messages[100:])
        sending.close()
        assert history(once(broker.received(topic))) == {
            f"k{key}": list(range(key, 300, 7)) for key in range(7)
        }

    def test_an_unknown_topic_stops_the_export_until_a_rebase(self, db: Any, broker: Broker) -> None:
        name = f"absent.{secrets.token_hex(8)}"
        cq.configure(db, QUEUE, links=[links.kafka(name)])
        change(db)
        assert step(db, QUEUE).startswith(
            f"stopped: topic '{name}' of Kafka in $CQ_KAFKA: Broker: Unknown topic"
        )
        assert "`cq link rebase words kafka`" in status(db, QUEUE)
        broker.create(name)
        assert step(db, QUEUE).startswith("stopped")
        with opened_link(db, QUEUE) as sink:
            assert sink.rebase() == 1
        drain(db, QUEUE)
        assert broker.values(name) == {"a": 1}
        assert status(db, QUEUE) == "active: "

    def test_a_refused_login_is_not_tried_again_and_shows_no_password(
        self, topic: str, settings_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(brokers, "CONNECT_SECONDS", 60.0)
        settings_file.write_text(
            "security.protocol=sasl_plaintext\nsasl.mechanisms=PLAIN\nsasl.username=me\nsasl.password=hunter2\n"
        )
        with pytest.raises(LinkStopped) as refused:
            KafkaTopic(topic, KAFKA_ENV).check()
        assert "SASL PLAIN" in str(refused.value)
        assert "hunter2" not in str(refused.value)

    def test_the_errors_of_a_refusal_are_those_of_the_client(self) -> None:
        assert [name for name in brokers._REFUSALS if not hasattr(KafkaError, name)] == []


def _message(number: int) -> TopicMessage:
    key = f"k{number % 7}"
    value = f'{{"value": {number}}}'.encode()
    return TopicMessage(f'"{key}"'.encode(), value, [("cq-position", f"{number + 1:08}".encode())])


class TestSettings:
    """Addresses and settings from the environment."""

    @pytest.mark.parametrize(
        "given", ["kafka://me:hunter2@host:9092", "host:9092,,hunter2@x", "host:hunter2", " "]
    )
    def test_malformed_addresses_are_refused_and_not_shown(
        self, given: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(KAFKA_ENV, given)
        with pytest.raises(LinkFailed, match=r"the addresses in \$CQ_KAFKA are malformed") as failed:
            read_settings(KAFKA_ENV)
        assert "hunter2" not in str(failed.value)

    def test_missing_addresses_are_named_and_left_to_other_workers(
        self, db: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(KAFKA_ENV, raising=False)
        cq.configure(db, QUEUE, links=[links.kafka("words")])
        with link_tasks(db, QUEUE) as tasks:
            assert tasks == []
        assert "$CQ_KAFKA is not set: give the addresses of Kafka's brokers there" in status(db, QUEUE)

    def test_a_file_gives_settings_except_those_of_the_guarantees(
        self, settings_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(KAFKA_ENV, "a:9092, [::1]:9093,b")
        settings_file.write_text("# a comment\n\n acks = 0\nsasl.password= a=b \nbootstrap.servers=c\n")
        found = read_settings(KAFKA_ENV)
        assert found == {**FIXED, "sasl.password": "a=b", "bootstrap.servers": "a:9092,[::1]:9093,b"}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a=b\nhunter2\n", "line 2 of the file that $CQ_KAFKA_CONFIG names is not NAME=VALUE"),
            ("no.such=hunter2", "refuses the setting no.such in the file that $CQ_KAFKA_CONFIG names"),
            ("security.protocol=hunter2", "refuses the setting security.protocol in the file"),
            ("message.max.bytes=hunter2", "refuses the setting message.max.bytes in the file"),
            ("security.protocol=sasl_plaintext\nsasl.mechanisms=PLAIN", "refuses settings in the file"),
        ],
    )
    def test_other_settings_are_refused_without_their_values(
        self, text: str, expected: str, settings_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(KAFKA_ENV, "127.0.0.1:1")
        settings_file.write_text(text)
        with pytest.raises(LinkFailed) as failed:
            KafkaTopic("words", KAFKA_ENV).check()
        assert expected in str(failed.value)
        assert "hunter2" not in str(failed.value)

    def test_a_file_that_cannot_be_read_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(KAFKA_ENV, "127.0.0.1:1")
        monkeypatch.setenv(f"{KAFKA_ENV}_CONFIG", "/hunter2")
        with pytest.raises(LinkFailed, match="cannot be read: FileNotFoundError") as failed:
            read_settings(KAFKA_ENV)
        assert "hunter2" not in str(failed.value)

    @pytest.mark.parametrize("name", ["", "..", "a b", "é", "x" * 250, None])
    def test_other_names_of_topics_are_refused(self, name: Any) -> None:
        with pytest.raises(cq.errors.InvalidConfiguration, match="expected the name of a topic"):
            links.kafka(name)
