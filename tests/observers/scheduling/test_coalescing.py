"""Coalescing: an idle worker runs tasks at once; a busy one lets work accumulate, up to a limit."""

from __future__ import annotations

from typing import Any

import pytest

from cq import runtime
from cq.observers.scheduling.coalescing import Coalescer
from cq.observers.scheduling.members import TaskId
from cq.observers.scheduling.task import Job, Task

GATHER = 0.1


class Gathered(Task):
    coalesce_seconds = GATHER

    def run(self) -> float:
        raise NotImplementedError


class Clock:
    """The time, which passes when it is told to; and steps of jobs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(runtime, "monotonic", lambda: self.now)
        self.coalescer = Coalescer()

    def step(self, job: Job, seconds: float) -> None:
        begun = self.now
        self.now += seconds
        self.coalescer.record_step(job, begun)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def job(number: int, task: Any = Gathered) -> Job:
    return Job(task(), TaskId("combine", "words", number))


def test_a_worker_with_time_to_spare_waits_for_nothing(clock: Clock) -> None:
    one = job(0)
    for _ in range(100):
        clock.step(one, 0.002)
        assert clock.coalescer.pause(one) == 0
        clock.now += 0.02


def test_in_a_busy_worker_steps_of_a_task_begin_so_far_apart(clock: Clock) -> None:
    jobs = [job(number) for number in range(16)]
    begun: dict[Job, float] = {}
    apart = []
    for _ in range(100):
        for each in jobs:
            clock.now += clock.coalescer.pause(each)
            apart.append(clock.now - begun.get(each, clock.now))
            begun[each] = clock.now
            clock.step(each, 0.004)

    assert max(apart) <= GATHER
    assert (
        sum(apart[-160:]) / 160 > 16 * 0.004 * 1.2
    )  # more than back to back, so that there is time to spare


def test_a_step_that_takes_longer_is_not_waited_after(clock: Clock) -> None:
    one, other = job(0), job(1)
    for _ in range(10):
        clock.step(other, 1.0)
        clock.step(one, 2 * GATHER)

        assert clock.coalescer.pause(one) == 0


def test_a_task_that_gathers_nothing_never_waits(clock: Clock) -> None:
    class AtOnce(Gathered):
        coalesce_seconds = 0.0

    one = job(0, AtOnce)
    for _ in range(100):
        clock.step(one, 0.05)

        assert clock.coalescer.pause(one) == 0


def test_who_was_busy_and_is_not_any_more_waits_no_more(clock: Clock) -> None:
    one, other = job(0), job(1)
    for _ in range(20):
        clock.step(other, 0.05)
    clock.step(one, 0.01)
    assert clock.coalescer.pause(one) == pytest.approx(GATHER - 0.01)

    clock.now += 5
    clock.step(one, 0.01)

    assert clock.coalescer.pause(one) == 0
