"""Calls of `ask_now` that share a transaction share one wait for their answers."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq.app import App
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import DecisionFailed, NoAnswer, Withdrawn
from cq.queue import shared_asks
from cq.testing import assert_values, drain
from tests.kit.faults import WrappedTransaction
from tests.kit.held_calls import HeldCommits, held_calls, until


class Watches(HeldCommits):
    """Counts the watches, too."""

    watches = 0

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        self.watches += what == "watch"
        return super().call(tr, what, *args, **kwargs)


def count(key: str, state: int | None, request: int) -> tuple[int, int]:
    if request < 0:
        raise ValueError(request)
    return (state or 0) + 1, request


def counter(db: Any, name: str, buckets: int = 1) -> tuple[App, Any]:
    app = App()
    queue = app.queue(name, key=str, value=int, decider=cq.Decider("count", 1, count), buckets=buckets)
    app.configure(db, name)
    return app, queue


def test_a_signal_handler_may_add_while_the_main_thread_waits_for_an_answer(db: Any, name: str) -> None:
    _, asked = counter(db, name)
    other = cq.configure(db, f"{name}-other")
    former = signal.signal(signal.SIGALRM, lambda *_: other.add_now(db, {"signals": 1}))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(NoAnswer):
            asked.ask_now(db, "a", 1, timeout=1.0)
    finally:
        signal.signal(signal.SIGALRM, former)
    drain(db, f"{name}-other")
    assert_values(db, f"{name}-other", {"signals": 1})


def test_calls_that_share_a_transaction_share_a_wait(db: Any, name: str) -> None:
    app, queue = counter(db, name)
    held = Watches(db)
    requests = [*range(20), -1, 21]
    calls = [partial(queue.ask_now, held, f"{each % 3}", each, timeout=60) for each in requests]
    with held_calls(held, name, calls) as found:
        held.go.set()
        until(lambda: held.watches >= 2)  # of the first call, and of all others
        drain(db, name, app=app)
    with pytest.raises(DecisionFailed):
        found[20].result()
    assert [each.result() for at, each in enumerate(found) if at != 20] == [*range(20), 21]
    assert held.watches == 2


def test_a_call_that_waits_no_more_leaves_the_wait_to_others(db: Any, name: str) -> None:
    app, queue = counter(db, name)
    held = HeldCommits(db)
    calls = [
        partial(queue.ask_now, held, "a", 0, timeout=60),
        partial(queue.ask_now, held, "a", 1, timeout=0.01),  # commits the group
        partial(queue.ask_now, held, "a", 2, timeout=0.02, withdraw=True),
        partial(queue.ask_now, held, "a", 3, "id", timeout=60),
        partial(queue.ask_now, held, "a", 4, timeout=None),
    ]
    with held_calls(held, name, calls) as found:
        held.go.set()
        with pytest.raises(NoAnswer, match="no worker is alive"):
            found[1].result(30)
        with pytest.raises(Withdrawn):
            found[2].result(30)
        drain(db, name, app=app)
        assert [found[at].result(30) for at in (0, 3, 4)] == [0, 3, 4]
    assert_values(db, name, {"a": 4})


def test_a_bucket_without_a_worker_delays_no_answers_of_others(db: Any, name: str) -> None:
    app, queue = counter(db, name, buckets=2)
    stuck, other = (
        next(key for key in map(str, range(99)) if bucket_of(codec.encode(key), 2) == at) for at in (0, 1)
    )
    held = Watches(db)
    calls = [partial(queue.ask_now, held, key, 1, timeout=60) for key in (other, stuck, other)]
    with held_calls(held, name, calls) as found:
        held.go.set()
        until(lambda: held.watches >= 3)  # of the first call, and of each bucket for the others
        code = app.code(cq.transact(db, lambda tr: read_config(tr, name)))
        PassRunner(db, code, 1).combine()
        assert [found[at].result(30) for at in (0, 2)] == [1, 1]
        assert not found[1].done()
        drain(db, name, app=app)
        assert found[1].result(30) == 1


def test_an_error_of_the_wait_is_that_of_each_call(db: Any, name: str) -> None:
    _, queue = counter(db, name)
    held = HeldCommits(db)
    calls = [partial(queue.ask_now, held, "a", each, timeout=60) for each in range(3)]
    with (
        patch.object(shared_asks, "kept_answers", side_effect=RuntimeError("no read")),
        held_calls(held, name, calls) as found,
    ):
        held.go.set()
        errors = [each.exception(30) for each in found]
    assert [str(error) for error in errors] == ["no read"] * 3
    assert len(set(map(id, errors))) == 3
