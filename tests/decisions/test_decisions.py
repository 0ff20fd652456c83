"""Requests are decided in commit order, each once, with the state and the answer in one transaction."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import replace
from signal import SIGINT, raise_signal
from typing import Any, Final

import pytest

import cq
from cq.admin import purge, rebucket
from cq.app import App
from cq.bucket.pass_runner import PassRunner
from cq.deciders import Decided
from cq.errors import (
    CodeMismatch,
    ConfigurationConflict,
    DecisionFailed,
    InvalidConfiguration,
    NoAnswer,
    Withdrawn,
)
from cq.keys import QueueKeys, below, version_of
from cq.keys.answers import TICKET_BYTES, AnswerKeys, group_of
from cq.observers.worker.worker import Worker
from cq.passes.effects import Effects
from cq.passes.plan import Limits
from cq.passes.view import MAX_MARKS
from cq.queue import answers
from cq.queue.operation_ids import Trim
from cq.queue.requests import operation_of
from cq.queue.set_aside import drop_aside, retry_aside
from cq.store.api import NOT_COMMITTED, error_code
from cq.store.embedded import FDBError
from cq.testing import assert_drained, assert_values, drain
from cq.verify.queue import verify
from tests.kit.clocks import jumping
from tests.kit.faults import FaultyDatabase, error_class
from tests.kit.queues import aside, code_of, put, stored
from tests.kit.workers import running

Pair = tuple[Any, Any]


def sell(key: str, state: int | None, request: Any) -> Pair:
    """A stock of ten: sells `request` pieces, unless there are fewer."""
    left = (10 if state is None else state) - request
    return (left, "sold") if left >= 0 else (state, "sold out")


def note(key: str, state: list[Any] | None, request: Any) -> Pair:
    """Lists all requests."""
    if request == "bad":
        raise ValueError("a bad request")
    return [*(state or []), request], len(state or [])


STOCK: Final = cq.Decider("stock", 1, sell)
NOTES: Final = cq.Decider("notes", 1, note)


def shop(db: Any, name: str, decider: cq.Decider = STOCK, value: Any = int, **settings: Any) -> Any:
    """The application and its queue."""
    app = App()
    queue = app.queue(name, key=str, value=value, decider=decider, **settings)
    app.configure(db, name)
    return app, queue


def ask(db: Any, queue: Any, key: str, request: Any, once: str | None = None) -> str:
    ticket: str = cq.transact(db, lambda tr: queue.ask(tr, key, request, once))
    return ticket


def test_requests_are_decided_in_commit_order(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=3)
    tickets = [ask(db, stock, key, 4) for key in ("a", "b", "a", "a", "c")]
    drain(db, name, app=app)

    answers = [stock.answer(db, ticket) for ticket in tickets]
    assert answers == ["sold", "sold", "sold", "sold out", "sold"]
    assert_values(db, stock, {"a": 2, "b": 6, "c": 6})
    assert [stock.answer(db, ticket, timeout=0) for ticket in tickets] == answers  # again
    assert list(verify(db, name)) == []


def test_an_answer_comes_to_a_caller_that_waits(db: Any, name: str) -> None:
    app, stock = shop(db, name)
    with running(Worker(db, app=app, queues=[name])):
        assert [stock.ask_now(db, "a", 6, timeout=60), stock.ask_now(db, "a", 6, timeout=60)] == [
            "sold",
            "sold out",
        ]


def test_small_passes_keep_the_order_of_each_key(db: Any, name: str) -> None:
    app, notes = shop(db, name, NOTES, list, buckets=1)
    asked: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    tickets = {}
    for number in range(60):
        key = "abc"[number * number % 3]
        asked[key].append(number)
        tickets[number] = ask(db, notes, key, number)
    runner = PassRunner(
        db, code_of(db, name, app), 0, limits=Limits(write_bytes=2_000, observer_bytes=0, max_report=2)
    )
    passes = 0
    while runner.combine().more:
        passes += 1

    assert passes > 5
    assert_values(db, notes, {key: numbers for key, numbers in asked.items() if numbers})
    answers = {number: notes.answer(db, ticket, 0) for number, ticket in tickets.items()}
    assert answers == {n: asked[key].index(n) for key in asked for n in asked[key]}


def test_many_requests_of_a_transaction_have_their_answers(db: Any, name: str) -> None:
    def decide(key: str, state: list[int] | None, request: int) -> Pair:
        if request == 7:
            raise ValueError("seven")
        return [*(state or []), request], f"{request}" * (1 if request % 10 else 300)

    app, queue = shop(db, name, cq.Decider("listing", 1, decide), list, buckets=2)
    pairs = [("abc"[number % 3], number) for number in range(300)]
    tickets = cq.transact(db, lambda tr: queue.ask_many(tr, pairs))
    assert queue.withdraw(db, tickets[5])
    small = Limits(write_bytes=2_000, observer_bytes=0)
    for bucket in (0, 1):  # several passes answer each group
        runner = PassRunner(db, code_of(db, name, app), bucket, limits=small)
        while runner.combine().more:
            pass
    rebucket(db, name, 3)  # answers to retried requests come from passes over other buckets
    app.queue(name, decider=cq.Decider("listing", 1, lambda key, state, request: (state, "late")))
    assert retry_aside(db, name) == 1
    drain(db, name, app=app)

    with pytest.raises(Withdrawn):
        queue.answer(db, tickets[5], 0)
    answers = [queue.answer(db, ticket, 0) for number, ticket in enumerate(tickets) if number != 5]
    expected = {number: f"{number}" * (1 if number % 10 else 300) for number in range(300)} | {7: "late"}
    assert answers == [expected[number] for number in range(300) if number != 5]
    left = {key: [n for of, n in pairs if of == key and n not in (5, 7)] for key in "abc"}
    assert_values(db, queue, left)
    assert list(verify(db, name)) == []
    trim = Trim(db, name, keep_seconds=-3600)
    while trim.step():
        pass
    assert trim.removed == 300
    assert stored(db, below(AnswerKeys(name).prefix)) == []


def test_many_requests_with_an_id_are_decided_once(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=2)
    pairs = [("a", 3), ("b", 3), ("a", 3)]
    for _ in range(2):
        tickets = cq.transact(db, lambda tr: stock.ask_many(tr, pairs, "order 1"))
        drain(db, name, app=app)
    single = ask(db, stock, "a", 3, "order 1")
    drain(db, name, app=app)
    assert [stock.answer(db, ticket, 0) for ticket in (*tickets, single)] == ["sold"] * 4
    assert len({*tickets, single}) == 4
    assert_values(db, stock, {"a": 1, "b": 7})
    with pytest.raises(cq.InvalidData):
        cq.transact(db, lambda tr: stock.ask_many(tr, {"c": 1, "d": object()}))
    assert cq.transact(db, lambda tr: stock.ask_many(tr, {})) == []
    assert_drained(db, name)


def test_a_state_of_zero_is_a_state_and_none_deletes(db: Any, name: str) -> None:
    app, queue = shop(db, name, cq.Decider("given", 1, lambda key, state, request: (request, state)))
    tickets = []
    for request in (0, 1, None, 0):
        tickets.append(ask(db, queue, "a", request))
        drain(db, name, app=app)
    assert [queue.answer(db, ticket, 0) for ticket in tickets] == [None, 0, 1, None]
    assert_values(db, queue, {"a": 0})
    assert list(verify(db, name)) == []


def test_a_failing_request_is_set_aside_and_others_go_on(db: Any, name: str) -> None:
    app, notes = shop(db, name, NOTES, list)
    first, bad, last = (ask(db, notes, "a", request) for request in (1, "bad", 2))
    drain(db, name, app=app)

    assert [notes.answer(db, first), notes.answer(db, last)] == [0, 1]
    with pytest.raises(DecisionFailed, match="ValueError: a bad request"):
        notes.answer(db, bad)
    assert [each.updates[0][1] for each in aside(db, name)] == ["bad"]
    assert_values(db, notes, {"a": [1, 2]})
    app.queue(name, decider=replace(NOTES, decide=lambda key, state, request: ([*state, request], "late")))
    assert retry_aside(db, name) == 1
    drain(db, name, app=app)
    assert notes.answer(db, bad) == "late"
    assert drop_aside(db, name) == 0


def test_a_request_is_set_aside_as_it_was_queued(db: Any, name: str) -> None:
    def decide(key: str, state: int | None, request: dict[str, int]) -> Pair:
        pieces = request.pop("pieces")
        if pieces < 0:
            raise ValueError("a negative number")
        return (state or 0) + pieces, None

    app, queue = shop(db, name, cq.Decider("careless", 1, decide))
    for pieces in (1, -1, 2):
        ask(db, queue, "a", {"pieces": pieces})
    drain(db, name, app=app)
    assert [each.updates[0][1] for each in aside(db, name)] == [{"pieces": -1}]
    assert_values(db, queue, {"a": 3})


@pytest.mark.parametrize("returned", [None, (1,), (1, 2, 3), "ab", 7])
def test_a_decider_that_returns_no_pair_fails_with_a_message(db: Any, name: str, returned: Any) -> None:
    app, queue = shop(db, name, cq.Decider("odd", 1, lambda key, state, request: returned), "any")
    ticket = ask(db, queue, "a", 1)
    drain(db, name, app=app)
    with pytest.raises(DecisionFailed, match=r"expected the decider to return \(new state, answer\), got: "):
        queue.answer(db, ticket, 0)


@pytest.mark.parametrize("answer", [object(), "x" * 20_000])
def test_an_answer_or_a_state_that_cannot_be_stored_fails_the_request_alone(
    db: Any, name: str, answer: Any
) -> None:
    def decide(key: str, state: Any, request: Any) -> Pair:
        return {"answer": (1, answer), "state": (answer, 1), "good": (5, "good")}[request]

    app, queue = shop(db, name, cq.Decider("odd", 1, decide))
    bad, worse, good = (ask(db, queue, "a", request) for request in ("answer", "state", "good"))
    drain(db, name, app=app)
    assert queue.answer(db, good) == "good"
    with pytest.raises(DecisionFailed, match="the answer cannot be stored: "):
        queue.answer(db, bad)
    with pytest.raises(DecisionFailed):
        queue.answer(db, worse)
    assert_values(db, queue, {"a": 5})


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), CancelledError()], ids=repr)
def test_whatever_a_decider_raises_in_a_worker_fails_the_request_alone(
    db: Any, name: str, error: BaseException
) -> None:
    def decide(key: str, state: Any, request: str) -> Pair:
        if request == "bad":
            raise error
        return 1, request

    app, queue = shop(db, name, cq.Decider("leaving", 1, decide))
    bad, good = ask(db, queue, "a", "bad"), ask(db, queue, "a", "good")
    Worker(db, app, [name]).drain()
    with pytest.raises(DecisionFailed, match=type(error).__name__):
        queue.answer(db, bad, 0)
    assert queue.answer(db, good, 0) == "good"


def test_an_interrupt_of_the_main_thread_is_no_failure_of_the_decider(db: Any, name: str) -> None:
    def decide(key: str, state: Any, request: Any) -> Pair:
        raise_signal(SIGINT)
        return 1, "decided"

    app, queue = shop(db, name, cq.Decider("slow", 1, decide))
    ask(db, queue, "a", 1)
    with pytest.raises(KeyboardInterrupt):
        drain(db, name, app=app)
    assert aside(db, name) == []
    assert_values(db, queue, {})


def test_a_decider_that_changes_the_state_and_raises_changes_nothing(db: Any, name: str) -> None:
    def decide(key: str, state: list[int] | None, request: int) -> Pair:
        state = state or []
        state.append(request)
        if request < 0:
            raise ValueError
        return state, None

    changes: list[cq.Change] = []
    app, queue = shop(
        db,
        name,
        cq.Decider("careless", 1, decide),
        list,
        observers=[cq.Observer("seen", 1, lambda tr, found: changes.extend(found))],
    )
    for requests in ([1, -2, 3], [-4, 5]):
        cq.transact(db, lambda tr: [queue.ask(tr, "a", each) for each in requests])  # noqa: B023 - runs at once
        drain(db, name, app=app)
    assert_values(db, queue, {"a": [1, 3, 5]})
    assert [(each.old, each.new) for each in changes] == [(None, [1, 3]), ([1, 3], [1, 3, 5])]


def test_the_same_id_and_key_is_decided_once_and_has_one_ticket(db: Any, name: str) -> None:
    app, stock = shop(db, name)
    first, again = ask(db, stock, "a", 3, "order 1"), ask(db, stock, "a", 3, "order 1")
    other = ask(db, stock, "b", 3, "order 1")
    drain(db, name, app=app)
    late = ask(db, stock, "a", 3, "order 1")
    drain(db, name, app=app)
    assert first == again == late != other
    assert stock.answer(db, late) == "sold"
    assert_values(db, stock, {"a": 7, "b": 7})


def test_requests_count_once_whatever_their_commits_answer(db: Any, name: str) -> None:
    app, notes = shop(db, name, NOTES, list)
    faulty = FaultyDatabase(db, seed=1, conflict=0.2, unknown=0.4)
    with running(Worker(db, app=app, queues=[name])):
        answers = [notes.ask_now(faulty, "a", number, timeout=60) for number in range(20)]
    assert {"unknown, committed", "unknown, not committed"} <= faulty.injected.keys()
    assert answers == list(range(20))
    assert_values(db, notes, {"a": list(range(20))})


def test_without_a_worker_the_error_says_so_and_the_request_stays(db: Any, name: str) -> None:
    app, stock = shop(db, name)
    with pytest.raises(NoAnswer, match="no worker is alive: run `cq worker`") as failed:
        stock.ask_now(db, "a", 1, timeout=0.01)
    drain(db, name, app=app)
    assert stock.answer(db, failed.value.ticket, 0) == "sold"


def test_a_wait_ends_also_if_the_store_fails_by_then(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed_out(tr: Any, name: str) -> None:
        raise FDBError(1031)

    _, stock = shop(db, name)
    monkeypatch.setattr(answers, "read_flags", timed_out)
    with pytest.raises(NoAnswer, match="has no answer: the store does not answer either"):
        stock.ask_now(db, "a", 1, timeout=0.01)


def test_a_purged_request_and_one_of_another_queue_have_no_answer(db: Any, name: str) -> None:
    app, stock = shop(db, name)
    ticket = ask(db, stock, "a", 1)
    purge(db, name)
    _, other = shop(db, f"{name}2")

    with running(Worker(db, app=app, queues=[name])):
        assert stock.ask_now(db, "a", 1, timeout=60) == "sold"
        with pytest.raises(NoAnswer, match="a purge has dropped it"):
            stock.answer(db, ticket, timeout=0)
        with pytest.raises(NoAnswer, match="the live workers are for other queues"):
            other.answer(db, ticket, timeout=0)
    with pytest.raises(TypeError, match="expected a database"):
        cq.transact(db, lambda tr: stock.ask_now(tr, "a", 1))


def test_a_withdrawn_request_is_never_decided(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=2)
    with pytest.raises(Withdrawn, match="will not be decided") as failed:
        stock.ask_now(db, "a", 1, timeout=0.01, withdraw=True)
    kept = ask(db, stock, "a", 2)
    drain(db, name, app=app)
    with pytest.raises(Withdrawn):
        stock.answer(db, failed.value.ticket)
    assert stock.answer(db, kept) == "sold"
    assert_values(db, stock, {"a": 8})
    assert stock.withdraw(db, failed.value.ticket)
    assert not stock.withdraw(db, kept)
    assert stored(db, AnswerKeys(name).all_withdrawn()) == []


def test_a_pass_that_began_before_a_withdrawal_does_not_commit_after_it(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=1)
    ticket = ask(db, stock, "a", 1)
    runner = PassRunner(db, code_of(db, name, app), 0)
    tr = db.create_transaction()
    runner._pass(tr).run()
    assert stock.withdraw(db, ticket)
    with pytest.raises(Exception) as conflict:  # noqa: PT011 - of either store
        tr.commit().wait()
    assert error_code(conflict.value) == NOT_COMMITTED
    runner.combine()
    with pytest.raises(Withdrawn):
        stock.answer(db, ticket, 0)
    assert_values(db, stock, {})


def test_a_withdrawal_that_comes_too_late_says_so(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=1)
    ticket = ask(db, stock, "a", 1)
    mark = AnswerKeys(name).withdrawn(bytes.fromhex(ticket))
    drain(db, name, app=app)
    cq.transact(db, lambda tr: tr.set(mark, b""))  # of a caller that had not seen the answer
    assert not stock.withdraw(db, ticket)
    ask(db, stock, "b", 1)
    drain(db, name, app=app)
    assert stored(db, AnswerKeys(name).all_withdrawn()) == []
    assert stock.answer(db, ticket, 0) == "sold"


def test_marks_without_requests_are_cleared_a_part_in_each_pass(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=1)
    keys, marks = AnswerKeys(name), AnswerKeys(name).all_withdrawn()
    withdrawn, kept = ask(db, stock, "a", 1), ask(db, stock, "a", 2)
    first = [number.to_bytes(TICKET_BYTES, "big") for number in range(MAX_MARKS + 1)]
    tickets = [*first, bytes.fromhex(withdrawn)]  # the request's mark is not among those that a pass reads
    put(db, {keys.withdrawn(each): b"" for each in tickets})
    runner = PassRunner(db, code_of(db, name, app), 0)
    assert runner.combine().more
    assert stock.answer(db, kept, 0) == "sold"
    with pytest.raises(Withdrawn):
        stock.answer(db, withdrawn, 0)
    assert len(stored(db, marks)) == 1
    drain(db, name, app=app)
    assert stored(db, marks) == []
    assert_values(db, stock, {"a": 8})


def test_observers_and_the_observer_of_decisions_are_called_in_the_transaction(db: Any, name: str) -> None:
    cq.configure(db, f"{name}-sold", key=str, value=int)
    decided: list[Decided] = []

    def pay(tr: Any, decisions: list[Decided]) -> None:
        decided.extend(decisions)
        sold = [(each.key, each.request) for each in decisions if each.answer == "sold"]
        cq.CombineQueue(f"{name}-sold").add(tr, sold)

    changes: list[Any] = []
    seen = cq.Observer("seen", 1, lambda tr, found: changes.extend(found))
    app, stock = shop(db, name, replace(STOCK, observer=pay), observers=[seen])
    for request in (6, 6, 1):
        ask(db, stock, "a", request)
    drain(db, app=app)
    assert decided == [
        Decided("a", 6, "sold", None, 4),
        Decided("a", 6, "sold out", 4, 4),
        Decided("a", 1, "sold", 4, 3),
    ]
    assert [(each.old, each.new, each.complete) for each in changes] == [(None, 3, True)]
    assert_values(db, f"{name}-sold", {"a": 7})


def test_a_key_that_an_observer_refuses_is_set_aside_and_answered(db: Any, name: str) -> None:
    def refuse(tr: Any, decisions: list[Decided]) -> None:
        if any(each.key == "bad" for each in decisions):
            raise RuntimeError("refused")

    app, stock = shop(db, name, replace(STOCK, observer=refuse), buckets=1)
    tickets = {key: ask(db, stock, key, 1) for key in ("a", "bad", "c")}
    drain(db, name, app=app)
    assert [stock.answer(db, tickets[key], 0) for key in "ac"] == ["sold", "sold"]
    with pytest.raises(DecisionFailed, match="refused"):
        stock.answer(db, tickets["bad"], 0)
    assert_values(db, stock, {"a": 9, "c": 9})
    assert len(aside(db, name)) == 1


def test_a_request_that_an_observer_refuses_is_set_aside_alone(db: Any, name: str) -> None:
    def refuse(tr: Any, decisions: list[Decided]) -> None:
        if any(each.request in (2, 3) for each in decisions):
            raise RuntimeError("refused")

    app, stock = shop(db, name, replace(STOCK, observer=refuse), buckets=1)
    tickets = cq.transact(db, lambda tr: [stock.ask(tr, "a", request) for request in (1, 2, 1, 1, 3, 1)])
    drain(db, name, app=app)
    for number in (1, 4):
        with pytest.raises(DecisionFailed, match="refused"):
            stock.answer(db, tickets[number], 0)
    assert [stock.answer(db, tickets[number], 0) for number in (0, 2, 3, 5)] == ["sold"] * 4
    assert_values(db, stock, {"a": 6})
    assert [each.updates[0][1] for each in aside(db, name)] == [2, 3]


def test_a_request_that_two_workers_find_at_fault_fails_alone(db: Any, name: str) -> None:
    """The worker that is slower must not fail the next request of the key in its place."""

    def refuse(tr: Any, decisions: list[Decided]) -> None:
        if any(each.request == 2 for each in decisions):
            raise RuntimeError("refused")

    app, stock = shop(db, name, replace(STOCK, observer=refuse), buckets=1)
    tickets = cq.transact(db, lambda tr: [stock.ask(tr, "a", request) for request in (2, 1, 1)])
    slower, faster = (PassRunner(db, code_of(db, name, app), 0) for _ in range(2))
    while not slower.quarantine.rejected:
        slower.combine(lambda: True)  # no pass is committed
    while not aside(db, name):
        faster.combine()
    while slower.combine().more:
        pass
    assert [each.updates[0][1] for each in aside(db, name)] == [2]
    assert [stock.answer(db, ticket, 0) for ticket in tickets[1:]] == ["sold"] * 2


def test_an_observer_that_refuses_all_decisions_fails_them_in_growing_numbers(db: Any, name: str) -> None:
    calls: list[int] = []

    def refuse(tr: Any, decisions: list[Decided]) -> None:
        calls.append(len(decisions))
        raise RuntimeError("refused")

    app, stock = shop(db, name, replace(STOCK, observer=refuse), buckets=1)
    tickets = cq.transact(db, lambda tr: [stock.ask(tr, "a", 1) for _ in range(3_000)])
    drain(db, name, app=app)
    assert len(calls) < 60, calls
    assert sum(len(each.updates) for each in aside(db, name)) == len(tickets)
    with pytest.raises(DecisionFailed, match="refused"):
        stock.answer(db, tickets[-1], 0)


def test_a_withdrawn_request_is_not_set_aside_with_its_key(db: Any, name: str) -> None:
    def refuse(tr: Any, decisions: list[Decided]) -> None:
        raise RuntimeError("refused")

    app, stock = shop(db, name, replace(STOCK, observer=refuse), buckets=1)
    ticket, other = ask(db, stock, "a", 1), ask(db, stock, "a", 2)
    assert stock.withdraw(db, ticket)
    drain(db, name, app=app)
    with pytest.raises(Withdrawn):
        stock.answer(db, ticket, 0)
    with pytest.raises(DecisionFailed):
        stock.answer(db, other, 0)
    assert [each.updates[0][1] for each in aside(db, name)] == [2]


def test_large_answers_to_one_key_need_smaller_passes(db: Any, name: str) -> None:
    decider = cq.Decider("large", 1, lambda key, state, request: ((state or 0) + 1, "x" * 9_000))
    app, queue = shop(db, name, decider, buckets=1)
    tickets = cq.transact(db, lambda tr: [queue.ask(tr, "a", None) for _ in range(2_000)])
    drain(db, name, app=app)
    assert_values(db, queue, {"a": 2_000})
    assert aside(db, name) == []
    assert {queue.answer(db, ticket, 0) for ticket in tickets[::100]} == {"x" * 9_000}


@pytest.mark.parametrize("code", [1007, 1031])
@pytest.mark.parametrize("keys", ["a", "ab"])
def test_slow_decisions_are_divided_over_passes_down_to_the_request_at_fault(
    db: Any, name: str, keys: str, code: int
) -> None:
    """A transaction is too old if it has decided more than three requests, and if it has decided the slow one.

    On a cluster, and only there, it also has a time limit.
    """
    decided: list[Any] = []

    def decide(key: Any, state: Any, request: Any) -> tuple[int, int]:
        decided.append(request)
        clock.passed += 31 if request == "slow" else 1.5
        return (state or 0) + 1, (state or 0) + 1

    app, queue = shop(db, name, cq.Decider("slow", 1, decide), buckets=1)
    requests = [*range(20), "slow", *range(20)]
    pairs = [(keys[number % len(keys)], each) for number, each in enumerate(requests)]
    tickets = cq.transact(db, lambda tr: queue.ask_many(tr, pairs))
    commit = Effects.write

    def write(effects: Effects, tr: Any) -> None:
        some, decided[:] = decided[:], []
        if len(some) > 3 or "slow" in some:
            raise error_class(tr)(code)
        commit(effects, tr)

    with pytest.MonkeyPatch.context() as patch, jumping() as clock:
        patch.setattr(Effects, "write", write)
        drain(db, name, app=app)
    assert [each.updates[0][1] for each in aside(db, name)] == ["slow"]
    with pytest.raises(DecisionFailed, match=str(code)):
        queue.answer(db, tickets[20], 0)
    assert sum(dict(queue.scan(db)).values()) == 40


def test_old_answers_are_refused_and_removed(db: Any, name: str) -> None:
    app, stock = shop(db, name, replace(STOCK, keep=1))
    old = ask(db, stock, "a", 1)
    drain(db, name, app=app)
    keys, prefix = AnswerKeys(name), AnswerKeys(name).prefix
    assert len(stored(db, below(prefix))) == 2
    row = keys.answers(group_of(bytes.fromhex(old)))
    read = cq.transact(db, lambda tr: tr.get(row).value) or b""
    aged = (int.from_bytes(read[:8], "big") - 2_000_000).to_bytes(8, "big") + read[8:]
    cq.transact(db, lambda tr: tr.set(row, aged))
    with pytest.raises(NoAnswer, match="no longer kept"):
        stock.answer(db, old)
    new = ask(db, stock, "a", 1)
    drain(db, name, app=app)
    trim = Trim(db, name)
    while trim.step():
        pass
    assert trim.removed == 0  # the list of the answers is new
    assert stock.answer(db, new, 0) == "sold"
    trim = Trim(db, name, keep_seconds=-3600)
    while trim.step():
        pass
    assert trim.removed == 2
    assert stored(db, below(prefix)) == []
    with pytest.raises(NoAnswer, match="has no answer"):
        stock.answer(db, new, 0)


def test_a_repeated_request_whose_answer_is_removed_is_not_said_to_be_withdrawn(db: Any, name: str) -> None:
    app, stock = shop(db, name, replace(STOCK, keep=10))
    ticket = ask(db, stock, "a", 1, "order 1")
    drain(db, name, app=app)
    trim = Trim(db, name, keep_seconds=-3600)
    while trim.step():
        pass
    keys, operation = QueueKeys(name), operation_of("a", "order 1")
    ((marker, value),) = stored(db, keys.markers(operation))
    versionstamp = keys.parse_marker(marker)[1]
    aged = max(1, version_of(versionstamp) - 12_000_000).to_bytes(8, "big") + versionstamp[8:]
    put(db, {marker: None, marker.removesuffix(versionstamp) + aged: value})
    with pytest.raises(NoAnswer, match="it may have been decided then") as failed:
        stock.ask_now(db, "a", 1, "order 1", timeout=0, withdraw=True)
    assert failed.value.ticket == ticket
    with pytest.raises(Withdrawn):
        stock.ask_now(db, "a", 1, "order 2", timeout=0, withdraw=True)
    assert_values(db, stock, {"a": 9})


def test_what_a_queue_with_a_decider_refuses(db: Any, name: str) -> None:
    _, stock = shop(db, name)
    plain = cq.configure(db, f"{name}-plain", key=str, value="any")
    with pytest.raises(cq.InvalidData, match="takes requests and no updates"):
        cq.transact(db, lambda tr: stock.add(tr, {"a": 1}))
    with pytest.raises(cq.InvalidData, match="takes requests and no updates"):
        stock.add_now(db, {"a": 1})
    with pytest.raises(cq.InvalidData, match="takes requests and no updates"):
        cq.Emitter(stock, db)
    with pytest.raises(cq.InvalidData, match="only workers decide"):
        cq.transact(db, lambda tr: stock.get(tr, "a", pending=True))
    with pytest.raises(InvalidConfiguration, match="has no decider"):
        cq.transact(db, lambda tr: plain.ask(tr, "a", 1))
    with pytest.raises(InvalidConfiguration, match="has no decider"):
        plain.ask_now(db, "a", 1)
    with pytest.raises(cq.InvalidData):
        stock.ask_now(db, "a", object())
    with pytest.raises(cq.InvalidData, match="expected a ticket"):
        stock.answer(db, "a ticket")
    with pytest.raises(InvalidConfiguration, match="no roll-up"):
        cq.configure(db, f"{name}-new", combiner="sum", decider=STOCK, rollup="1m:1h")
    with pytest.raises(InvalidConfiguration, match="no audit"):
        cq.configure(db, f"{name}-new", combiner="sum", decider=STOCK, audit=True)
    with pytest.raises(ConfigurationConflict, match="decider"):
        cq.configure(db, f"{name}-plain", key="str", decider=STOCK)
    with pytest.raises(InvalidConfiguration, match="expected a decider"):
        cq.configure(db, f"{name}-new", key="str", decider=sell)  # type: ignore[call-overload]
    assert_drained(db, name)
    assert_values(db, stock, {})


def test_only_workers_with_the_configured_version_decide(db: Any, name: str) -> None:
    app, stock = shop(db, name)
    ticket = ask(db, stock, "a", 4)
    cq.configure(db, name, decider=replace(STOCK, version=2))
    with pytest.raises(CodeMismatch, match="asks for the decider stock@2, this process has stock@1"):
        drain(db, name, app=app)
    with pytest.raises(CodeMismatch, match="this process has none of that name"):
        drain(db, name)
    app.queue(name, decider=replace(STOCK, version=2, decide=lambda key, state, request: (request, "new")))
    drain(db, name, app=app)
    assert stock.answer(db, ticket) == "new"


def test_requests_are_decided_in_order_while_the_queue_is_rebucketed(db: Any, name: str) -> None:
    app, notes = shop(db, name, NOTES, list, buckets=2)
    tickets = [ask(db, notes, key, 1) for key in "abcd"]
    rebucket(db, name, 5)
    tickets += [ask(db, notes, key, 2) for key in "abcd"]
    drain(db, name, app=app)
    assert [notes.answer(db, ticket, 0) for ticket in tickets] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert_values(db, notes, {key: [1, 2] for key in "abcd"})


def test_a_former_shape_is_withdrawn_from_as_well(db: Any, name: str) -> None:
    app, stock = shop(db, name, buckets=2)
    ticket = ask(db, stock, "a", 1)
    rebucket(db, name, 3)
    assert stock.withdraw(db, ticket)
    drain(db, name, app=app)
    with pytest.raises(Withdrawn):
        stock.answer(db, ticket, 0)
    assert list(verify(db, name)) == []


def test_verify_finds_answers_that_cq_has_not_written(db: Any, name: str) -> None:
    app, stock = shop(db, name)
    ticket = bytes.fromhex(ask(db, stock, "a", 1))
    drain(db, name, app=app)
    keys = AnswerKeys(name)

    def damage(tr: Any) -> None:
        tr.set(keys.answers(group_of(ticket)), b"?")
        tr.set(keys.large(group_of(ticket), 1), b"")
        tr.set(keys.prefix + b"d?", b"")
        tr.set(keys.withdrawn(ticket), b"?")

    cq.transact(db, damage)
    assert [each.kind for each in verify(db, name, repair=True)] == ["answer"] * 4
    assert list(verify(db, name)) == []
