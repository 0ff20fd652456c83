"""Child processes that do not end as asked, and the end that parent and child notice of each other."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

from cq.cli.shared.processes import Child, end, wait_for
from tests.kit.processes import SECONDS

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
)
LEAVING = (
    "import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import os; os.read(0, 1)']); "
    "print('ready', flush=True); signal.pause()"
)
ATTACHED = (
    "import os, signal; from cq.cli.shared.processes import at_end_of_input; "
    "at_end_of_input(lambda: os._exit(7)); print('ready', flush=True); signal.pause()"
)


@contextmanager
def started(code: str) -> Iterator[Child]:
    """A child that has begun its work; it is killed at the end."""
    with Child([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        try:
            yield child
        finally:
            child.kill()


def test_a_process_that_does_not_stop_in_time_is_killed() -> None:
    with started(STUBBORN) as stubborn, started(LEAVING) as obedient:
        assert end([stubborn, obedient], 0.5) == [stubborn]

    assert (stubborn.returncode, obedient.returncode) == (-signal.SIGKILL, -signal.SIGTERM)


def test_a_process_that_leaves_another_one_behind_has_ended() -> None:
    """The one that is left keeps its standard input open, and so the sign of its end away."""
    before = time.monotonic()
    with started(LEAVING) as leaving:
        assert end([leaving], SECONDS) == []

    assert time.monotonic() - before < SECONDS / 2


def test_the_parent_notices_the_death_of_a_child() -> None:
    with started(STUBBORN) as child:
        assert wait([child.lifeline], 0) == []
        child.kill()

        assert wait([child.lifeline], SECONDS) == [child.lifeline]


def test_a_child_whose_end_is_known_is_not_waited_for() -> None:
    """A demo kills a process that has ended by itself a moment before, and waits for the others."""
    with started(STUBBORN) as ended, started(STUBBORN) as running:
        ended.kill()
        ended.wait(SECONDS)
        wait_for([ended, running], 0.0)
        running.kill()
        wait_for([ended, running], SECONDS)
        assert running.wait(SECONDS) == -signal.SIGKILL


def test_a_child_notices_the_end_of_its_parent() -> None:
    with started(ATTACHED) as child:
        child.lifeline.close()  # as the system does when the parent is killed

        assert child.wait(SECONDS) == 7
