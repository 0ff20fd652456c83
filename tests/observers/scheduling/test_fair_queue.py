"""Fairness: queues get time by their weights, and nothing that waits is passed over for ever."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cq.observers.scheduling.fair_queue import FairQueue, Lane


def run(fair: FairQueue[str], steps: int, again: dict[str, tuple[float, float]]) -> Counter[str]:
    """Take tasks and put them back; {lane: (weight, seconds of a step)}. Returns the time of each lane, in steps."""
    taken: Counter[str] = Counter()
    for _ in range(steps):
        found = fair.take()
        assert found is not None
        lane, task = found
        weight, seconds = again[lane]
        taken[lane] += 1
        fair.done(Lane(lane), seconds)
        fair.put(task, Lane(lane, weight), 0.0)
    return taken


def test_within_a_queue_whoever_has_waited_longest_comes_first() -> None:
    fair: FairQueue[str] = FairQueue(9)
    for since, task in [(3.0, "c"), (1.0, "a"), (2.0, "b")]:
        fair.put(task, Lane("q"), since)
    assert [fair.take() for _ in range(4)] == [("q", "a"), ("q", "b"), ("q", "c"), None]


def test_a_queue_leaves_room_for_others() -> None:
    fair: FairQueue[str] = FairQueue(4)
    for number in range(5):
        fair.put(f"flood-{number}", Lane("flood"), 0.0)
    assert [fair.take() is not None for _ in range(5)] == [True, True, True, False, False]
    fair.put("small", Lane("small"), 0.0)
    assert fair.take() == ("small", "small")
    fair.done(Lane("flood"), 0.1)
    assert fair.take() == ("flood", "flood-3")


def test_a_queue_that_was_idle_has_saved_up_nothing() -> None:
    fair: FairQueue[str] = FairQueue(9)
    fair.put("a", Lane("a"), 0.0)
    run(fair, 1000, {"a": (1, 1.0)})
    fair.put("b", Lane("b"), 0.0)
    taken = run(fair, 20, {"a": (1, 1.0), "b": (1, 1.0)})
    assert 9 <= taken["b"] <= 11


@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.tuples(st.integers(1, 100), st.floats(0.001, 5.0)), min_size=1
    )
)
def test_no_queue_starves(lanes: dict[str, tuple[float, float]]) -> None:
    fair: FairQueue[str] = FairQueue(9)
    for lane, (weight, _) in lanes.items():
        fair.put(lane, Lane(lane, weight), 0.0)
    spent = {lane: run_time / weight for lane, (weight, run_time) in lanes.items()}
    taken = run(fair, 2000, lanes)
    given_time = {lane: taken[lane] * spent[lane] for lane in lanes}
    slack = 2 * max(spent.values()) + 0.02
    assert max(given_time.values()) - min(given_time.values()) <= slack


def test_of_one_kind_of_a_queues_tasks_no_more_run_at_once_than_it_says() -> None:
    fair: FairQueue[str] = FairQueue(7)
    lanes = {"pass": Lane("q", 1, "pass", 1), "export": Lane("q", 1, "export", 2), "other": Lane("q")}
    for number in range(3):
        for name, since in {"pass": 0.0, "export": 0.5, "other": 0.7}.items():
            fair.put(f"{name}-{number}", lanes[name], number + since)
    assert [fair.take() for _ in range(7)] == [
        ("q", "pass-0"),
        ("q", "export-0"),
        ("q", "other-0"),
        ("q", "export-1"),
        ("q", "other-1"),
        ("q", "other-2"),
        None,
    ]
    fair.done(lanes["other"], 0.1)
    assert fair.take() is None
    fair.done(lanes["other"], 0.1)
    fair.done(lanes["pass"], 0.1)
    assert fair.take() == ("q", "pass-1")
    assert fair.take() is None, "a pass and two exports run"
    fair.done(lanes["export"], 0.1)
    assert fair.take() == ("q", "export-2")


def test_steps_that_wait_for_other_systems_leave_half_of_the_threads_free() -> None:
    fair: FairQueue[str] = FairQueue(8)
    for queue in ("a", "b", "c"):
        for number in range(8):
            fair.put(f"{queue}-send-{number}", Lane(queue, kind="send", is_outside=True), 0.0)
    sent = [fair.take() for _ in range(5)]
    assert [each is None for each in sent] == [False] * 4 + [True]
    for queue in ("a", "b", "c", "d"):
        fair.put(f"{queue}-pass", Lane(queue, kind="pass"), 9.0)
    assert {fair.take() for _ in range(5)} == {*((queue, f"{queue}-pass") for queue in "abcd"), None}
    fair.done(Lane("a", kind="send", is_outside=True), 30.0)
    assert fair.take() is not None
    assert fair.take() is None


def test_a_queue_that_waits_for_another_system_leaves_room_for_others_that_do() -> None:
    fair: FairQueue[str] = FairQueue(8)
    for number in range(8):
        fair.put(f"slow-{number}", Lane("slow", kind="send", is_outside=True), 0.0)
    assert [fair.take() is not None for _ in range(4)] == [True, True, True, False]
    fair.put("quick", Lane("quick", kind="send", is_outside=True), 9.0)
    assert fair.take() == ("quick", "quick")


def test_a_link_of_a_queue_leaves_room_for_the_others() -> None:
    fair: FairQueue[str] = FairQueue(8)
    slow, quick = (Lane("q", kind=kind, is_outside=True, leaves_room=True) for kind in ("slow", "quick"))
    for number in range(8):
        fair.put(f"slow-{number}", slow, 0.0)
    assert [fair.take() is not None for _ in range(3)] == [True, True, False]
    fair.put("quick", quick, 9.0)
    assert fair.take() == ("q", "quick")


def failing(queue: str, kind: str) -> Lane:
    return Lane(queue, kind=kind, is_outside=True, is_failing=True)


def test_links_that_fail_leave_a_thread_of_their_queue_to_those_that_work() -> None:
    fair: FairQueue[str] = FairQueue(8)
    for kind in ("one", "two", "three"):
        for number in range(3):
            fair.put(f"{kind}-{number}", failing("q", kind), 0.0)
    assert [fair.take() for _ in range(3)] == [("q", "one-0"), ("q", "two-0"), None]
    works = Lane("q", kind="works", is_outside=True)
    fair.put("works", works, 9.0)
    assert fair.take() == ("q", "works")
    fair.done(works, 0.1)
    fair.done(failing("q", "one"), 30.0)
    assert fair.take() == ("q", "one-1")
    assert fair.take() is None


def test_links_that_fail_leave_a_thread_to_other_queues() -> None:
    fair: FairQueue[str] = FairQueue(8)
    for queue in "abcd":
        fair.put(queue, failing(queue, "send"), 0.0)
    assert [fair.take() for _ in range(4)] == [("a", "a"), ("b", "b"), ("c", "c"), None]
    fair.put("works", Lane("e", kind="send", is_outside=True), 9.0)
    assert fair.take() == ("e", "works")
    fair.done(failing("b", "send"), 30.0)
    assert fair.take() == ("d", "d")


def test_a_link_that_works_again_has_more_threads() -> None:
    fair: FairQueue[str] = FairQueue(8)
    for number in range(3):
        fair.put(f"{number}", failing("q", "send"), 0.0)
    assert [fair.take(), fair.take()] == [("q", "0"), None]
    works = Lane("q", kind="send", is_outside=True)
    fair.done(works, 0.1)
    fair.put("3", works, 9.0)
    assert [fair.take() for _ in range(4)] == [*(("q", str(number)) for number in (1, 2, 3)), None]


def test_one_thread_does_everything_in_turn() -> None:
    fair: FairQueue[str] = FairQueue(1)
    sends = Lane("a", kind="send", is_outside=True)
    fair.put("send", sends, 0.0)
    fair.put("pass", Lane("a"), 1.0)
    assert fair.take() == ("a", "send")
    assert fair.take() is None
    fair.done(sends, 0.1)
    assert fair.take() == ("a", "pass")


def test_a_step_of_one_of_many_queues_costs_as_much_as_of_few() -> None:
    fair: FairQueue[int] = FairQueue(8)
    for number in range(10_000):
        fair.put(number, Lane(f"q{number}"), 0.0)
    began = time.process_time()
    for number in range(10_000):
        assert fair.take() == (f"q{number}", number)
        fair.done(Lane(f"q{number}"), 0.001)
    assert time.process_time() - began < 5.0, "a search of all queues for each step would take a minute"
