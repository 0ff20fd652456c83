"""An emitter counts what it was given: each increment once, in order, whatever fails, and says what it could not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest

import cq
from cq import admin
from cq.intake.flush import FLUSH_BYTES, EmitterBuffer
from cq.keys import QueueKeys, parse_flush
from cq.testing import assert_values, drain
from tests.kit.busy import in_threads, run_while_collecting
from tests.kit.emitters import Gate
from tests.kit.faults import (
    NOT_COMMITTED,
    TIMED_OUT,
    UNKNOWN,
    Calls,
    FailedCalls,
    LateCommit,
    WrappedDatabase,
)
from tests.kit.held_calls import until
from tests.kit.observing import app_with
from tests.kit.processes import run_program
from tests.kit.queues import aside, combine_all, get, stored, values
from tests.kit.sized import MOST
from tests.kit.workers import SECONDS

CONCATENATE = cq.Combiner("concatenate", 1, lambda key, values: "".join(values))
SIX_LEVELS = "1s:1h,1m:2h,5m:3h,15m:4h,1h:60d,1d:forever"
"""As the combiner has no differences, adds write all levels."""


class Calling(WrappedDatabase):
    """A database that knows the calls made on each of its transactions."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.transactions: list[Calls] = []

    def create_transaction(self) -> Any:
        self.transactions.append(Calls(self.inner.create_transaction()))
        return self.transactions[-1]


def full() -> Exception:
    return cq.QueueFull("the queue is full")


def in_background(call: Callable[[], object]) -> threading.Thread:
    """Start a call that is about to wait for something."""
    thread = threading.Thread(target=call)
    thread.start()
    return thread


@pytest.fixture
def queue(db: Any, name: str) -> Gate:
    """A queue of sums, as slow as the test asks for."""
    cq.configure(db, name)
    return Gate(name)


# What it counts


