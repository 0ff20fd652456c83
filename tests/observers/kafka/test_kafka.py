"""Exports to Kafka against a real broker: what a topic gets, in which order, and what failures do."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

import cq
from cq.keys.export import ExportKeys
from cq.observers.builtin import FACTORIES, observer_tasks
from cq.observers.export.batch import ExportBatch, ExportFailed, ExportStopped
from cq.observers.export.state import entries_aside
from cq.observers.exporters import opened_sink
from cq.observers.forward.observer import forward_spec
from cq.observers.kafka import client
from cq.observers.kafka.client import KafkaTopic, TopicMessage
from cq.observers.kafka.exporter import KafkaExporter
from cq.observers.kafka.observer import DEFAULT_ENV, kafka_exporter, kafka_spec
from cq.observers.kafka.settings import FIXED, read_settings
from cq.observers.monitoring.diagnosis import doctor
from cq.observers.monitoring.export_status import export_status
from cq.testing import drain
from tests.cli.conftest import Cli, Here, cli, here
from tests.helpers import add, combine_all, configured
from tests.observers.export.exporthelpers import BuiltInApp, run_killed, waits
from tests.observers.kafka.kafkahelpers import Broker, history, once, running, stopped

__all__ = ["cli", "here"]

QUEUE = "words"


@pytest.fixture
def db(cli: Cli) -> Iterator[Any]:
    database: Any = cq.open(cli.url)
    yield database
    database.close()


@pytest.fixture(scope="module")
def _broker() -> Iterator[Broker]:
    with running() as broker:
        yield broker


@pytest.fixture
def broker(_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The broker; its address is in the environment."""
    monkeypatch.setenv(DEFAULT_ENV, _broker.address)
    monkeypatch.delenv(f"{DEFAULT_ENV}_CONFIG", raising=False)
    return _broker


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
    monkeypatch.setenv(f"{DEFAULT_ENV}_CONFIG", str(file))
    return file


def state(db: Any) -> str:
    """State and error of the export."""
    (found,) = export_status(db, QUEUE)
    return f"{found.state}: {found.error}"


def change(db: Any, **updates: int) -> None:
    """Change values, without exporting the changes."""
    add(db, QUEUE, updates)
    combine_all(db, QUEUE, BuiltInApp())


def step(db: Any) -> str:
    """One step of the keeper and of each bucket's task; returns the state."""
    tasks = observer_tasks(db, configured(db, QUEUE))["export"]
    for task in tasks:
        task.run()
    for task in tasks:
        task.end()
    return state(db)


