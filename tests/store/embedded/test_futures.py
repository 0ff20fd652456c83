"""Futures behave as the binding's: lazy, usable as the bytes they stand for, ready at their time or at a deadline."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from cq.store.embedded import Database, FDBError, Transaction, snapshots
from cq.store.embedded.future import Future, FutureInt64, FutureVoid, Key, Value, failed, ready
from tests.store.calls import code_of


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


# Reads show what their snapshot shows, whenever the program waits for them


def fill(db: Database, number: int) -> None:
    for key in (b"%05d" % place for place in range(number)):
        db[key] = key[::-1]


def test_a_read_shows_what_was_there_when_it_was_issued(db: Database) -> None:
    fill(db, 3)
    tr = db.create_transaction()
    before = tr.get(b"00000"), tr.snapshot.get(b"00001"), tr.get(b"absent")
    tr.clear_range(b"", b"\xff")
    tr[b"00000"] = b"mine"
    between = tr.get(b"00001")
    db[b"00002"] = b"theirs"
    after = tr.get(b"00000"), tr.snapshot.get(b"00002")

    assert [future.value for future in before] == [b"00000", b"10000", None]
    assert not between.present()
    assert [future.value for future in after] == [b"mine", None]


@pytest.mark.parametrize("end", ["commit", "close"])
def test_a_read_outlives_its_transaction(db: Database, end: str) -> None:
    fill(db, 1)
    tr: Any = db.create_transaction()
    future = tr.snapshot.get(b"00000")
    if end == "close":
        db.close()
    else:
        tr[b"other"] = b""
        tr.commit().wait()
        del tr

    assert future.value == b"00000"


def test_a_read_in_time_is_answered_when_its_snapshot_is_too_old(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db, 1)
    tr = db.create_transaction()
    future = tr.snapshot.get(b"00000")
    monkeypatch.setattr(snapshots, "LIFETIME_SECONDS", -1.0)

    assert code_of(tr.snapshot.get(b"00000").wait) == 1007
    assert future.value == b"00000"


def test_whatever_looks_at_a_read_finds_it_answered(db: Database) -> None:
    fill(db, 1)
    tr = db.create_transaction()
    seen: list[bytes | None] = []
    tr.snapshot.get(b"00000").on_ready(lambda future: seen.append(future.value))
    cancelled = tr.snapshot.get(b"00000")
    cancelled.cancel()

    assert seen == [b"00000"]
    assert tr.snapshot.get(b"00000").is_ready()
    assert code_of(cancelled.wait) == 1101
    assert cancelled.wait_for_any(tr.snapshot.get(b"00000")) == 0


def test_a_read_that_fails_makes_the_commit_fail_though_nobody_has_waited_for_it(
    db: Database, path: Path
) -> None:
    fill(db, 1)
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE kv SET v = 5")
    tr = db.create_transaction()
    future = tr.get(b"00000")
    tr[b"other"] = b""

    with pytest.raises(FDBError, match="not made of bytes"):
        tr.commit().wait()
    with pytest.raises(FDBError, match="not made of bytes"):
        future.wait()
    assert db[b"other"] is None


def test_a_read_is_one_even_if_nobody_waits_for_it(db: Database) -> None:
    """Whoever has read has chosen to see own writes, or not to."""
    tr = db.create_transaction()
    tr.get_read_version().wait()
    tr.snapshot.get(b"a")
    tr.options.set_read_your_writes_disable()

    assert code_of(tr.get(b"a").wait) == 2000


@pytest.mark.parametrize(
    ("fail", "code"),
    [
        (lambda tr: tr.get(b"\xff/x"), 2004),
        (lambda tr: tr.watch(b"k" * 10_001), 2102),
        (lambda tr: (tr.set_read_version(1), tr.get(b"a"))[1], 1007),  # the read itself fails
        (lambda tr: (tr.set(b"k", bytes(100_001)), tr.commit())[1], 2103),
    ],
)
def test_a_future_that_has_failed_does_not_keep_its_transaction(
    db: Database, fail: Callable[[Transaction], Future[Any]], code: int
) -> None:
    db[b"a"] = b"1"

    def failed_before() -> tuple[Future[Any], weakref.ref[Transaction]]:
        tr = db.create_transaction()
        future = fail(tr)
        assert [code_of(future.get), code_of(future.get)] == [code, code]
        return future, weakref.ref(tr)

    gc.disable()
    try:
        _future, transaction = failed_before()
        assert transaction() is None
    finally:
        gc.enable()
