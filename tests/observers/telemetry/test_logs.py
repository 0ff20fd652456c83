"""The log counts repeated warnings: it loses none, whatever their times, and writes each count once."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from cq import runtime
from cq.observers.telemetry.bus import Event, emit, subscribe
from cq.observers.telemetry.logs import MAX_LINES, JsonFormatter, RepeatHandler, TextFormatter


class Clock(runtime.Machine):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


class Log:
    """The events of a logger, and the lines that a handler writes of them."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.handler = RepeatHandler()
        self.written = io.StringIO()
        self.handler.setStream(self.written)
        self.handler.setFormatter(formatter)

    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()


@pytest.fixture
def clock() -> Iterator[Clock]:
    machine = Clock()
    with runtime.using(machine):
        yield machine


@pytest.fixture
def logged(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Log]:
    """The log of the events of workers, by default as text, whatever the logger's level was before."""
    log, logger = Log(getattr(request, "param", TextFormatter)()), logging.getLogger("cq.worker")
    assert not logging.root.manager.disable, "another test has left logging disabled"
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(log.handler)
    yield log
    logger.removeHandler(log.handler)
    logger.setLevel(level)
    log.handler.close()


def fail(queue: str = "words") -> None:
    emit("task_failed", queue=queue, task="bucket 0", error="E: wrong", pause=5.0)


def test_a_repeated_warning_is_one_line_and_its_count_another(clock: Clock, logged: Log) -> None:
    seen: list[Event] = []
    end = subscribe(seen.append)
    for _ in range(38):
        fail()
        clock.now += 1.0
    end()
    assert len(logged.lines()) == 1
    assert len(seen) == 38, "subscribers get every event"

    clock.now = 1_060.0
    fail()

    first, count, again = logged.lines()
    assert first.endswith("WARNING bucket 0: failed, again in 5.0 s: E: wrong")
    assert count.endswith("E: wrong (37 times more in the last 60 s)")
    assert again.endswith("E: wrong"), "after the minute, it is logged at once again"


def test_pauses_that_grow_make_no_other_warning(clock: Clock, logged: Log) -> None:
    for pause in (0.1, 0.7, 2.5):
        emit("task_failed", queue="words", task="bucket 0", error="E: wrong", pause=pause, seconds=pause)
        emit("store_failed", error="E: wrong", pause=pause)
        clock.now += pause
    clock.now += 60.0
    logged.handler.close()
    assert [line.partition("WARNING ")[2] for line in logged.lines()] == [
        "bucket 0: failed, again in 0.1 s: E: wrong",
        "the store failed, again in 0.1 s: E: wrong",
        "bucket 0: failed, again in 2.5 s: E: wrong (2 times more in the last 63 s)",
        "the store failed, again in 2.5 s: E: wrong (2 times more in the last 63 s)",
    ]


def test_the_next_line_writes_a_count_that_is_due(clock: Clock, logged: Log) -> None:
    fail()
    fail()
    clock.now += 61.0
    emit("queue_resumed", queue="words")
    _, count, resumed = logged.lines()
    assert count.endswith("E: wrong (1 time more in the last 61 s)")
    assert " INFO " in resumed


@pytest.mark.parametrize("logged", [JsonFormatter], indirect=True)
def test_the_count_is_a_field_of_the_json(clock: Clock, logged: Log) -> None:
    for _ in range(3):
        fail()
    clock.now += 60.0
    logged.handler.close()
    first, count = map(json.loads, logged.lines())
    assert "repeated" not in first
    assert (count["repeated"], count["event"], count["queue"]) == (2, "task_failed", "words")
    assert count["time"] == "1970-01-01T00:17:40.000+00:00"


def test_other_content_and_other_levels_are_not_counted(logged: Log) -> None:
    logger = logging.getLogger("cq.worker")
    fail()
    fail("others")  # the text is equal, a field is not
    for error in (ValueError("a"), ValueError("b")):
        logger.warning("wrong", exc_info=error)
    for _ in range(2):
        logger.log(logging.INFO, "so", extra={})
    assert sum("WARNING" in line for line in logged.lines()) == 4
    logged.handler.close()
    assert not any(" more in the last" in line for line in logged.lines())


def test_a_closed_log_has_written_all_counts_and_counts_no_more(clock: Clock, logged: Log) -> None:
    fail()
    fail()
    clock.now += 12.0
    logged.handler.close()
    assert logged.lines()[-1].endswith("(1 time more in the last 12 s)")
    fail()
    fail()
    assert len(logged.lines()) == 4


def test_its_memory_is_limited_and_no_warning_is_lost(logged: Log) -> None:
    for number in range(MAX_LINES + 10):
        fail(f"queue {number}")
    fail(f"queue {MAX_LINES}")
    fail("queue 0")
    assert len(logged.lines()) == MAX_LINES + 11
    logged.handler.close()
    assert len(logged.lines()) == MAX_LINES + 12
