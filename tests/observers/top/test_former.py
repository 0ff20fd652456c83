"""The former tops of queues with a window: which ranks the keys of the top had one width ago."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import cq
from cq import admin
from cq.config.queue import read_config
from cq.errors import InvalidConfiguration, NotInStore
from cq.keys import QueueKeys
from cq.keys.top import FormerTopKeys
from cq.observers.scheduling.runner import DONE
from cq.observers.top.former import FormerTopTask
from cq.observers.top.index import top
from cq.observers.top.publisher import Publisher, publishers
from cq.observers.top.trending import trending
from cq.observers.verify.queue import verification
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from cq.verify.kinds import KINDS
from cq.windows import Window
from tests.kit.clocks import Clock, set_clock
from tests.kit.queues import commits, event_of, stored
from tests.kit.workers import running

START = 1_000_000.0
WIDTH = 60
STEP = 5  # the slice of the window
SECONDS = 60.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    with set_clock() as machine:
        machine.now = START
        yield machine


@pytest.fixture
def window(db: Any, name: str, clock: Clock) -> Window:
    cq.configure(db, name, window=(WIDTH, STEP))
    admin.put_observer(db, f"{name}.window", top(3, every=0))
    Worker(db, queues=[name]).drain()
    return Window(name)


def add(db: Any, name: str, **updates: int) -> None:
    transact(db, lambda tr: cq.CombineQueue(name).add(tr, updates))
    Worker(db, queues=[name]).drain()


def task_of(db: Any, name: str) -> FormerTopTask:
    """The task of the queue with the totals of a window."""
    config = transact(db, lambda tr: read_config(tr.snapshot, f"{name}.window"))
    made = publishers(db, config, config.observers[0])
    assert [type(each) for each in made] == [Publisher, FormerTopTask]
    task = made[1]
    assert isinstance(task, FormerTopTask)
    return task


def copies(db: Any, name: str) -> list[int]:
    """The times of the copies of a window's top, in seconds after `START`."""
    keys = FormerTopKeys(QueueKeys(f"{name}.window"))
    return [int.from_bytes(key[len(keys.prefix) :]) // 1000 - int(START) for key, _ in stored(db, keys.all())]


def ranks(db: Any, name: str) -> list[tuple[str, Any, int, int | None]]:
    return [tuple(each) for each in transact(db, lambda tr: trending(tr.snapshot, name, by=WIDTH))]


def test_each_key_has_its_rank_of_one_width_ago(db: Any, window: Window, clock: Clock) -> None:
    task = task_of(db, window.name)
    add(db, window.name, a=9, b=5, c=5, d=1)
    assert task.run() == STEP
    assert ranks(db, window.name) == [
        ("a", 9, 1, None),
        ("b", 5, 2, None),
        ("c", 5, 2, None),
        ("d", 1, 4, None),
    ]

    clock.now = START + WIDTH + STEP  # the first updates have left
    add(db, window.name, c=7, a=2, d=2, e=1)

    assert ranks(db, window.name) == [("c", 7, 1, 2), ("a", 2, 2, 1), ("d", 2, 2, None), ("e", 1, 4, None)]


def test_each_step_has_one_copy_until_no_reader_needs_it(db: Any, window: Window, clock: Clock) -> None:
    tasks = task_of(db, window.name), task_of(db, window.name)
    add(db, window.name, a=1)
    for seconds in range(0, 2 * WIDTH, STEP):
        clock.now = START + seconds + 1
        assert [task.run() for task in tasks] == [STEP - 1, STEP - 1]

    assert copies(db, window.name) == list(range(WIDTH - 3 * STEP, 2 * WIDTH, STEP))


def test_running_workers_make_the_copies(db: Any, window: Window) -> None:
    key = FormerTopKeys(QueueKeys(f"{window.name}.window")).at(int(START) * 1000)
    copied = event_of(transact(db, lambda tr: tr.watch(key)))
    with running(Worker(db, queues=[window.name])):
        assert copied.wait(SECONDS)


def test_a_rank_is_unknown_if_no_worker_ran_then(db: Any, window: Window, clock: Clock) -> None:
    add(db, window.name, a=1)
    task_of(db, window.name).run()
    seen = []
    for steps in (-1, 0, 2, 3):
        clock.now = START + WIDTH + steps * STEP
        add(db, window.name, a=1)
        seen.append(ranks(db, window.name)[0][3])

    assert seen == [None, 1, 1, None]


def test_a_clock_that_was_ahead_leaves_no_copies(db: Any, window: Window, clock: Clock) -> None:
    task = task_of(db, window.name)
    clock.now = START + 500
    task.run()
    clock.now = START
    task.run()

    assert copies(db, window.name) == [0]


def test_one_of_two_workers_makes_the_copy(db: Any, window: Window, clock: Clock) -> None:
    task, now = task_of(db, window.name), int(START) * 1000
    one, two = db.create_transaction(), db.create_transaction()
    assert task._copy(one, now) == task._copy(two, now) == STEP * 1000

    assert [commits(one), commits(two)] == [True, False]
    assert copies(db, window.name) == [0]


def test_a_top_in_a_backfill_is_not_copied(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name, window=(WIDTH, STEP))
    add(db, name, a=1)
    admin.put_observer(db, f"{name}.window", top(3, every=0))
    task = task_of(db, name)
    assert (task.run(), copies(db, name)) == (STEP, [])
    Worker(db, queues=[name]).drain()
    assert (task.run(), copies(db, name)) == (STEP, [0])


def test_a_purge_and_the_removal_of_the_top_delete_the_copies(db: Any, window: Window, clock: Clock) -> None:
    task = task_of(db, window.name)
    for end in (
        partial(admin.purge, db, window.name),
        partial(admin.remove_observer, db, f"{window.name}.window", "top"),
    ):
        add(db, window.name, a=1)
        clock.now += STEP
        task.run()
        assert len(copies(db, window.name)) == 1
        end()
        Worker(db, queues=[window.name]).drain()
        assert copies(db, window.name) == []


def test_a_purge_deletes_copies_of_keys_that_have_left_the_window(
    db: Any, window: Window, clock: Clock
) -> None:
    add(db, window.name, a=1)
    task_of(db, window.name).run()
    clock.now += WIDTH + STEP
    Worker(db, queues=[window.name]).drain()
    assert (ranks(db, window.name), copies(db, window.name)) == ([], [0])

    admin.purge(db, window.name)

    assert copies(db, window.name) == []
    add(db, window.name, a=2)
    assert ranks(db, window.name) == [("a", 2, 1, None)]


def test_no_copy_is_made_during_a_purge(db: Any, window: Window, clock: Clock) -> None:
    add(db, window.name, a=1)
    task, concurrent = task_of(db, window.name), db.create_transaction()
    task._copy(concurrent, int(START) * 1000)
    admin.purge(db, window.name)
    assert not commits(concurrent)
    assert (task.run(), copies(db, window.name)) == (STEP, [])

    add(db, window.name, b=1)

    assert (task.run(), copies(db, window.name)) == (STEP, [0])
    clock.now += WIDTH
    assert ranks(db, window.name) == [("b", 1, 1, 1)]


def test_a_copy_of_many_keys_fits_into_a_value(db: Any, name: str, clock: Clock) -> None:
    def score(key: Any, value: Any) -> int:
        return 0

    app = cq.App()
    cq.configure(db, name, key=bytes, window=(WIDTH, STEP))
    app.queue(f"{name}.window", observers=[top(10_000, score=score)])
    app.configure(db, f"{name}.window")
    updates = {number.to_bytes(7): 1 for number in range(10_000)}
    for part in range(0, len(updates), 2_000):
        some = dict(list(updates.items())[part : part + 2_000])
        transact(db, lambda tr: cq.CombineQueue(name).add(tr, some))  # noqa: B023 - runs at once
    Worker(db, queues=[name], app=app).drain()

    assert task_of(db, name).run() == STEP

    [(_, copy)] = stored(db, FormerTopKeys(QueueKeys(f"{name}.window")).all())
    assert 70_000 < len(copy) <= 100_000


def test_verify_repairs_a_damaged_copy(db: Any, window: Window, clock: Clock) -> None:
    add(db, window.name, a=1)
    task_of(db, window.name).run()
    assert list(verification(db, f"{window.name}.window").run()) == []
    former = FormerTopKeys(QueueKeys(f"{window.name}.window"))
    transact(db, lambda tr: tr.set(former.at(int(START) * 1000), b"x"))
    transact(db, lambda tr: tr.set(former.prefix + b"short", b""))

    found = list(verification(db, f"{window.name}.window", repair=True).run())

    assert {each.kind for each in found} == {"former-top-unreadable", "cloud-piece"}
    assert {each.kind for each in found} <= KINDS.keys()
    assert list(verification(db, f"{window.name}.window").run()) == []
    assert copies(db, window.name) == []


def test_other_queues_have_no_former_tops(db: Any, name: str, clock: Clock) -> None:
    cq.configure(db, name, window=(WIDTH, STEP), observers=[top(3)])
    admin.put_observer(db, f"{name}.window", top(3, group=lambda key, value: str(key)))
    for each in (name, f"{name}.window"):
        config = transact(db, lambda tr: read_config(tr.snapshot, each))  # noqa: B023 - runs at once
        assert [type(task) for task in publishers(db, config, config.observers[0])] == [Publisher]
    config = transact(db, lambda tr: read_config(tr.snapshot, name))
    assert FormerTopTask(db, config, config.observers[0]).run() == DONE


def test_other_periods_and_times_are_refused(db: Any, window: Window) -> None:
    add(db, window.name, a=1)
    with pytest.raises(NotInStore, match="no level of 1h: it has no roll-up, and its window is 60/5 s"):
        transact(db, lambda tr: trending(tr.snapshot, window.name, by="1h"))
    with pytest.raises(InvalidConfiguration, match="give no time"):
        transact(db, lambda tr: trending(tr.snapshot, window.name, by="1m", at=START))
