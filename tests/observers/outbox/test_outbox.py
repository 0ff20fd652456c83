"""Outboxes: rows of committed transactions are added to their queue, each once, in order; bad rows are set aside."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

import cq
from cq import admin
from cq.keys.link import OUTBOX, OutboxKeys
from cq.observers.links.outbox.operate import (
    init,
    opened,
    outbox_tables,
    stray_rows,
    stray_text,
)
from cq.observers.links.outbox.state import OutboxSettings
from cq.observers.links.outbox.task import FULL_SECONDS, POLL_SECONDS, OutboxTask
from cq.observers.links.registry import pause_link
from cq.observers.links.target import LinkFailed
from cq.observers.worker.worker import Worker
from cq.queue import limits
from cq.store.transact import transact
from tests.kit.clocks import jumping
from tests.kit.faults import Overtaken, WrappedDatabase
from tests.kit.queues import stored
from tests.kit.sized import MOST, Sized
from tests.observers.outbox.outboxhelpers import (
    SETTINGS,
    URL_ENV,
    configure,
    insert,
    move,
    outbox_task,
    problem,
    source,
    sql,
    table,
    values,
)
from tests.observers.verify.test_verify import found_in


class Died(Exception):
    """The worker dies at a point."""


def dying_at(point: str) -> Any:
    def at(reached: str) -> None:
        if reached == point:
            raise Died

    return at


def test_keys_and_values_of_all_types(db: Any, name: str, sqlite_url: str) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    moment = datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)
    for kind, key, given in (
        ("decimal", ("é\x00", 1, b"\xff"), Decimal("0.10")),
        ("datetime", ("x", -1, b""), moment),
        ("bytes", ("", 2**63, b"a"), b"\x00\xff"),
        ("any", ("y", 0, b""), {"a": [1, 1.5, None, "z"]}),
        ("bool", ("y", 0, b""), True),
    ):
        queue = f"{name}-{kind}"
        configure(db, queue, key=(str, int, bytes), value=kind, combiner="last")
        insert(queue, {key: given})
        move(db, queue)
        assert values(db, queue) == {key: given}
        if kind == "decimal":
            insert(queue, {key: cq.DELETE})
            move(db, queue)
            assert values(db, queue) == {}


@pytest.mark.parametrize("point", ["read", "moved", "deleting", "deleted"])
def test_a_worker_that_dies_at_any_step_neither_loses_nor_repeats_a_row(
    db: Any, name: str, reporting_url: str, point: str
) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    first = outbox_task(db, name, dying_at(point))
    first.run()
    first.end()
    insert(name, {"a": 10})
    move(db, name)
    move(db, name)

    assert "Died" in first.problem
    assert values(db, name) == {"a": 11}
    assert table() == []


def test_a_transaction_that_commits_late_with_lower_ids_is_moved(
    db: Any, name: str, postgres_url: str
) -> None:
    configure(db, name)
    engine = sa.create_engine(postgres_url)
    with engine.connect() as late:
        cq.outbox.add(late, name, {"late": 1})
        insert(name, {"early": 1})
        move(db, name)
        before = values(db, name)
        late.commit()
    move(db, name)
    engine.dispose()

    assert before == {"early": 1}
    assert values(db, name) == {"early": 1, "late": 1}


def test_a_transaction_that_waits_for_the_row_of_another_is_combined_after_it(
    db: Any, name: str, postgres_url: str
) -> None:
    """The order that the documentation promises, with a combiner that does not commute."""
    configure(db, name, key=str, value=str, combiner="last")
    sql("CREATE TABLE article (name TEXT PRIMARY KEY, price TEXT)")
    sql("INSERT INTO article VALUES ('glue', '')")
    engine = sa.create_engine(postgres_url)
    change = sa.text("UPDATE article SET price = :price WHERE name = 'glue'")
    with engine.connect() as first, engine.connect() as second:
        second.execute(sa.text("SELECT 1"))  # began earlier
        first.execute(change, {"price": "1"})
        cq.outbox.add(first, name, {"glue": "1"})
        first.commit()
        second.execute(change, {"price": "2"})
        cq.outbox.add(second, name, {"glue": "2"})
        second.commit()
    engine.dispose()
    move(db, name)

    assert values(db, name) == {"glue": "2"}


def test_a_row_with_an_operation_id_counts_once_for_its_key(db: Any, name: str, sqlite_url: str) -> None:
    configure(db, name)
    insert(name, {"a": 1, "b": 1}, once="order 1")
    insert(name, {"a": 1}, once="order 1")  # in the same batch
    move(db, name)
    insert(name, {"a": 1, "c": 1}, once="order 1")  # in a later one
    insert(name, {"a": 5}, once="order 2")
    move(db, name)

    assert values(db, name) == {"a": 6, "b": 1, "c": 1}
    assert table() == []


def test_bad_rows_stay_in_the_table_with_their_errors_and_delay_no_others(
    db: Any, name: str, reporting_url: str
) -> None:
    configure(db, name)
    bad = (
        "INSERT INTO cq_outbox (queue, key_json, update_json, operation) VALUES (:queue, :key, :update, :id)"
    )
    long = "7" * 800_000
    for key, update, operation in (
        ('"a', "1", None),
        ('"a"', '"text"', None),
        ("1", "1", None),
        ('"a"', "1", ""),
        ('"a"', long, None),
    ):
        sql(bad, queue=name, key=key, update=update, id=operation)
    insert(name, {"a": 1})
    move(db, name)
    errors = [row[3] for row in opened(db, name).rows_aside()]
    with pytest.raises(LinkFailed, match="rows that the queue refuses: 5"):
        opened(db, name).check()
    sql(
        "UPDATE cq_outbox SET key_json = '\"a\"', update_json = '10', operation = NULL WHERE error IS NOT NULL"
    )
    retried = opened(db, name).retry()
    move(db, name)

    assert [error.split(":")[0] for error in errors] == [
        "key_json is not JSON",
        "key 'a'",
        "expected a key of type str, got",
        "expected an operation id of 1 to 1,000 bytes (str or bytes), got",
        "the row has more than 700,000 bytes",
    ]
    assert retried == 5
    assert values(db, name) == {"a": 51}
    assert table() == []


@pytest.mark.parametrize(
    ("settings", "bad"),
    [
        ({"rollup": "1m:2d,1h:60d"}, ("a" * 7_995, 1)),
        ({"combiner": "maximum", "window": 600}, ("a" * 7_995, 1)),
        ({"combiner": "counter", "value": dict, "window": 600}, ("a", {"a": "x"})),
        ({"combiner": "counter", "value": dict, "window": 600}, ("a", {"a": 0.5})),
        ({"combiner": "counter", "value": dict}, ("a", {"stats": {"a": 1}})),
    ],
)
def test_a_row_that_a_level_a_window_or_the_combiner_refuses_delays_no_others(
    db: Any, name: str, sqlite_url: str, settings: Any, bad: Any
) -> None:
    configure(db, name, **settings)
    good: Any = {"n": 1} if settings.get("value") is dict else 1
    insert(name, [("first", good), bad, ("last", good)])
    move(db, name)

    assert [row[0] for row in opened(db, name).rows_aside()] == [2]
    assert values(db, name) == {"first": good, "last": good}


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_a_row_that_only_the_add_refuses_is_found_and_set_aside_alone(
    db: Any, name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    configure(db, name)
    add = cq.CombineQueue.add

    def refusing(self: Any, tr: Any, updates: Any, once: Any = None) -> None:
        add(self, tr, updates, once)  # so that the transaction has writes, which must not be committed
        if bad in dict(updates).values():
            raise cq.InvalidData("it is refused")

    monkeypatch.setattr(cq.CombineQueue, "add", refusing)
    insert(name, [(f"k{number}", number) for number in range(10)])
    move(db, name)

    assert [(row[1], row[3]) for row in opened(db, name).rows_aside()] == [(f'"k{bad}"', "it is refused")]
    assert values(db, name) == {f"k{number}": number for number in range(1, 10) if number != bad}
    assert len(table()) == 1


def test_a_level_gets_no_outbox(db: Any, name: str, sqlite_url: str) -> None:
    cq.configure(db, name, rollup="1m:2d")
    with pytest.raises(cq.errors.InvalidConfiguration, match="give an outbox to queue"):
        init(db, f"{name}.1m", SETTINGS)
    with pytest.raises(LinkFailed, match="no such table"):
        table()


def test_a_batch_is_limited_in_bytes(db: Any, name: str, sqlite_url: str) -> None:
    configure(db, name, key=str, value=str, combiner="last")
    insert(name, {f"k{number}": "x" * 50_000 for number in range(20)})
    sizes: list[int] = []
    task = outbox_task(db, name, lambda point: sizes.append(len(table())) if point == "deleted" else None)
    for _ in range(4):
        task.run()
    task.end()

    assert sizes == [7, 0]
    assert len(values(db, name)) == 20


@pytest.mark.parametrize("once", [None, "operation"])
@pytest.mark.parametrize("size", [1, 40_000])
def test_a_batch_for_six_levels_writes_at_most_a_megabyte(
    db: Any, name: str, sqlite_url: str, size: int, once: str | None
) -> None:
    keep = cq.Combiner("keep", 1, lambda key, values: values[0])  # without differences: adds write all levels
    configure(
        db, name, value=str, combiner=keep, rollup="1s:1h,1m:2h,5m:3h,15m:4h,1h:60d,1d:forever", buckets=1024
    )
    insert(name, {f"k{number}": "x" * size for number in range(400 if size == 1 else 12)}, once=once)
    sized = Sized(db)
    move(sized, name)

    assert table() == []
    assert max(sized.sizes) <= MOST


def test_a_full_queue_slows_the_worker_down_and_nothing_is_lost(
    db: Any, name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(db, name)
    monkeypatch.setattr(limits, "CHECK_SECONDS", 0.0)  # read the mark in every add
    admin.limit(db, name, max_bytes=10)
    cq.transact(db, lambda tr: cq.CombineQueue(name).add(tr, {"a": 1}))
    limits.compare(db, name)
    insert(name, {"a": 10})
    task = outbox_task(db, name)
    pause = task.run()
    waiting = table()
    admin.limit(db, name)
    while task.run() == 0.0:
        pass
    task.end()

    assert pause == FULL_SECONDS
    assert len(waiting) == 1
    assert values(db, name) == {"a": 11}


def test_a_drain_that_is_stopped_ends_although_rows_are_left(
    db: Any, name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(db, name)
    worker = Worker(db, queues=[name])
    left: list[int] = []

    def stop(task: OutboxTask, point: str) -> None:
        if point == "read" and len(left) < 100:  # a limit, so that a drain that goes on ends, too
            insert(name, {"a": 1})
            worker.stop()
            left.append(len(table()))

    monkeypatch.setattr(OutboxTask, "signal", stop)
    worker.drain()

    assert 0 < len(left) < 100
    assert table()


# Restored databases


def test_a_database_that_is_set_back_stops_the_outbox_until_the_operator_decides(
    db: Any, name: str, reporting_url: str
) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    backup = sql("SELECT queue, store, batch FROM cq_outbox_progress")
    move(db, name)
    insert(name, {"a": 10})
    move(db, name)
    set_back(backup)
    insert(name, {"a": 1})  # the row of the backup
    found = problem(db, name)
    with pytest.raises(LinkFailed, match=r"^stopped: .* was set back"):
        opened(db, name).check()
    rebased = opened(db, name).rebase(), opened(db, name).rebase()
    move(db, name)

    assert "was set back" in found
    assert "application's database lacks" in found
    assert rebased == (True, False)
    assert opened(db, name).check() == "rows to add: 0"
    assert values(db, name) == {"a": 12}


def set_back(backup: list[Any]) -> None:
    for queue, store, batch in backup:
        sql(
            "UPDATE cq_outbox_progress SET store = :store, batch = :batch WHERE queue = :queue",
            queue=queue,
            store=bytes(store),
            batch=bytes(batch),
        )


def test_a_store_that_is_set_back_stops_the_outbox(db: Any, name: str, reporting_url: str) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    move(db, name)
    key = OutboxKeys(name).state
    backup: Any = cq.transact(db, lambda tr: tr.get(key).value)
    insert(name, {"a": 10})
    move(db, name)
    cq.transact(db, lambda tr: tr.set(key, backup))
    found = problem(db, name)

    assert "the store was set back" in found
    assert "cq link rebase" in found


def test_rows_that_vanish_before_they_are_deleted_stop_the_outbox(
    db: Any, name: str, reporting_url: str
) -> None:
    """The database was set back to a time before they were inserted; later rows may have their ids."""
    configure(db, name)
    insert(name, {"a": 1, "b": 1})
    dying = outbox_task(db, name, dying_at("moved"))
    dying.run()
    dying.end()
    first, *_ = sql("SELECT id FROM cq_outbox ORDER BY id")
    sql("DELETE FROM cq_outbox")
    later = "INSERT INTO cq_outbox (id, queue, key_json, update_json) VALUES (:id, :queue, '\"new\"', '1')"
    sql(later, id=first.id, queue=name)
    found = problem(db, name)
    opened(db, name).rebase()
    move(db, name)

    assert "are missing in the application's database" in found
    assert values(db, name) == {"a": 1, "b": 1, "new": 1}


def test_another_database_or_another_store_is_refused(
    db: Any, name: str, sqlite_url: str, tmp_path: Any
) -> None:
    configure(db, name)
    sql("DELETE FROM cq_outbox_progress")
    emptied = problem(db, name)
    other: Any = cq.open(f"embedded:{tmp_path / 'other.db'}")
    init(db, name, SETTINGS)
    opened(db, name).rebase()
    cq.configure(other, name)
    with pytest.raises(cq.CqError, match="earlier outbox"):
        init(other, name, SETTINGS)
    other.close()

    assert "no row for queue" in emptied


def test_init_again_and_with_other_settings(db: Any, name: str, reporting_url: str) -> None:
    cq.configure(db, name)
    created = init(db, name, SETTINGS)
    again = init(db, name, SETTINGS)
    with pytest.raises(cq.errors.ConfigurationConflict, match="schema"):
        init(db, name, OutboxSettings(URL_ENV, "public"))
    with pytest.raises(cq.errors.QueueNotConfigured):
        init(db, f"{name}-no", SETTINGS)

    assert created == ["cq_outbox", "cq_outbox_progress"]
    assert again == []


def test_remove_and_begin_again(db: Any, name: str, reporting_url: str) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    dying = outbox_task(db, name, dying_at("moved"))
    dying.run()
    dying.end()
    opened(db, name).remove()
    insert(name, {"a": 10})
    with pytest.raises(cq.errors.InvalidConfiguration, match="has no outbox"):
        source(db, name)
    init(db, name, SETTINGS)
    move(db, name)

    assert values(db, name) == {"a": 11}


@pytest.mark.parametrize(
    "act",
    [lambda db, name: pause_link(db, name, OUTBOX, paused=True), lambda db, name: opened(db, name).retry()],
    ids=["pause", "retry"],
)
def test_an_outbox_that_is_removed_meanwhile_is_neither_paused_nor_retried(
    db: Any, name: str, sqlite_url: str, act: Any
) -> None:
    configure(db, name)
    overtaken = Overtaken(db, lambda: opened(db, name).remove())
    with pytest.raises(cq.errors.NotInStore, match="has no outbox"):
        act(overtaken, name)
    assert overtaken.is_done
    assert stored(db, cq.keys.below(OutboxKeys(name).prefix)) == []


def test_a_worker_that_has_not_heard_of_the_removal_of_an_outbox_notes_nothing(
    db: Any, name: str, sqlite_url: str
) -> None:
    configure(db, name)
    task = outbox_task(db, name)
    opened(db, name).remove()
    task.run()
    assert "has no outbox" in task.problem
    task.end()
    assert stored(db, cq.keys.below(OutboxKeys(name).prefix)) == []


def test_a_worker_without_the_url_leaves_the_outbox_to_others(
    db: Any, name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    monkeypatch.delenv(URL_ENV)
    cq.transact(db, lambda tr: cq.CombineQueue(name).add(tr, {"b": 1}))
    Worker(db, queues=[name]).drain()
    with pytest.raises(LinkFailed, match=r"^failing: .*application's database"):
        opened(db, name).check()

    assert dict(cq.CombineQueue(name).scan(db)) == {"b": 1}


class Transactions(WrappedDatabase):
    """Attributes: made: the number of transactions."""

    made = 0

    def create_transaction(self) -> Any:
        self.made += 1
        return super().create_transaction()


def test_an_empty_outbox_is_looked_at_without_requests_to_the_store(
    db: Any, name: str, sqlite_url: str
) -> None:
    configure(db, name)
    counted = Transactions(db)
    task = outbox_task(counted, name)
    task.enter(b"worker")
    with jumping() as clock:
        assert task.run() == POLL_SECONDS
        before = counted.made
        assert [task.run() for _ in range(40)] == [POLL_SECONDS] * 40
        assert counted.made == before
        clock.passed += 60  # it is looked at from time to time
        assert (task.run(), task.run()) == (POLL_SECONDS, POLL_SECONDS)
        assert counted.made == before + 1

        insert(name, {"a": 1})
        move(db, name)  # by another worker, so that its state is another
        insert(name, {"a": 10})
        for _ in range(4):
            task.run()
    task.end()

    assert not task.problem
    assert (values(db, name), table()) == ({"a": 11}, [])


def test_rows_of_queues_without_an_outbox_are_counted(db: Any, name: str, reporting_url: str) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    insert("typo", {"a": 1, "b": 1})
    insert("elsewhere", {"a": 1})
    fence = "INSERT INTO cq_outbox_progress SELECT 'elsewhere', :store, batch FROM cq_outbox_progress"
    sql(fence, store=bytes(16))
    removed = f"{name}-removed"
    configure(db, removed)
    insert(removed, {"a": 1})
    left = opened(db, removed).remove()
    tables = outbox_tables(db)
    (found,) = [stray_rows(db, settings, queues) for settings, queues in tables.items()]

    assert left == 1
    assert tables == {SETTINGS: [name]}
    assert [(each.queue, each.rows) for each in found] == [(removed, 1), ("typo", 2)]
    assert f"'{removed}' (1), 'typo' (2)" in stray_text(found)


@pytest.mark.parametrize("rest", [b"o", b"b", b"k", b"f", b"s", b"other"])
def test_verify_finds_a_damaged_key_of_an_outbox(db: Any, name: str, sqlite_url: str, rest: bytes) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    move(db, name)
    assert found_in(db, name) == []

    key = OutboxKeys(name).prefix + rest
    transact(db, lambda tr: tr.set(key, b"damaged"))

    assert [(each.kind, each.where) for each in found_in(db, name)] == [("outbox", key)]


@pytest.mark.parametrize("damaged", [None, b"?"])
@pytest.mark.usefixtures("sqlite_url")
def test_an_outbox_whose_state_is_lost_continues_after_a_rebase(
    db: Any, name: str, damaged: bytes | None
) -> None:
    configure(db, name)
    insert(name, {"a": 1})
    move(db, name)
    insert(name, {"b": 1})
    key = OutboxKeys(name).state
    transact(db, lambda tr: tr.clear(key) if damaged is None else tr.set(key, damaged))
    assert problem(db, name)

    assert opened(db, name).rebase()

    move(db, name)
    assert values(db, name) == {"a": 1, "b": 1}


@pytest.mark.usefixtures("sqlite_url")
def test_a_drain_names_an_outbox_whose_settings_are_damaged(db: Any, name: str) -> None:
    configure(db, name)
    transact(db, lambda tr: tr.set(OutboxKeys(name).settings, b"\x05"))

    left = Worker(db).drain()

    assert any("outbox" in line and "settings" in line for line in left)
