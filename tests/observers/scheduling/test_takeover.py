"""Tasks that a worker lets others try: as long as it fails, and not for longer."""

from __future__ import annotations

from cq.observers.scheduling.members import TaskId
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.takeover import MANY_FAILURES, ReleasedTasks
from cq.observers.scheduling.task import Job, Task


class Idle(Task):
    """A task without work."""

    def run(self) -> float:
        return DONE


def failing() -> Job:
    """A job of this worker that has failed too often."""
    job = Job(Idle(), TaskId("combine", "words", 0))
    job.acquire()
    job.is_fresh = False
    job.failures = MANY_FAILURES
    return job


def test_a_task_that_has_recovered_is_not_given_away_any_more() -> None:
    released, job = ReleasedTasks(), failing()
    assert released.update([job]) == {str(job.task_id)}

    job.failures = 0

    assert released.update([job]) == set()


def test_a_task_that_comes_back_without_work_does_not_count_its_former_failures() -> None:
    """Without work it does not run, so nothing else would ever take them back."""
    job = failing()
    job.release()
    job.acquire()

    assert ReleasedTasks().update([job]) == set()


def test_a_task_that_another_worker_tries_stays_given_until_it_comes_back() -> None:
    released, job = ReleasedTasks(), failing()
    released.update([job])
    job.release()
    assert released.update([job]) == {str(job.task_id)}
    job.acquire()
    assert released.update([job]) == {str(job.task_id)}, "it has not run here yet"
