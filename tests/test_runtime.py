"""What cq takes from the machine, where it is more than Python's own."""

from __future__ import annotations

import threading

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
