"""Fairness: queues get time by their weights, and nothing that waits is passed over for ever."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cq.observers.scheduling.fair_queue import FairQueue


def run(fair: FairQueue[str], steps: int, again: dict[str, tuple[float, float]]) -> Counter[str]:
    """Take tasks and put them back; {lane: (weight, seconds of a step)}. Returns the time of each lane, in steps."""
    taken: Counter[str] = Counter()
    for _ in range(steps):
        found = fair.take(8)
        assert found is not None
        lane, task = found
        weight, seconds = again[lane]
        taken[lane] += 1
        fair.done(lane, seconds)
        fair.put(task, lane, weight, 0.0)
    return taken


def test_within_a_queue_whoever_has_waited_longest_comes_first() -> None:
    fair: FairQueue[str] = FairQueue()
    for since, task in [(3.0, "c"), (1.0, "a"), (2.0, "b")]:
        fair.put(task, "q", 1, since)
    assert [fair.take(8) for _ in range(4)] == [("q", "a"), ("q", "b"), ("q", "c"), None]


def test_a_queue_leaves_room_for_others() -> None:
    fair: FairQueue[str] = FairQueue()
    for number in range(5):
        fair.put(f"flood-{number}", "flood", 1, 0.0)
    assert [fair.take(3) is not None for _ in range(5)] == [True, True, True, False, False]
    fair.put("small", "small", 1, 0.0)
    assert fair.take(3) == ("small", "small")
    fair.done("flood", 0.1)
    assert fair.take(3) == ("flood", "flood-3")


def test_a_flooded_queue_takes_no_more_than_its_share() -> None:
    fair: FairQueue[str] = FairQueue()
    for number in range(100):
        fair.put(f"flood-{number}", "flood", 1, 0.0)
    fair.put("small", "small", 1, 1000.0)
    taken = run(fair, 200, {"flood": (1, 0.1), "small": (1, 0.1)})
    assert abs(taken["flood"] - taken["small"]) <= 2


def test_time_counts_and_not_steps() -> None:
    fair: FairQueue[str] = FairQueue()
    fair.put("slow", "slow", 1, 0.0)
    fair.put("quick", "quick", 1, 0.0)
    taken = run(fair, 1100, {"slow": (1, 1.0), "quick": (1, 0.1)})
    assert 90 <= taken["slow"] <= 110


def test_weights_are_shares_of_the_time() -> None:
    fair: FairQueue[str] = FairQueue()
    for lane, weight in {"a": 10, "b": 30}.items():
        fair.put(lane, lane, weight, 0.0)
    taken = run(fair, 400, {"a": (10, 0.1), "b": (30, 0.1)})
    assert 95 <= taken["a"] <= 105


def test_a_queue_that_was_idle_has_saved_up_nothing() -> None:
    fair: FairQueue[str] = FairQueue()
    fair.put("a", "a", 1, 0.0)
    run(fair, 1000, {"a": (1, 1.0)})
    fair.put("b", "b", 1, 0.0)
    taken = run(fair, 20, {"a": (1, 1.0), "b": (1, 1.0)})
    assert 9 <= taken["b"] <= 11


@given(
    st.dictionaries(
        st.sampled_from("abcde"), st.tuples(st.integers(1, 100), st.floats(0.001, 5.0)), min_size=1
    )
)
def test_no_queue_starves(lanes: dict[str, tuple[float, float]]) -> None:
    fair: FairQueue[str] = FairQueue()
    for lane, (weight, _) in lanes.items():
        fair.put(lane, lane, weight, 0.0)
    spent = {lane: run_time / weight for lane, (weight, run_time) in lanes.items()}
    taken = run(fair, 2000, lanes)
    given_time = {lane: taken[lane] * spent[lane] for lane in lanes}
    slack = 2 * max(spent.values()) + 0.02
    assert max(given_time.values()) - min(given_time.values()) <= slack


def test_of_one_kind_of_a_queues_tasks_no_more_run_at_once_than_it_says() -> None:
    fair: FairQueue[str] = FairQueue()
    for number in range(3):
        fair.put(f"pass-{number}", "q", 1, number, "pass", 1)
        fair.put(f"export-{number}", "q", 1, number + 0.5, "export", 2)
        fair.put(f"other-{number}", "q", 1, number + 0.7)
    assert [fair.take(8) for _ in range(7)] == [
        ("q", "pass-0"),
        ("q", "export-0"),
        ("q", "other-0"),
        ("q", "export-1"),
        ("q", "other-1"),
        ("q", "other-2"),
        None,
    ]
    fair.done("q", 0.1)
    assert fair.take(8) is None
    fair.done("q", 0.1, "pass")
    assert fair.take(6) == ("q", "pass-1")
    fair.done("q", 0.1, "pass")
    assert fair.take(4) is None, "two exports and two others still run"
    assert fair.take(5) == ("q", "pass-2")
