"""Events: those of the table with the fields of the table, of what really happens, to the log and to subscribers."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

import cq
from cq import admin
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.telemetry.bus import Event, emit, subscribe
from cq.observers.telemetry.events import EVENTS, FIELDS
from cq.observers.telemetry.logs import JsonFormatter, TextFormatter
from cq.observers.top.index import top
from cq.observers.worker.worker import Worker
from cq.testing import drain
from tests.kit.queues import add, buckets_of
from tests.kit.workers import SECONDS, running, told_app
from tests.observers.telemetry.eventlog import Events
from tests.observers.telemetry.eventlog import events as events

ROOT = Path(__file__).parents[3]


def nodes() -> Iterator[ast.AST]:
    """All of the code that may emit events."""
    for folder in ("observers", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            if file.name != "events.py":
                yield from ast.walk(ast.parse(file.read_text()))


def emits() -> Iterator[tuple[str, set[str | None]]]:
    """All events that are emitted by their names, with the names of their fields."""
    for node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "emit":
            for each in ast.walk(node.args[0]):
                if isinstance(each, ast.Constant):
                    yield str(each.value), {keyword.arg for keyword in node.keywords}


class TestTable:
    """The table and the code agree."""

    def test_what_is_emitted_is_what_the_table_says(self) -> None:
        strings = {node.value for node in nodes() if isinstance(node, ast.Constant)}
        wrong = {name: fields for name, fields in emits() if fields != {*EVENTS[name].fields}}
        assert wrong == {}
        assert EVENTS.keys() <= strings, "an event that nobody emits"

    def test_every_field_is_explained_and_none_besides(self) -> None:
        assert {field for kind in EVENTS.values() for field in kind.fields} == FIELDS.keys()

    def test_metrics_are_of_fields_that_the_event_has(self) -> None:
        for kind in EVENTS.values():
            for metric in kind.metrics:
                assert not isinstance(metric.value, str) or metric.value in kind.fields
                assert metric.name.startswith("cq_")

    def test_every_metric_is_described_once(self) -> None:
        metrics = [metric for kind in EVENTS.values() for metric in kind.metrics]
        described = [metric.name for metric in metrics if metric.description]
        assert sorted(described) == sorted({metric.name for metric in metrics})


class TestWorker:
    """What a worker tells."""

    def test_a_pass_is_told_with_what_it_has_done(self, db: Any, name: str, events: Events) -> None:
        cq.configure(db, name, buckets=1)
        add(db, name, {"a": 1, "b": 1}, {"a": 2})
        Worker(db, queues=[name]).drain()
        told = events.wait_for("pass_done", queue=name)
        assert 0 < told.pop("seconds") < SECONDS
        assert told == {
            "queue": name,
            "bucket": 0,
            "rows": 2,
            "updates": 3,
            "reported": 2,
            "folded": 0,
            "told": 0,
            "purged": 0,
            "repeated": 0,
            "aside": 0,
            "conflicts": 0,
            "retries": 0,
        }
        (started,), (stopped,) = events.of("worker_started"), events.of("worker_stopped")
        assert started["queues"] == [name]
        assert (stopped["worker"], stopped["passes"]) == (started["worker"], 1)

    def test_a_key_that_fails_is_named_with_its_error(self, db: Any, name: str, events: Events) -> None:
        def refuse(tr: Any, changes: list[cq.Change]) -> None:
            raise ValueError("not this\none")

        app = cq.App()
        app.queue(name, observers=[refuse])
        app.configure(db, name, buckets=1)
        add(db, name, {"a": 1})
        Worker(db, app, [name]).drain()
        aside = events.wait_for("key_set_aside", queue=name)
        assert aside["key"] == "'a'"
        assert "ValueError: not this" in aside["error"]
        assert events.wait_for("pass_done", aside=1)["retries"] > 0
        assert all("\n" not in str(event) for event in events.seen)

    def test_queues_left_alone_paused_and_resumed_are_told(self, db: Any, name: str, events: Events) -> None:
        told, app = told_app(name)
        app.configure(db, name)
        with running(Worker(db, cq.App(), [name])):
            alone = events.wait_for("queue_left_alone", queue=name)
            assert "asks for the observer told@1" in alone["reason"]
        with running(Worker(db, app, [name])):
            admin.pause(db, name, "for a while")
            assert "for a while" in events.wait_for("queue_paused", queue=name)["reason"]
            admin.resume(db, name)
            events.wait_for("queue_resumed", queue=name)
            add(db, name, {"a": 1})
            told.wait_for(a=1)

    def test_workers_that_come_and_go_are_told_to_the_others(
        self, db: Any, name: str, events: Events
    ) -> None:
        cq.configure(db, name, buckets=4)
        with running(Worker(db, queues=[name], beat=0.3)):
            first = events.wait_for("tasks_shared", buckets=4)
            dead = Membership(db, queues=["other"], every=0.3)
            dead.beat(MemberReport())
            joined = events.wait_for("worker_joined", worker=dead.id.hex())
            assert events.wait_for("worker_gone", worker=dead.id.hex()) == joined
            with running(Worker(db, queues=[name])):  # beats rarely, so that nobody takes it for dead
                other = events.of("worker_started")[1]["worker"]
                events.wait_for("worker_joined", worker=other)
                events.wait_for("tasks_shared", workers=first["workers"] + 1)
            events.wait_for("worker_left", worker=other)
            assert not events.of("worker_gone", worker=other)

    def test_the_work_is_named_at_the_start_and_when_it_changes(
        self, db: Any, name: str, events: Events
    ) -> None:
        cq.configure(db, name, buckets=3)
        with running(Worker(db, queues=[name])):
            first = events.wait_for("work_found", work=f"3 buckets of {name}")
            cq.configure(db, name, buckets=3, observers=[top()])
            events.wait_for("work_found", work=f"3 buckets of {name}, clouds of {name}")
            admin.pause(db, name, "for a while")
            events.wait_for("work_found", work="nothing")
        assert first["store"].startswith(("embedded:", "fdb:"))
        assert len(events.of("work_found")) == 3

    def test_conflicts_of_passes_are_counted(self, db: Any, name: str) -> None:
        """Two passes over one bucket: the slower one begins again."""
        app = cq.App()

        def interfere(tr: Any, changes: list[cq.Change]) -> None:
            if not interfered:
                interfered.append(True)
                buckets_of(db, name, app)[0].combine()

        interfered: list[bool] = []
        app.queue(name, observers=[interfere])
        app.configure(db, name, buckets=1)
        add(db, name, {"a": 1})
        result = buckets_of(db, name, app)[0].combine()
        assert (result.conflicts, result.retries) == (1, 1)
        drain(db, name, app=app)


class TestSubscribers:
    """Functions of an application."""

    def test_one_that_raises_harms_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(event: Event) -> None:
            raise RuntimeError("mine")

        events = Events()
        ends = [subscribe(fail), subscribe(events)]
        emit("queue_resumed", queue="words")
        for end in ends:
            end()
        emit("queue_resumed", queue="others")
        assert [event.fields["queue"] for event in events.seen] == ["words"]
        assert caplog.messages == ["a subscriber failed for the event queue_resumed"]

    @pytest.mark.parametrize("is_shown", [True, False])
    def test_a_handler_of_the_log_that_raises_ends_no_worker(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_shown: bool
    ) -> None:
        class Broken(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                raise OSError("the collector does not answer")

        def fail(event: Event) -> None:
            raise RuntimeError("mine")

        monkeypatch.setattr(logging, "raiseExceptions", is_shown)
        broken, events = Broken(), Events()
        logging.getLogger("cq").addHandler(broken)
        ends = [subscribe(fail), subscribe(events)]
        try:
            emit("queue_paused", queue="words", reason="by hand")
        finally:
            logging.getLogger("cq").removeHandler(broken)
            for end in ends:
                end()
        assert [event.name for event in events.seen] == ["queue_paused"]
        assert capsys.readouterr().err.count("OSError: the collector does not answer") == 2 * is_shown


class TestLogs:
    """Lines of JSON."""

    def test_an_event_is_a_line_with_its_fields(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "cq.worker"):
            emit("queue_resumed", queue="words")
        line = json.loads(JsonFormatter().format(caplog.records[0]))
        assert line.pop("time").endswith("+00:00")
        assert line == {
            "level": "info",
            "event": "queue_resumed",
            "message": "queue 'words' is no longer left alone",
            "queue": "words",
        }

    @pytest.mark.parametrize("name", sorted(EVENTS))
    def test_foreign_text_in_any_field_is_printable(
        self, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        hostile = "\x1b[31m\x9b31m\r\nforged\x85\u2028\u202e\ud800"
        kind = EVENTS[name]
        shown = {field for _, field, spec, _ in Formatter().parse(kind.text) if field and not spec}
        fields: dict[str, Any] = {field: hostile if field in shown else 1 for field in kind.fields}
        if "trace" in fields:
            fields["trace"] = [hostile, hostile]
        with caplog.at_level(logging.DEBUG, Event(name, fields).logger.name):
            emit(name, **fields)
        (record,) = caplog.records
        assert record.getMessage().isprintable()
        first, *trace = TextFormatter().format(record).split("\n")
        assert len(trace) == len(fields.get("trace", []))
        assert all(line.startswith("    ") for line in trace)
        assert all(line.isprintable() for line in [first, *trace])
        line = JsonFormatter().format(record)
        assert line.isprintable()
        assert fields.items() <= json.loads(line).items()

    def test_foreign_text_of_other_records_is_printable(self, caplog: pytest.LogCaptureFixture) -> None:
        try:
            raise ValueError("\x1b[31m\n2026-01-01 00:00:00,000 INFO forged")
        except ValueError:
            logging.getLogger("other").exception("failed: %s", "\x1b[31m\nforged", stack_info=True)
        first, *others = TextFormatter().format(caplog.records[0]).split("\n")
        assert first.endswith(r"failed: \x1b[31m\nforged")
        assert all(line.startswith("    ") for line in others)
        assert all(line.isprintable() for line in [first, *others])

    def test_other_records_are_lines_too(self, caplog: pytest.LogCaptureFixture) -> None:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("other").exception("it failed: %s", "so")
        text = JsonFormatter().format(caplog.records[0])
        line = json.loads(text)
        assert "\n" not in text
        assert (line["level"], line["event"], line["message"]) == ("error", "other", "it failed: so")
        assert "ValueError: two\nlines" in line["traceback"]
