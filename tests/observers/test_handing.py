"""Tasks that a worker lets others try: as long as it fails, and not for longer."""

from __future__ import annotations

from cq.observers.scheduling.members import Share
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.takeover import MANY_FAILURES, Given
from cq.observers.scheduling.task import Job, Task


class Idle(Task):
    """A task without work."""

    def run(self) -> float:
        return DONE


def failing() -> Job:
    """A job of this worker that has failed too often."""
    job = Job(Idle(), Share("combine", "words", 0))
    job.own()
    job.is_fresh = False
    job.failures = MANY_FAILURES
    return job


def test_a_task_that_has_recovered_is_not_given_away_any_more() -> None:
    given, job = Given(), failing()
    assert given.look([job]) == {str(job.share)}

    job.failures = 0

    assert given.look([job]) == set()


def test_a_task_that_comes_back_without_work_does_not_count_its_former_failures() -> None:
    """Without work it does not run, so nothing else would ever take them back."""
    job = failing()
    job.disown()
    job.own()

    assert Given().look([job]) == set()


def test_a_task_that_another_worker_tries_stays_given_until_it_comes_back() -> None:
    given, job = Given(), failing()
    given.look([job])
    job.disown()
    assert given.look([job]) == {str(job.share)}
    job.own()
    assert given.look([job]) == {str(job.share)}, "it has not run here yet"
