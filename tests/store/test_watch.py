"""Waits by watches: they end when a result is there, at their timeouts, and go on when watches fail."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cq.store.api import Transaction, Void
from cq.store.transact import transact
from cq.store.watch import WatchSlot, wait_until
from tests.kit.queues import is_ended

SECONDS = 60.0


class Reader:
    """Reads a key, and watches it until it has a value.

    Attributes:
        watches: all that it has made.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.watches: list[Any] = []

    def __call__(self, tr: Transaction) -> tuple[bytes | None, Void | None]:
        value = tr.snapshot.get(self.key).value
        if value is not None:
            return value, None
        self.watches.append(tr.watch(self.key))
        return None, self.watches[-1]

    def wait_for_watches(self, number: int) -> None:
        """Wait until it has made so many."""
        deadline = time.monotonic() + SECONDS
        while len(self.watches) < number:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def reader(space: bytes) -> Reader:
    return Reader(space + b"watched")


def put(db: Any, reader: Reader, value: bytes) -> None:
    transact(db, lambda tr: tr.set(reader.key, value))


def test_a_result_that_is_there_is_returned_without_a_watch(db: Any, reader: Reader) -> None:
    put(db, reader, b"1")

    assert wait_until(db, reader) == b"1"
    assert not reader.watches


def test_a_change_ends_the_wait(db: Any, reader: Reader) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until, db, reader, SECONDS)
        reader.wait_for_watches(1)
        put(db, reader, b"1")
        assert waiting.result() == b"1"


def test_the_latest_result_is_returned_at_the_timeout(db: Any, reader: Reader) -> None:
    assert wait_until(db, reader, 0.05) is None
    assert wait_until(db, reader, 0.0) is None
    assert all(map(is_ended, reader.watches)), "they are cancelled"


def test_watches_that_fail_are_made_again(db: Any, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    delays = list[int]()

    def delay_after(failures: int) -> float:
        delays.append(failures)
        return 0.001

    monkeypatch.setattr("cq.store.watch.delay_after", delay_after)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until, db, reader, SECONDS)
        for number in (1, 2, 3):
            reader.wait_for_watches(number)
            while len(delays) < number:
                reader.watches[number - 1].cancel()  # as a lost connection does
                time.sleep(0.001)
        put(db, reader, b"1")
        assert waiting.result() == b"1"

    assert delays[:3] == [1, 2, 3]


def test_errors_of_the_read_end_the_wait(db: Any) -> None:
    def fail(tr: Transaction) -> tuple[None, None]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        wait_until(db, fail)


def test_a_slot_tells_of_its_current_watch_only(db: Any, reader: Reader) -> None:
    slot, fired, failed = WatchSlot(), threading.Event(), threading.Event()
    earlier, current = (transact(db, reader)[1] for _ in range(2))
    assert earlier is not None
    assert current is not None
    slot.hold(earlier, failed.set, failed.set)
    slot.hold(current, fired.set, failed.set)
    assert not slot.is_free
    put(db, reader, b"1")

    assert fired.wait(SECONDS)
    assert slot.is_free
    assert not slot.failures
    assert not failed.is_set()
