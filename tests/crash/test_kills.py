"""Processes are killed and stopped at any step to the disk: others go on, with every commit that had returned."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path
from typing import Final

import pytest

from cq.store.embedded import Database
from tests.crash.conftest import ROUNDS, Scripts
from tests.crash.load import Name, assert_goes_on, assert_whole, write
from tests.kit.processes import SECONDS

STEPS: Final = 700
"""About so many steps to the disk a process takes from making the store to closing it."""
MAKING: Final = 45
"""About so many make the store."""


def returned(out: bytes) -> dict[Name, bytes]:
    """The commits that a process has told of."""
    lines = [line.split() for line in out.splitlines()]
    return {(int(writer), int(number)): bytes.fromhex(stamp.decode()) for writer, number, stamp in lines}


def test_a_process_killed_at_any_step_leaves_all_that_returned(
    tmp_path: Path, scripts: Scripts, seed: int
) -> None:
    draw = random.Random(seed)
    killed = 0
    for number in range(5 * ROUNDS):
        path = tmp_path / f"{number}.db"
        with contextlib.ExitStack() as stack:
            is_open = draw.random() < 0.5  # else nobody is there who has the log open, or even a store
            if is_open:
                stack.enter_context(Database(path))
            step = draw.randint(1, STEPS if is_open or draw.random() < 0.7 else MAKING)
            status, out = scripts.run("signalled", path, seed, int(signal.SIGKILL), step)
            assert status in (0, -signal.SIGKILL)
            killed += status != 0
            with Database(path) as db:
                assert_goes_on(db, seed, assert_whole(db, seed, returned(out)))
    assert killed


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_who_is_stopped_within_a_commit_holds_up_commits_until_it_goes_on_or_dies(
    tmp_path: Path, scripts: Scripts, seed: int, then: signal.Signals
) -> None:
    with Database(tmp_path / "store.db") as db:
        # The store is there: this is within one of the first commits, which write the log and nothing else.
        process = scripts.start("signalled", db.path, seed, int(signal.SIGSTOP), 20)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        done = threading.Event()

        def commit() -> None:
            db.transact(lambda tr: write(tr, seed, (9, 0)))
            done.set()

        thread = threading.Thread(target=commit)
        thread.start()
        before = assert_whole(db, seed, {})  # reading goes on
        assert (9, 0) not in before
        assert not done.is_set()

        process.send_signal(then)
        assert done.wait(SECONDS)
        thread.join()
        out, _ = process.communicate(timeout=SECONDS)
        found = assert_whole(db, seed, {**before, **returned(out)})

    assert process.returncode == (0 if then == signal.SIGCONT else -signal.SIGKILL)
    assert (9, 0) in found