@pytest.mark.parametrize("kind", [ValueError, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_whatever_a_combiner_raises_a_worker_gets_the_updates(
    db: Any, name: str, kind: type[BaseException]
) -> None:
    def combine(key: str, values: Any) -> int:
        if key == "bad":
            raise kind
        return sum(values)

    summed = cq.Combiner("summed", 1, combine)
    app = app_with(db, name, combiner=summed, value=int)
    queue = cq.CombineQueue[str, int](name, combiner=summed)
    with cq.Emitter(queue, db) as emitter:
        for key in ("bad", "good", "bad"):
            emitter.emit(key)

    if kind in (ValueError, SystemExit):  # the others end a call of the main thread
        with pytest.raises(cq.InvalidData, match="workers will set them aside"):
            cq.transact(db, lambda tr: queue.get(tr, "bad", pending=True))
    with ThreadPoolExecutor(1) as worker:
        worker.submit(combine_all, db, name, app).result()
    assert values(db, name) == {"good": 1}
    assert [each.updates for each in aside(db, name)] == [[1, 1]]


class Ending:
    """Emits at its end, which the garbage collector finds while other calls hold the emitter's lock."""

    def __init__(self, emitter: cq.Emitter[str, int]) -> None:
        self.emitter, self.me = emitter, self

    def __del__(self) -> None:
        self.emitter.emit("ended")


def test_a_finalizer_may_emit_whatever_it_interrupts(db: Any, name: str) -> None:
    emitter = cq.Emitter(cq.configure(db, name, key=str, value=int), db, at_most=40)

    def emit() -> None:
        for number in range(3_000):
            Ending(emitter)
            emitter.emit_many({f"k{number % 50}": 1})

    run_while_collecting(emit)
    emitter.close()
    combine_all(db, name)

    found = values(db, name)
    assert found.pop("ended") == 3_000
    assert sum(found.values()) == 3_000


def test_the_thread_of_an_emitter_does_not_wait_for_room_that_it_makes_itself(db: Any, name: str) -> None:
    """As a finalizer that runs in this thread; here the combiner emits."""
    left = 10

    def combine(key: str, values: Any) -> int:
        nonlocal left
        while left and threading.current_thread() is not threading.main_thread():
            left -= 1
            emitter.emit("inner")
        return sum(values)

    summed = cq.Combiner("summed", 1, combine)
    app = app_with(db, name, combiner=summed, value=int)
    emitter = cq.Emitter(cq.CombineQueue[str, int](name, combiner=summed), db, at_most=4, timeout=SECONDS)
    begun = time.monotonic()
    emitter.emit("outer")
    emitter.emit("outer")
    emitter.flush()
    emitter.close()
    assert time.monotonic() - begun < SECONDS / 2
    combine_all(db, name, app)
    assert values(db, name) == {"outer": 2, "inner": 10}


def test_a_signal_handler_may_emit_whatever_it_interrupts(db: Any, name: str) -> None:
    emitter = cq.Emitter(cq.configure(db, name, key=str, value=int), db)
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        emitter.emit("signals")

    former = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(50_000):
            emitter.emit("calls")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    emitter.close()
    combine_all(db, name)

    assert values(db, name) == {"calls": 50_000, "signals": handled}


def test_it_counts_what_threads_emit(db: Any, name: str) -> None:
    cq.configure(db, name, key=str, value=int)
    emitted: list[str] = []

    def emit(number: int) -> None:
        rng = Random(number)
        for _ in range(30):
            key = f"k{rng.randrange(5)}"
            emitter.emit(key)
            emitted.append(key)

    with cq.Emitter(cq.CombineQueue(name), db, at_most=20) as emitter:
        in_threads(*(partial(emit, number) for number in range(4)))

    drain(db, name)
    assert_values(db, name, Counter(emitted))
    found = emitter.statistics()
    assert (found.emitted, found.committed, found.buffered, found.lost) == (120, 120, 0, 0)
    assert 0 < found.keys <= 120
    assert found.latest_failure == ""


def test_many_are_all_in_one_transaction(db: Any, queue: Gate) -> None:
    with cq.Emitter(queue, db, at_most=100) as emitter:
        emitter.emit_many({f"k{number}": 1 for number in range(90)})
        emitter.emit_many({f"k{number}": 1 for number in range(90)})

    assert emitter.statistics().flushes == 2
    assert emitter.statistics().keys == 180


def test_flushes_stay_within_what_a_transaction_should_write(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner="last")
    queue = Gate(name)

    with cq.Emitter(queue, db) as emitter:
        for number in range(40):
            emitter.emit(f"k{number}", f"{number:050000}")

    drain(db, name)
    assert len(dict(queue.scan(db))) == 40
    assert max(queue.sizes) < FLUSH_BYTES * 1.1


def test_long_keys_count_as_much_as_they_take(db: Any, queue: Gate) -> None:
    with cq.Emitter(queue, db, timeout=60) as emitter:
        for number in range(150):
            emitter.emit(f"{number:07900}")

    assert emitter.statistics().committed == 150
    assert max(queue.sizes) < FLUSH_BYTES * 1.1


@pytest.mark.parametrize(
    ("settings", "number", "size"),
    [
        ({}, 1_000, 1),
        ({}, 40, 20_000),
        ({"buckets": 2048}, 1_000, 1),
    ],
)
def test_flushes_for_six_levels_write_at_most_a_megabyte(
    db: Any, name: str, settings: Any, number: int, size: int
) -> None:
    cq.configure(db, name, value=str, combiner=CONCATENATE, rollup=SIX_LEVELS, **settings)
    queue = Gate(name, combiner=CONCATENATE)

    with cq.Emitter(queue, db, timeout=60) as emitter:
        for each in range(number):
            emitter.emit(f"k{each}", "x" * size)

    assert emitter.statistics().committed == number
    assert max(queue.sizes) <= MOST


def test_the_largest_update_of_a_queue_with_six_levels_is_taken(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner=CONCATENATE, rollup=SIX_LEVELS)
    queue = Gate(name, combiner=CONCATENATE)

    with cq.Emitter(queue, db) as emitter:
        emitter.emit("k", "x" * 89_990)

    assert max(queue.sizes) <= MOST
    assert cq.transact(db, lambda tr: queue.get(tr, "k", pending=True)) == "x" * 89_990


# What fails


@pytest.mark.parametrize(
    ("key", "update"), [(1, 1), (True, 1), ("\ud800", 1), ("k", "1"), ("k", None), ("k", 1.0)]
)
def test_what_a_queue_does_not_take_harms_its_own_caller_only(
    db: Any, name: str, queue: Gate, key: Any, update: Any
) -> None:
    with cq.Emitter(queue, db, every=60) as emitter:
        emitter.emit("k")
        with pytest.raises(cq.InvalidData):
            emitter.emit(key, update)
        with pytest.raises(cq.InvalidData):
            emitter.emit_many({"k": 1, key: update})
        emitter.emit("k")

    assert get(db, name, "k", pending=True) == 2
    assert emitter.statistics().emitted == 2


def test_a_key_that_only_the_levels_refuse_harms_its_own_caller_only(db: Any, name: str) -> None:
    cq.configure(db, name, rollup="1m:2d")

    with cq.Emitter(cq.CombineQueue(name), db, every=60) as emitter:
        emitter.emit("k")
        with pytest.raises(cq.errors.TooLarge, match="a queue with a window or a roll-up"):
            emitter.emit("k" * 7_995)
        emitter.emit("k")

    assert get(db, name, "k", pending=True) == 2
    assert emitter.statistics().emitted == 2


def test_a_level_has_no_emitter(db: Any, name: str) -> None:
    cq.configure(db, name, rollup="1m:2d")
    with pytest.raises(cq.errors.InvalidConfiguration, match="belongs to the roll-up"):
        cq.Emitter(cq.CombineQueue(f"{name}.1m"), db)


def test_more_at_once_than_fits_is_refused(db: Any, name: str) -> None:
    cq.configure(db, name, value="any", combiner="last")

    with cq.Emitter(cq.CombineQueue(name), db, at_most=10) as emitter:
        with pytest.raises(cq.errors.TooLarge, match="11 updates at once are more than the 10"):
            emitter.emit_many(dict.fromkeys("abcdefghijk", 1))
        with pytest.raises(cq.errors.TooLarge, match="an emitter takes"):
            emitter.emit_many(dict.fromkeys("abcdefgh", "x" * 80_000))
        emitter.emit_many({})

    assert emitter.statistics().emitted == 0


@pytest.mark.parametrize("code", [UNKNOWN, TIMED_OUT])
def test_a_lost_answer_counts_once(db: Any, name: str, queue: Gate, code: int) -> None:
    """Nor is it an error that the queue is full by the time it is asked again."""
    losing = FailedCalls(db, code, is_made=True)

    with cq.Emitter(queue, losing) as emitter:
        losing.left = 1
        emitter.emit("k")

    drain(db, name)
    assert_values(db, name, {"k": 1})
    assert emitter.statistics().committed == 1
    assert len(queue.sizes) == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_a_try_that_commits_while_the_next_does_counts_once(
    db: Any, name: str, queue: Gate, is_first: bool
) -> None:
    """Whichever of the two is first: the other one fails."""
    late: Any = LateCommit(db, is_first=is_first)

    with cq.Emitter(queue, late) as emitter:
        emitter.emit("k")

    assert late.code == (0 if is_first else NOT_COMMITTED)
    drain(db, name)
    assert_values(db, name, {"k": 1})
    assert emitter.statistics().committed == 1


class FullAfterwards(cq.CombineQueue):
    """A queue that is full as soon as the first commit of its database is under way."""

    def __init__(self, name: str, late: LateCommit) -> None:
        super().__init__(name)
        self._late = late

    def add(self, tr: Any, updates: Any, once: str | bytes | None = None) -> None:
        if self._late.is_under_way:
            raise full()
        super().add(tr, updates, once)


def test_a_full_queue_does_not_end_the_doubt_about_an_earlier_try(db: Any, name: str) -> None:
    """The second try finds nothing of the first, which commits after all."""
    cq.configure(db, name)
    late = LateCommit(db, is_first=True)
    emitter = cq.Emitter(FullAfterwards(name, late), late, timeout=0.3)

    def emit() -> None:
        emitter.emit("k")
        while not late.is_under_way:  # in the emitter's thread
            time.sleep(0.001)
        emitter.close()

    with pytest.raises(cq.errors.FlushFailed, match="they may count all the same") as raised:
        emit()

    assert raised.value.is_unknown
    late.land()
    assert late.code == 0
    assert get(db, name, "k", pending=True) == 1
    emitter.close()


def test_a_refused_commit_leaves_no_doubt(db: Any, name: str, queue: Gate) -> None:
    """A conflict, and a full queue afterwards: none of it counts, and the caller is told so."""
    refusing = FailedCalls(db, NOT_COMMITTED)

    def fail_from_now_on() -> None:
        queue.failure = full

    refusing.on_failure = fail_from_now_on
    emitter = cq.Emitter(queue, refusing, timeout=0.3)
    refusing.left = 1
    emitter.emit("k")
    while not emitter.statistics().failures:
        queue.reached.wait()
    with pytest.raises(cq.errors.FlushFailed, match="none of them counts") as raised:
        emitter.close()

    assert not raised.value.is_unknown
    assert get(db, name, "k", pending=True) is None


def test_flushes_leave_one_key_for_each_emitter(db: Any, name: str, queue: Gate) -> None:
    for _ in range(2):
        with cq.Emitter(queue, db) as emitter:
            for _ in range(3):
                emitter.emit("k")
                emitter.flush()

    keys = QueueKeys(name)
    assert stored(db, keys.markers()) == []
    assert [parse_flush(value)[1] for _, value in stored(db, keys.emitters())] == [3, 3]
    drain(db, name)
    assert_values(db, name, {"k": 6})


def test_a_flush_issues_what_an_add_does_and_two_calls_more(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    calling: Any = Calling(db)

    with cq.Emitter(cq.CombineQueue(name), calling) as emitter:
        emitter.emit("k")
        emitter.flush()
        emitter.emit_many({"a": 1, "b": 2})

    used = [
        each.made for each in calling.transactions if each.made
    ]  # `close` makes one to see that the store is open
    assert used[-1] == [
        "set_read_version",  # of the flush before it
        "add_read_conflict_key",  # the emitter's
        "set_versionstamped_value",
        "add_read_conflict_key",  # the queue's configuration, twice: for the emitter and for the add
        "add_read_conflict_key",
        "set_versionstamped_key",  # one row
        "set_versionstamped_value",  # the notification
        "commit",
        "get_committed_version",
    ]


def test_it_keeps_what_fails_and_tries_it_again(db: Any, name: str, queue: Gate) -> None:
    queue.failure = full

    with cq.Emitter(queue, db, every=0.001) as emitter:
        emitter.emit("k")
        while emitter.statistics().failures < 2:
            queue.reached.wait()
        emitter.emit("k")
        assert emitter.statistics().buffered == 2
        queue.failure = None

    assert get(db, name, "k", pending=True) == 2
    assert emitter.statistics().lost == 0


def test_callers_wait_for_room_and_are_told_when_there_is_none(db: Any, name: str, queue: Gate) -> None:
    queue.close()

    emitter = cq.Emitter(queue, db, at_most=4, timeout=0.05)
    for _ in range(4):
        emitter.emit("k")
    with pytest.raises(cq.EmitterFull, match=r"no room for more within 0.05 s, nothing was taken"):
        emitter.emit("k")
    assert emitter.statistics().buffered == 4
    with pytest.raises(cq.errors.FlushFailed, match="not committed yet"):
        emitter.flush()
    emitter.timeout = 60.0
    waiting = in_background(lambda: emitter.emit("l"))
    while emitter.statistics().waits < 2:
        waiting.join(0.001)
    queue.open()
    waiting.join()
    emitter.close()

    assert (get(db, name, "k", pending=True), get(db, name, "l", pending=True)) == (4, 1)


def test_why_there_is_no_room_is_said(db: Any, name: str, queue: Gate) -> None:
    queue.failure = full

    emitter = cq.Emitter(queue, db, at_most=1, timeout=0.2)
    emitter.emit("k")
    while not emitter.statistics().failures:
        queue.reached.wait()
    with pytest.raises(cq.EmitterFull, match="the queue is full"):
        emitter.emit("k")
    with pytest.raises(cq.errors.FlushFailed, match="the queue is full") as told:
        emitter.close()

    assert not told.value.is_unknown
    assert emitter.statistics().lost == 1
    assert get(db, name, "k", pending=True) is None


def test_what_is_under_way_when_it_is_given_up_may_count(db: Any, queue: Gate) -> None:
    queue.close()
    emitter = cq.Emitter(queue, db, every=0.001, timeout=0.05)
    emitter.emit("k")
    queue.reached.wait()

    with pytest.raises(cq.errors.FlushFailed, match="may count all the same") as told:
        emitter.close()

    queue.open()
    assert told.value.is_unknown


def test_a_queue_made_anew_gets_nothing_that_was_meant_for_another(db: Any, name: str, queue: Gate) -> None:
    emitter = cq.Emitter(queue, db, every=60, timeout=0.1)
    emitter.emit("k")
    admin.delete(db, name)
    cq.configure(db, name, combiner="maximum")
    while not emitter.statistics().failures:
        with suppress(cq.errors.FlushFailed):
            emitter.flush()

    with pytest.raises(cq.errors.FlushFailed, match="has another combiner or other types") as told:
        emitter.close()

    assert isinstance(told.value.__cause__, cq.errors.CodeMismatch | TimeoutError)
    assert not told.value.is_unknown
    assert get(db, name, "k", pending=True) is None


def test_it_adds_under_other_buckets_as_soon_as_there_are_some(db: Any, name: str, queue: Gate) -> None:
    with cq.Emitter(queue, db, every=60) as emitter:
        emitter.emit("k")
        admin.rebucket(db, name, 3)
        emitter.emit("k")

    drain(db, name)
    assert_values(db, name, {"k": 2})


# Beginning and end


@pytest.mark.parametrize(
    "settings",
    [{"every": 0}, {"at_most": 0}, {"at_most": 1.5}, {"timeout": -1}, {"every": "0s"}],
)
def test_settings_are_checked(db: Any, queue: Gate, settings: dict[str, Any]) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration, match=r"expected (the )?\w+ to be"):
        cq.Emitter(queue, db, **settings)


def test_it_needs_a_queue_and_its_combiner(db: Any, name: str) -> None:
    with pytest.raises(cq.errors.QueueNotConfigured):
        cq.Emitter(cq.CombineQueue(name), db)
    app_with(db, name, combiner=CONCATENATE, value=str)
    with pytest.raises(cq.errors.CodeMismatch, match="combiner="):
        cq.Emitter(cq.CombineQueue(name), db)
    cq.Emitter(cq.CombineQueue(name, combiner=CONCATENATE), db).close()


def test_one_whose_store_was_closed_before_does_not_wait_for_it(tmp_path: Any) -> None:
    """As at the end of a test that closes its store only."""
    db = cq.open(f"embedded:{tmp_path}/test.db")
    emitter = cq.Emitter(cq.configure(db, "q"), db, every=600.0, timeout=600.0)
    emitter.emit("k")
    cq.store.close(db)
    with pytest.raises(cq.errors.FlushFailed, match=r"1 increments are given up.*the store is closed"):
        emitter.close()


def test_closed_it_takes_nothing(db: Any, name: str, queue: Gate) -> None:
    emitter = cq.Emitter(queue, db)
    emitter.emit("k")
    emitter.close()
    emitter.close()

    with pytest.raises(cq.errors.EmitterClosed, match="is closed: make another one"):
        emitter.emit("k")
    with pytest.raises(cq.errors.EmitterClosed):
        emitter.emit_many({"k": 1})
    emitter.flush()

    assert get(db, name, "k", pending=True) == 1
    assert emitter.statistics().emitted == 1


def test_its_thread_ends_with_it(db: Any, name: str, queue: Gate) -> None:
    with cq.Emitter(queue, db):
        threads = [each for each in threading.enumerate() if each.name == f"cq-emitter-{name}"]
    for thread in threads:
        thread.join()

    assert len(threads) == 1


def test_flush_waits_for_what_was_emitted(db: Any, name: str, queue: Gate) -> None:
    with cq.Emitter(queue, db, every=60) as emitter:
        emitter.flush()
        emitter.emit("k")
        assert get(db, name, "k", pending=True) is None
        emitter.flush()
        assert get(db, name, "k", pending=True) == 1


PROGRAM = """
import os, sys, cq
db = cq.open(sys.argv[1])
emitter = cq.Emitter(cq.CombineQueue("q"), db, every=60, at_most=1_000)
for _ in range(100):
    emitter.emit("k")
"""
ENDINGS = {
    "returns": ("", 0, 100),
    "exits": ("sys.exit(3)", 3, 100),
    "raises": ("raise RuntimeError", 1, 100),
    "is interrupted while it closes": (
        """
import time
add = emitter.queue.add
def interrupted(tr, updates):
    emitter.queue.add = add
    os.kill(os.getpid(), 2)
    time.sleep(0.5)
    add(tr, updates)
emitter.queue.add = interrupted
emitter.close()
""",
        -2,
        100,
    ),
    "is killed": ("os.kill(os.getpid(), 9)", -9, None),
    "store is gone": (
        "emitter.timeout = 0.1; emitter.queue.add = None",
        0,
        None,
    ),
    "forks": (
        """
child = os.fork()
try:
    emitter.emit("k")
except cq.errors.EmitterClosed as error:
    print(error)
    sys.exit(7)
finally:
    if child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        os._exit(1)
""",
        0,
        101,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_buffered_is_flushed_when_the_process_ends_in_good_order(tmp_path: Any, ending: str) -> None:
    url = f"embedded:{tmp_path}/test.db"
    db = cq.open(url)
    cq.configure(db, "q")
    code, status, expected = ENDINGS[ending]

    found = run_program(sys.executable, "-W", "ignore", "-c", PROGRAM + code, url)

    assert found.status == status, found.err
    assert get(db, "q", "k", pending=True) == expected
    if ending == "store is gone":
        assert "100 increments" in found.err
        assert "Traceback" not in found.err
    if ending == "forks":
        assert "before this process was forked" in found.out


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Make a call, which ^C ends before it runs this line of `flush_for`; False if it has not as many lines."""
    lines = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code is not EmitterBuffer.flush_for.__code__:
            return trace if event == "call" else None
        lines += event == "line"
        if lines == line:
            raise KeyboardInterrupt
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False


def test_an_interrupted_call_delays_no_later_one(db: Any, name: str, queue: Gate) -> None:
    """^C in a call that makes a flush, in a program that goes on after it."""
    line = 1
    with cq.Emitter(queue, db, every=0.01) as emitter:
        while interrupted_at(line, partial(emitter.emit, "interrupted")):
            emitter.emit("k")
            until(lambda number=line: emitter.statistics().committed == number)  # type: ignore[misc]
            line += 1

    assert line > 10
    assert get(db, name, "k", pending=True) == line - 1


EMITTING = """
import sys, cq
db = cq.open(sys.argv[1])
emitter = cq.Emitter(cq.CombineQueue("q"), db, at_most=50, every=0.001)
count = 0
while True:
    emitter.emit("k")
    count += 1
    print(count, flush=True)
"""


def test_a_kill_costs_no_more_than_was_said(tmp_path: Any) -> None:
    url = f"embedded:{tmp_path}/test.db"
    db = cq.open(url)
    cq.configure(db, "q")

    child = subprocess.Popen([sys.executable, "-c", EMITTING, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= 300:
            break
    child.kill()
    last = [int(line) for line in child.stdout.read().split("\n")[:-1]] or [300]
    child.wait()
    child.stdout.close()

    counted = get(db, "q", "k", pending=True)
    assert last[-1] - 50 <= counted <= last[-1] + 1


# asyncio


def test_tasks_emit(db: Any, name: str, queue: Gate) -> None:
    async def main() -> None:
        await asyncio.gather(*(emitter.emit_async(f"k{number % 3}") for number in range(60)))
        await emitter.emit_many_async({"k0": 100})

    with cq.Emitter(queue, db, at_most=7) as emitter:
        asyncio.run(main())

    drain(db, name)
    assert_values(db, name, {"k0": 120, "k1": 20, "k2": 20})


def test_a_loop_goes_on_while_tasks_wait(db: Any, name: str, queue: Gate) -> None:
    """For room."""
    queue.close()

    async def main() -> None:
        tasks = [asyncio.create_task(emitter.emit_async("k")) for _ in range(5)]
        while emitter.statistics().waits < 3:
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks[2:])
        queue.open()
        await asyncio.gather(*tasks)

    with cq.Emitter(queue, db, at_most=2) as emitter:
        asyncio.run(main())

    assert get(db, name, "k", pending=True) == 5


def test_a_task_without_room_is_told_after_a_time(db: Any, name: str, queue: Gate) -> None:
    queue.close()

    async def main() -> None:
        await emitter.emit_async("k")
        with pytest.raises(cq.EmitterFull):
            await emitter.emit_async("k")
        queue.open()

    with cq.Emitter(queue, db, at_most=1, timeout=0.05) as emitter:
        asyncio.run(main())
        emitter.timeout = 60.0

    assert get(db, name, "k", pending=True) == 1