class TestMessages:
    """What a topic gets."""

    def test_a_topic_gets_values_changes_and_deletions(self, db: Any, broker: Broker, topic: str) -> None:
        cq.configure(db, QUEUE)
        add(db, QUEUE, {"old": 1, "gone": 2})
        drain(db, QUEUE)
        cq.put_observer(db, QUEUE, kafka_spec(topic))
        drain(db, QUEUE)
        add(db, QUEUE, {"old": 4, "gone": -2, "new": 3})
        drain(db, QUEUE)

        received = broker.received(topic)
        assert history(once(received)) == {"old": [1, 5], "gone": [2, None], "new": [3]}
        assert waits(db, QUEUE) == 0
        assert state(db) == "active: "
        assert [each.table for each in export_status(db)] == [f"topic {topic} in ${DEFAULT_ENV}"]
        for key in ("old", "gone", "new"):
            assert len({each.partition for each in received if each.key == key}) == 1
        for each in once(received):
            assert each.headers["cq-queue"] == QUEUE
            assert each.headers["cq-previous"] < each.position
            if each.value is not None:
                assert (each.value["key"], each.value["sequence"]) == (each.key, each.position)

    def test_a_rebuild_sends_all_values_and_then_a_sweep_to_each_partition(
        self, db: Any, broker: Broker, topic: str
    ) -> None:
        cq.configure(db, QUEUE, observers=[kafka_spec(topic)])
        add(db, QUEUE, {"a": 1, "b": 2})
        drain(db, QUEUE)
        with opened_sink(db, QUEUE) as sink:
            assert sink.rebuild() > 1
        drain(db, QUEUE)

        received = broker.received(topic)
        sweeps = [each for each in received if each.key == {"sweep": QUEUE}]
        below = max(each.headers["cq-sweep"] for each in sweeps)
        assert {each.partition for each in sweeps if each.headers["cq-sweep"] == below} == {0, 1, 2}
        values = once(received)
        assert history(values) == {"a": [1, 1], "b": [2, 2]}
        assert sorted(each.key for each in values if each.position >= below) == ["a", "b"]

    def test_keys_and_values_of_all_types_have_the_forms_of_json(
        self, db: Any, broker: Broker, topic: str
    ) -> None:
        cq.configure(
            db, QUEUE, key=(str, int, bytes), value=dict, combiner="last", observers=[kafka_spec(topic)]
        )
        add(db, QUEUE, {("é", 1, b"\xff"): {"a": [1.5, True, None], "n": float("nan")}})
        drain(db, QUEUE)

        (found,) = once(broker.received(topic))
        assert found.key == ["é", 1, "/w=="]
        assert found.value["value"] == {"a": [1.5, True, None], "n": "nan"}

    def test_large_values_and_many_keys_arrive_whole(self, db: Any, broker: Broker, topic: str) -> None:
        cq.configure(db, QUEUE, value=str, combiner="last", observers=[kafka_spec(topic)])
        values = {f"k{number}": str(number % 10) * 80_000 for number in range(30)}
        values |= {f"small{number}": "" for number in range(2_000)}
        for key, value in values.items():
            if len(value) > 1:
                add(db, QUEUE, {key: value})
        add(db, QUEUE, {key: value for key, value in values.items() if not value})
        drain(db, QUEUE)
        assert broker.values(topic) == values

    def test_an_entry_that_is_too_large_is_set_aside_alone(
        self, db: Any, broker: Broker, topic: str, settings_file: Path
    ) -> None:
        settings_file.write_text("# limits\n\nmessage.max.bytes = 1000\n")
        cq.configure(db, QUEUE, value=str, combiner="last", observers=[kafka_spec(topic)])
        add(db, QUEUE, {f"k{number}": "x" * (2_000 if number == 13 else 10) for number in range(40)})
        drain(db, QUEUE)

        assert broker.values(topic) == {f"k{number}": "x" * 10 for number in range(40) if number != 13}
        (aside,) = entries_aside(db, ExportKeys(QUEUE))
        assert "is larger than message.max.bytes, 1,000" in aside.error
        assert state(db) == "active: "


