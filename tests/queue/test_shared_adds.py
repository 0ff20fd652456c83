"""Calls of `add_now` that wait share a transaction: each counts once, and has its own result."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin
from cq.queue import shared_adds
from cq.store.api import error_code
from cq.testing import assert_values, drain
from tests.kit.busy import run_while_collecting
from tests.kit.faults import UNKNOWN, FaultyDatabase, WrappedDatabase, WrappedTransaction
from tests.kit.held_calls import HeldCommits, held_calls
from tests.kit.processes import run_program


@contextmanager
def waiting(db: HeldCommits, queue: Any, calls: list[tuple[Any, Any]]) -> Iterator[list[Future[None]]]:
    """Calls of `add_now` with updates and an id, in their order, while the commit of the first one is under way."""
    with held_calls(db, queue.name, [partial(queue.add_now, db, *given) for given in calls]) as found:
        yield found


class Ending:
    """Adds at its end, which the garbage collector finds while its thread commits."""

    def __init__(self, db: Any, name: str, refused: list[str]) -> None:
        self.db, self.name, self.refused, self.me = db, name, refused, self

    def __del__(self) -> None:
        try:
            cq.CombineQueue(self.name).add_now(self.db, {"ended": 1})
        except cq.StoreError as error:
            self.refused.append(str(error))


def test_a_finalizer_that_interrupts_a_call_of_its_thread_is_refused(db: Any, name: str) -> None:
    queue, refused = cq.configure(db, name), list[str]()
    calls = 0

    def call() -> None:
        for _ in range(200):
            Ending(db, name, refused)
            queue.add_now(db, {"calls": 1})

    while not refused and calls < 20_000:  # in few of the calls the collector runs at the right time
        run_while_collecting(call, threads=2)
        calls += 400
    drain(db, name)

    assert refused
    assert "a finalizer or a signal handler has interrupted" in refused[0]
    assert dict(queue.scan(db)) == {"calls": calls, "ended": calls - len(refused)}


def test_calls_that_wait_share_a_transaction(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue, held = cq.CombineQueue[str, int](name), HeldCommits(db)
    with waiting(held, queue, [({"a": 1, f"own {number}": 1}, None) for number in range(8)]) as calls:
        assert not any(call.done() for call in calls)
    assert [call.result() for call in calls] == [None] * 8
    assert held.commits == 2
    drain(db, name)
    assert_values(db, name, {"a": 8} | {f"own {number}": 1 for number in range(8)})


def test_one_refused_call_fails_alone(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue, held = cq.CombineQueue[str, Any](name), HeldCommits(db)
    given = [({"a": 1}, None), ({"a": 2}, None), ({"a": "x"}, None), ({"a": 4}, "id"), ({"b": b"y"}, "id 2")]
    with waiting(held, queue, given) as calls:
        pass
    results = [call.exception() for call in calls]
    assert [type(result) for result in results] == [
        *(type(None), type(None), cq.InvalidData, type(None), cq.InvalidData)
    ]
    assert "key 'a'" in str(results[2]), "the error of its own update"
    assert held.commits == 2
    drain(db, name)
    assert_values(db, name, {"a": 7})


def test_calls_with_one_id_count_once(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue, held = cq.CombineQueue[str, int](name), HeldCommits(db)
    with waiting(held, queue, [({"a": 1}, None), *[({"b": 1}, "event")] * 3, ({"c": 1}, "other")]) as calls:
        pass
    assert [call.result() for call in calls] == [None] * 5
    queue.add_now(db, {"b": 1}, "event")
    drain(db, name)
    assert_values(db, name, {"a": 1, "b": 1, "c": 1})


def test_a_call_with_a_refused_calls_id_counts(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue, held = cq.CombineQueue[str, Any](name), HeldCommits(db)
    with waiting(held, queue, [({"a": 1}, None), ({"b": "x"}, "event"), ({"b": 2}, "event")]) as calls:
        pass
    assert isinstance(calls[1].exception(), cq.InvalidData)
    assert calls[2].exception() is None
    drain(db, name)
    assert_values(db, name, {"a": 1, "b": 2})


def test_calls_that_do_not_fit_are_committed_later(db: Any, name: str) -> None:
    cq.configure(db, name, value=bytes, combiner="last")
    queue, held = cq.CombineQueue[str, bytes](name), HeldCommits(db)
    large = [({f"key {number} {part}": bytes(8_000) for part in range(20)}, None) for number in range(8)]
    with waiting(held, queue, [({"a": b"1"}, None), *large]) as calls:
        pass
    assert [call.result() for call in calls] == [None] * 9
    assert held.commits > 3, "1.3 MB in transactions of 500 kB"
    drain(db, name)
    assert len(list(queue.scan(db))) == 161


def test_a_missing_queue_is_an_error_of_each_call(db: Any, name: str) -> None:
    queue, held = cq.CombineQueue[str, int](name), HeldCommits(db)
    held.begun.set()  # no commit is held
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(queue.add_now, held, {"a": 1}) for _ in range(8)]
        errors = [call.exception() for call in calls]
    assert {type(error) for error in errors} == {cq.errors.QueueNotConfigured}
    assert len({id(error) for error in errors}) == 8, "each caller adds its traceback to its own"


def test_calls_count_once_whatever_their_commits_answer(db: Any, name: str) -> None:
    seed = random.randrange(1 << 32)
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)
    faulty = FaultyDatabase(db, seed=seed, conflict=0.2, unknown=0.5)

    def add(thread: int) -> None:
        for number in range(20):
            queue.add_now(
                faulty, {"all": 1, f"of {thread}": 1}, f"{thread % 4} {number}" if thread % 2 else None
            )

    with ThreadPoolExecutor(16) as threads:
        for done in [threads.submit(add, thread) for thread in range(16)]:
            done.result()
    assert {"unknown, committed", "unknown, not committed"} <= faulty.injected.keys(), faulty.injected
    drain(db, name)
    found = dict(cq.transact(db, queue.items).items)
    assert found["all"] == sum(value for key, value in found.items() if key != "all"), f"seed {seed}"
    assert all(found[f"of {thread}"] == 20 for thread in range(0, 16, 2)), f"seed {seed}"
    assert found["all"] == 8 * 20 + 2 * 20, (
        f"seed {seed}: threads 1, 5, 9, 13 have the same ids, and 3, 7, 11, 15"
    )


def test_a_refusal_after_an_unknown_result_leaves_the_result_unknown(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)

    class Deleted(WrappedDatabase):
        """A database whose first commit has an unknown result; then the queue is deleted."""

        is_lost = False

        def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
            found = super().call(tr, what, *args, **kwargs)
            if what == "commit" and not self.is_lost:
                found.wait()
                self.is_lost = True
                admin.delete(db, name)
                raise self.error(UNKNOWN)
            return found

    with pytest.raises(Exception) as raised:  # noqa: PT011 - its code is asserted
        queue.add_now(Deleted(db), {"a": 1})
    assert error_code(raised.value) == UNKNOWN, "the updates may count: the queue existed at the first try"
    assert isinstance(raised.value.__cause__, cq.errors.QueueNotConfigured)


def test_the_main_thread_commits_only_its_own_updates(db: Any, name: str) -> None:
    """^C may interrupt it anywhere: no other thread waits for it, and it waits for no other."""
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)

    class Interrupted(WrappedDatabase):
        """A database whose commits in the main thread end with ^C, after a call of another thread."""

        is_local = True

        def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
            if what == "commit" and threading.current_thread() is threading.main_thread():
                with ThreadPoolExecutor(1) as threads:
                    threads.submit(queue.add_now, self, {"a": 1}).result(30)
                raise KeyboardInterrupt
            return super().call(tr, what, *args, **kwargs)

    interrupted = Interrupted(db)
    with pytest.raises(KeyboardInterrupt):
        queue.add_now(interrupted, {"a": 10})
    with ThreadPoolExecutor(1) as threads:
        threads.submit(queue.add_now, interrupted, {"a": 1}).result(30)
    drain(db, name)
    assert_values(db, name, {"a": 2})


def test_an_interrupted_call_that_was_woken_holds_up_no_other(db: Any, name: str) -> None:
    """A thread that waited, and is interrupted when it commits for others, is not woken a second time."""
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)

    class Interrupt(BaseException):
        """Raised in another thread, as by a limit of time."""

    class Interrupted(HeldCommits):
        """A database whose second commit is interrupted."""

        def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
            found = super().call(tr, what, *args, **kwargs)
            if what == "commit" and self.commits == 2:
                raise Interrupt
            return found

    with waiting(Interrupted(db), queue, [({"a": 1}, None)] * 5) as calls:
        pass
    assert [type(call.exception(30)) for call in calls] == [
        *(type(None), Interrupt, type(None), type(None), type(None))
    ]
    drain(db, name)
    assert dict(queue.scan(db))["a"] in (4, 5)


def test_a_refused_call_whose_group_was_interrupted_before_its_commit_is_told_why(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue[str, Any](name)

    class Interrupt(BaseException):
        """Raised in another thread, as by a limit of time."""

    class Interrupted(HeldCommits):
        """A database whose second transaction is interrupted before it writes."""

        transactions = 0

        def create_transaction(self) -> Any:
            self.transactions += 1
            if self.transactions == 2:
                raise Interrupt
            return super().create_transaction()

    with waiting(Interrupted(db), queue, [({"a": each}, None) for each in (1, 1, "x", 1)]) as calls:
        pass
    assert [type(call.exception(30)) for call in calls] == [
        *(type(None), Interrupt, cq.InvalidData, type(None))
    ]
    drain(db, name)
    assert dict(queue.scan(db))["a"] in (2, 3)


FORKING = """
import os, sys, threading, cq
from tests.queue.test_shared_adds import HeldCommits
db = HeldCommits(cq.open(sys.argv[1]))
queue = cq.CombineQueue("q")
held = threading.Thread(target=queue.add_now, args=(db, {"a": 1}))
held.start()
db.begun.wait()
def add():
    try:
        queue.add_now(db, {"a": 1})
    except cq.StoreError as error:
        print(error, flush=True)
