"""What cq takes from the machine, where it is more than Python's own."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from cq import runtime


def test_a_latch_lets_all_through_once_it_is_set() -> None:
    latch = runtime.latch()
    passed: list[bool] = []
    threads = [threading.Thread(target=lambda: passed.append(latch.wait())) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert not latch.is_set()

    latch.set()

    for thread in threads:
        thread.join()
    assert passed == [True] * 20
    assert latch.wait()
    assert latch.wait(60)


def test_a_latch_that_is_not_set_is_waited_for_in_vain() -> None:
    latch = runtime.latch()

    assert not latch.wait(0.001)
    latch.set()
    assert latch.wait(0.001)


def test_what_is_to_be_called_at_the_end_can_be_taken_back() -> None:
    called: list[str] = []

    runtime.at_exit(lambda: called.append("never"))()

    assert called == []


_INTERRUPTED = """
import _thread, threading
from cq import runtime
from cq.store.embedded.future import FutureVoid
runtime._LONGEST_BLOCK = 0.2
threading.Timer(0.1, _thread.interrupt_main).start()
changed = runtime.condition()
changed.acquire()
try:
    {}
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    "wait",
    [
        "runtime.event().wait(100)",
        "runtime.latch().wait()",
        "changed.wait_for(lambda: False)",
        "FutureVoid().wait()",
    ],
)
def test_an_interrupt_that_comes_before_the_thread_blocks_ends_a_wait(wait: str) -> None:
    """`interrupt_main` notes the signal as one does that comes in between: it does not wake the blocked thread."""
    program = [sys.executable, "-c", _INTERRUPTED.format(wait)]
    printed = subprocess.check_output(program, text=True, timeout=60)

    assert printed == "interrupted\n"


def test_a_wait_for_an_event_ends_in_time() -> None:
    event = runtime.event()
    begun = runtime.monotonic()
    assert not event.wait(1.05)
    assert 1.05 <= runtime.monotonic() - begun < 30
    assert not event.wait(-1)
    event.set()
    assert event.wait()