class TestRepetitions:
    """Batches are sent again, or late: a consumer that drops repetitions by position gets each change once."""

    def test_a_worker_that_is_killed_at_any_point_changes_nothing(
        self, cli: Cli, db: Any, broker: Broker, topic: str
    ) -> None:
        cq.configure(db, QUEUE, observers=[kafka_spec(topic)])
        expected = []
        for number, point in enumerate(("read", "delivered", "exported", "none"), 1):
            change(db, a=1)
            expected.append(number)
            run_killed(cli.url, point)

        received = broker.received(topic)
        assert history(once(received)) == {"a": expected}
        assert len([each for each in received if each.position]) > len(expected)
        assert waits(db, QUEUE) == 0

    def test_a_worker_that_sends_its_batches_late_changes_nothing(
        self, db: Any, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cq.configure(db, QUEUE, observers=[kafka_spec(topic)])
        batches: list[ExportBatch] = []
        send = KafkaExporter.__call__

        def sent(exporter: KafkaExporter, batch: ExportBatch) -> None:
            batches.append(batch)
            send(exporter, batch)

        monkeypatch.setattr(KafkaExporter, "__call__", sent)
        for _ in range(3):
            add(db, QUEUE, {f"k{number}": 1 for number in range(20)})
            drain(db, QUEUE)
        expected = history(once(broker.received(topic)))
        assert expected == {f"k{number}": [1, 2, 3] for number in range(20)}
        config = configured(db, QUEUE)
        late = kafka_exporter(db, config, config.observers[0])
        for batch in batches[:8]:
            send(late, batch)
        late.close()

        received = broker.received(topic)
        assert history(once(received)) == expected
        assert len(received) > len(once(received)) + 3  # with a sweep in each partition


class TestFailures:
    """The broker is away, or refuses."""

    def test_a_broker_that_does_not_answer_is_tried_again(
        self, db: Any, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cq.configure(db, QUEUE, observers=[kafka_spec(topic)])
        add(db, QUEUE, {"a": 1})
        drain(db, QUEUE)
        change(db, a=1)
        with stopped(broker), monkeypatch.context() as short:
            short.setattr(client, "CONNECT_SECONDS", 0.2)
            assert step(db).startswith(f"failing: ExportFailed: topic '{topic}' of Kafka in $CQ_KAFKA: ")
        drain(db, QUEUE)
        assert state(db) == "active: "
        assert history(once(broker.received(topic))) == {"a": [1, 2]}

    def test_a_batch_without_an_answer_is_given_up_whole(
        self, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sending = KafkaTopic(topic, DEFAULT_ENV)
        messages = [_message(number) for number in range(300)]
        sending.append(messages[:100])
        with stopped(broker), monkeypatch.context() as short:
            short.setattr(client, "STORE_SECONDS", 0.2)
            with pytest.raises(ExportFailed, match=f"topic '{topic}' of Kafka in"):
                sending.append(messages[100:200])
        sending.append(messages[100:])
        sending.close()
        assert history(once(broker.received(topic))) == {
            f"k{key}": list(range(key, 300, 7)) for key in range(7)
        }

    def test_a_broker_that_starts_later_gets_everything(
        self, db: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late = Broker()
        monkeypatch.setenv(DEFAULT_ENV, late.address)
        cq.configure(db, QUEUE, observers=[kafka_spec("later")])
        change(db, a=1)
        with monkeypatch.context() as short:
            short.setattr(client, "CONNECT_SECONDS", 0.2)
            assert step(db).startswith("failing: ExportFailed: topic 'later' of Kafka in $CQ_KAFKA: ")
        try:
            late.start()
            late.create("later", 1)
            drain(db, QUEUE)
            assert late.values("later") == {"a": 1}
        finally:
            late.end()
        assert state(db) == "active: "

    def test_an_unknown_topic_stops_the_export_until_a_rebase(self, db: Any, broker: Broker) -> None:
        name = f"absent.{secrets.token_hex(8)}"
        cq.configure(db, QUEUE, observers=[kafka_spec(name)])
        change(db, a=1)
        assert step(db).startswith(f"stopped: topic '{name}' of Kafka in $CQ_KAFKA: Broker: Unknown topic")
        assert "`cq export rebase words`" in state(db)
        broker.create(name)
        assert step(db).startswith("stopped")
        with opened_sink(db, QUEUE) as sink:
            assert sink.rebase() == 1
        drain(db, QUEUE)
        assert broker.values(name) == {"a": 1}
        assert state(db) == "active: "

    def test_a_refused_login_is_not_tried_again_and_shows_no_password(
        self, topic: str, settings_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "CONNECT_SECONDS", 60.0)
        settings_file.write_text(
            "security.protocol=sasl_plaintext\nsasl.mechanisms=PLAIN\nsasl.username=me\nsasl.password=hunter2\n"
        )
        with pytest.raises(ExportStopped) as refused:
            KafkaTopic(topic, DEFAULT_ENV).check()
        assert "SASL PLAIN" in str(refused.value)
        assert "hunter2" not in str(refused.value)

    def test_the_errors_of_a_refusal_are_those_of_the_client(self) -> None:
        assert [name for name in client._REFUSALS if not hasattr(KafkaError, name)] == []


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
        monkeypatch.setenv(DEFAULT_ENV, given)
        with pytest.raises(ExportFailed, match=r"the addresses in \$CQ_KAFKA are malformed") as failed:
            read_settings(DEFAULT_ENV)
        assert "hunter2" not in str(failed.value)

    def test_missing_addresses_are_named_and_left_to_other_workers(
        self, db: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(DEFAULT_ENV, raising=False)
        cq.configure(db, QUEUE, observers=[kafka_spec("words")])
        assert observer_tasks(db, configured(db, QUEUE))["export"] == []
        assert "$CQ_KAFKA is not set: give the addresses of Kafka's brokers there" in state(db)

    def test_a_file_gives_settings_except_those_of_the_guarantees(
        self, settings_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(DEFAULT_ENV, "a:9092, [::1]:9093,b")
        settings_file.write_text("# a comment\n\n acks = 0\nsasl.password= a=b \nbootstrap.servers=c\n")
        found = read_settings(DEFAULT_ENV)
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
        monkeypatch.setenv(DEFAULT_ENV, "127.0.0.1:1")
        settings_file.write_text(text)
        with pytest.raises(ExportFailed) as failed:
            KafkaTopic("words", DEFAULT_ENV).check()
        assert expected in str(failed.value)
        assert "hunter2" not in str(failed.value)

    def test_a_file_that_cannot_be_read_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(DEFAULT_ENV, "127.0.0.1:1")
        monkeypatch.setenv(f"{DEFAULT_ENV}_CONFIG", "/hunter2")
        with pytest.raises(ExportFailed, match="cannot be read: FileNotFoundError") as failed:
            read_settings(DEFAULT_ENV)
        assert "hunter2" not in str(failed.value)

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(DEFAULT_ENV, "host:9092")
        monkeypatch.setitem(sys.modules, "confluent_kafka", None)
        with pytest.raises(ExportFailed, match=r"run `pip install 'combine-queue\[kafka\]'`"):
            KafkaTopic("words", DEFAULT_ENV).check_settings()

    @pytest.mark.parametrize("name", ["", "..", "a b", "é", "x" * 250, None])
    def test_other_names_of_topics_are_refused(self, name: Any) -> None:
        with pytest.raises(cq.InvalidConfiguration, match="expected the name of a topic"):
            kafka_spec(name)

    def test_a_queue_has_one_export(self, db: Any) -> None:
        cq.configure(db, QUEUE, observers=[kafka_spec("words")])
        config = configured(db, QUEUE)
        with pytest.raises(
            cq.InvalidConfiguration, match="has the observer 'kafka', and cannot have 'forward'"
        ):
            FACTORIES["forward"](config, forward_spec().settings, 1)


class TestCommands:
    """What operators see."""

    def test_the_commands_for_exports_take_a_topic(
        self, cli: Cli, db: Any, broker: Broker, topic: str, here: Here
    ) -> None:
        accepted = f"the brokers at {broker.address} have the topic '{topic}'"
        assert here("configure", QUEUE, "--kafka", topic).status == 0
        assert here("export", "init", QUEUE).out == f"{accepted}\n"
        assert here("add", QUEUE, "hello=1").status == 0
        assert here("worker", QUEUE, "--drain").status == 0
        assert broker.values(topic) == {"hello": 1}
        assert f"topic {topic} in ${DEFAULT_ENV}" in here("export", "list").out
        refused = here("export", "verify", QUEUE)
        assert refused.status != 0
        assert "cq cannot read what its receiver keeps" in refused.err
        assert here("verify", QUEUE).status == 0
        check = next(each for each in doctor(cli.url) if each.name == f"kafka of {QUEUE}")
        assert (check.ok, check.message) == (True, accepted)
        assert here("export", "rebase", QUEUE, "--json").rows()[0]["epoch"] == 1
        assert here("export", "rebuild", QUEUE, "--json").rows()[0]["generation"] > 1
        assert here("worker", QUEUE, "--drain").status == 0
        assert broker.values(topic) == {"hello": 1}
        assert here("configure", QUEUE, "--no-kafka").status == 0

    def test_addresses_in_place_of_a_variable_are_refused_and_not_shown(self, db: Any, here: Here) -> None:
        refused = here("configure", QUEUE, "--kafka", "words", "--kafka-env", "me:hunter2@host:9092")
        assert refused.status != 0
        assert "expected the name of an environment variable" in refused.err
        assert "hunter2" not in refused.err