if os.fork() == 0:
    thread = threading.Thread(target=add)
    thread.start()
    thread.join()
    os._exit(7)
code = os.waitstatus_to_exitcode(os.wait()[1])
db.go.set()
held.join()
os._exit(code)
"""


def test_a_forked_child_waits_for_no_group_of_its_parent(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/test.db"
    cq.configure(cq.open(url), "q")
    found = run_program(sys.executable, "-W", "ignore", "-c", FORKING, url)
    assert found.status == 7, found.err
    assert "fork" in found.out


def test_large_updates_are_not_packed_again_and_again(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cq.configure(db, name, value=bytes, combiner="last")
    queue, held, packed = cq.CombineQueue[str, bytes](name), HeldCommits(db), [0]
    rows = shared_adds._rows

    def count(config: Any, calls: Any, *rest: Any) -> Any:
        packed[0] += len(calls)
        return rows(config, calls, *rest)

    monkeypatch.setattr(shared_adds, "_rows", count)
    with waiting(held, queue, [({f"key {number}": bytes(80_000)}, None) for number in range(60)]) as calls:
        pass
    assert [call.result() for call in calls] == [None] * 60
    assert packed[0] < 60 * 7, f"{packed[0]}: all of them in the first try, then about each group twice"


@pytest.mark.parametrize("db", ["file.cq", None, 5])
def test_what_is_no_database_is_refused_in_a_thread_too(db: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        error = threads.submit(cq.CombineQueue[str, int]("q").add_now, db, {"a": 1}).exception()
    assert isinstance(error, TypeError)
    assert "expected a database" in str(error)


def test_calls_share_transactions_again_after_an_empty_one_and_a_large_one(db: Any, name: str) -> None:
    cq.configure(db, name, value=bytes, combiner="last")
    queue, large = cq.CombineQueue[str, bytes](name), {f"key {part}": bytes(8_000) for part in range(70)}
    held = HeldCommits(db)
    with waiting(held, queue, [({"a": b"1"}, None), ({}, None), (large, None)]):
        pass

    held.begun, held.go, held.commits = threading.Event(), threading.Event(), 0
    with waiting(held, queue, [({"a": b"1"}, None)] * 40) as calls:
        pass
    assert [call.result() for call in calls] == [None] * 40
    assert held.commits < 10


class Loop:
    """Stands for an event loop."""

    def is_closed(self) -> bool:
        return False


def test_many_event_loops_begin_at_the_same_time(db: Any, name: str) -> None:
    def begin() -> None:
        loops = [Loop() for _ in range(20)]
        for _ in range(50):
            loops = [*loops[10:], *(Loop() for _ in range(10))]
            for loop in loops:
                shared_adds.shared_adds(db, name, loop)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for each in [threads.submit(begin) for _ in range(8)]:
                each.result()
    finally:
        sys.setswitchinterval(interval)
