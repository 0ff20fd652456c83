"""Futures behave as the binding's: lazy, comparable, and usable as the bytes they stand for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cq.store.embedded import Database, FDBError
from cq.store.embedded.binding.future import Future, FutureInt64, FutureVoid, Key, Value, failed, ready


def test_a_value_is_used_as_its_bytes(db: Database) -> None:
    db[b"a"] = b"12"
    tr = db.create_transaction()
    value = tr.get(b"a")

    assert value == b"12"
    assert value == tr[b"a"]
    assert value != b"13"
    assert b"11" < value <= b"12" < b"2"
    assert value > b"11" and value >= tr[b"a"]  # noqa: PT018
    assert (value + b"3", b"0" + value, value * 2) == (b"123", b"012", b"1212")
    assert (len(value), value[0], value[:1], bytes(value), int(value)) == (2, 49, b"1", b"12", 12)
    assert (value.decode(), value.hex(), value.startswith(b"1")) == ("12", "3132", True)
    assert {value: 1}[b"12"] == 1  # type: ignore[index]
    assert (str(value), repr(value)) == ("b'12'", "b'12'")
    assert value.wait() is value
    assert value.present()


def test_an_absent_value_is_none(db: Database) -> None:
    tr = db.create_transaction()
    value = tr.get(b"a")
    assert value == None  # noqa: E711 - the binding's users write it
    assert not value.present()
    for use in (len, bool, hash, bytes):  # as in the binding
        with pytest.raises(TypeError, match="absent"):
            use(value)


def test_waiting_for_numbers_and_events_gives_them() -> None:
    assert ready(FutureInt64, 5).wait() == 5
    ready(FutureVoid, None).wait()
    with pytest.raises(FDBError, match="1007"):
        failed(Value, FDBError(1007)).value.hex()  # type: ignore[union-attr]


def test_callbacks_are_called_once_before_or_after() -> None:
    future, seen = FutureVoid(), []
    future.on_ready(lambda _: seen.append("early"))
    assert seen == []
    assert future.settle()
    assert not future.settle()
    future.on_ready(lambda ready_one: seen.append("late" if ready_one is future else "other"))

    assert seen == ["early", "late"]


def test_a_failing_callback_is_reported_and_the_others_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    future, seen = FutureVoid(), []
    future.on_ready(lambda _: 1 / 0)  # type: ignore[arg-type]
    future.on_ready(lambda _: seen.append(1))
    future.settle()

    assert seen == [1]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_many_threads_wait_for_one_future() -> None:
    future, seen = Key(), []
    threads = [threading.Thread(target=lambda: seen.append(future.value)) for _ in range(10)]
    for thread in threads:
        thread.start()
    future.settle(b"k")
    for thread in threads:
        thread.join(60)

    assert seen == [b"k"] * 10


def test_wait_for_any_gives_the_first() -> None:
    futures: list[Future[Any]] = [FutureVoid(), FutureVoid(), FutureVoid()]
    threading.Timer(0.01, futures[2].settle).start()
    assert Future.wait_for_any(*futures) == 2
    assert Future.wait_for_any(ready(FutureVoid, None), FutureVoid()) == 0
    with pytest.raises(ValueError, match="at least one"):
        Future.wait_for_any()


def test_cancelling_ends_what_is_not_ready() -> None:
    future = FutureVoid()
    future.cancel()
    with pytest.raises(FDBError, match="1101"):
        future.wait()
    done = ready(FutureInt64, 1)
    done.cancel()
    assert done.wait() == 1
