"""The contract of links, for every kind of target: order, exactly once, refusals, set backs, and everything at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.keys.link import LinkKeys
from cq.observers.links.registry import pause_link
from cq.observers.links.state import read_control
from cq.observers.links.target import OutdatedBatch
from cq.observers.links.task import LinkTask
from cq.observers.monitoring.link_status import link_status
from cq.observers.scheduling.runner import DONE
from cq.observers.worker.worker import Worker
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from cq.store.watch import wait_until
from cq.testing import check_target, drain
from tests.kit.faults import Overtaken
from tests.kit.queues import spoil, stored, values
from tests.kit.workers import SECONDS, running
from tests.links import linkhelpers
from tests.links.drivers import FIRST, KINDS, LINK, SECOND, Case, Driver, MemoryDriver, made
from tests.links.linkhelpers import (
    ALL,
    bucket_task,
    combine,
    entries_aside,
    found,
    link_tasks,
    restore,
    waits,
)

pytestmark = pytest.mark.sampled(3)

EACH_KIND = pytest.mark.parametrize("driver", KINDS, indirect=True)
MAX_KINDS = pytest.mark.parametrize(
    "driver", [kind for kind in KINDS if kind != "webhook-without-positions"], indirect=True
)
"""Without a slow one: topics keep no positions either."""


@pytest.fixture
def case(db: Any, name: str, driver: Driver) -> Case:
    """A queue with a link to the first place, which has values."""
    case = Case(db, name, driver)
    link(case)
    case.put(a=1, b=2)
    send(case)
    return case


def link(case: Case, place: str = FIRST) -> None:
    """Have the queue's link go to a place."""
    case.link_to(place)


def opened(case: Case) -> Any:
    return found(case.db, case.name, LINK, case.driver.app)


def step(case: Case) -> str:
    """Combine, and run every task of the link once; returns its state and error."""
    combine(case.db, case.name)
    return linkhelpers.step(case.db, case.name, LINK, case.driver.app)


def send(case: Case) -> None:
    """Combine, and send until nothing is left to do."""
    combine(case.db, case.name)
    linkhelpers.work(case.db, case.name, LINK, case.driver.app)


def status(case: Case) -> str:
    return linkhelpers.status(case.db, case.name, LINK)


def check(case: Case, place: str = FIRST) -> None:
    """A place has all values, and nothing is left to do."""
    assert case.driver.values(place) == case.expected
    assert waits(case.db, case.name, LINK) == 0
    assert status(case) == "active: "


@EACH_KIND
def test_values_changes_and_deletions_arrive(db: Any, name: str, driver: Driver) -> None:
    """Those that the queue had before it had the link, too."""
    case = Case(db, name, driver)
    case.put(old=1, gone=2)
    combine(db, name)
    link(case)
    send(case)
    check(case)
    case.put(old=5, gone=None, new=3)
    send(case)
    check(case)
    assert link_status(db, name)[0].target
    with link_tasks(db, name, LINK, driver.app) as tasks:
        assert {task.run() for task in tasks} == {DONE}


@MAX_KINDS
def test_the_target_keeps_the_contract(driver: Driver) -> None:
    if not driver.repeats:
        pytest.skip("differences are not the values that the check sends")
    driver.prepare(FIRST)
    read = partial(driver.values, FIRST)
    assert check_target(partial(driver.target, place=FIRST), read) == driver.keeps_positions


@EACH_KIND
def test_a_target_that_fails_gets_everything_later(case: Case) -> None:
    case.put(a=2, c=1)
    with case.driver.broken(FIRST):
        assert step(case).startswith("failing: ")
        assert waits(case.db, case.name, LINK) > 0
        assert values(case.db, case.name) == case.expected
    send(case)
    check(case)


@EACH_KIND
def test_an_entry_that_is_refused_is_set_aside_alone(db: Any, name: str, driver: Driver) -> None:
    case = Case(db, name, driver)
    link(case)
    with driver.refusing(FIRST) as (key, value):
        case.put({f"k{number}": number for number in range(1, 40)} | {key: value})
        send(case)
    (aside,) = entries_aside(db, name, LINK)
    assert (aside.value, bool(aside.error)) == (value, True)
    assert (status(case), link_status(db, name)[0].aside) == ("active: ", 1)
    del case.expected[key]
    check(case)


@EACH_KIND
def test_a_worker_that_dies_at_any_point_changes_nothing(case: Case) -> None:
    def die_at(point: str, reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    for number, point in enumerate(("read", *case.driver.points, "sent", "cleared"), 2):
        case.put(a=number)
        combine(case.db, case.name)
        task = task_of(case, partial(die_at, point))
        with pytest.raises(KeyboardInterrupt):
            task.run()
        case.put(b=number)
    send(case)
    check(case)


def task_of(case: Case, signal: Callable[[str], object]) -> LinkTask:
    """The task of the bucket of `a`."""
    return bucket_task(case.db, case.name, "a", signal, link=LINK, app=case.driver.app)


@EACH_KIND
def test_a_rebuild_keeps_the_entry_of_a_value_that_cannot_be_read(case: Case) -> None:
    """It may be the last readable copy: nothing is swept until the value is repaired and reported again."""
    if not case.driver.repeats:
        pytest.skip("all values would count twice")
    repair = spoil(case.db, case.name, "a")
    rebuild(case)
    states = [step(case) for _ in range(3)]
    assert states[-1].startswith("failing: ")
    assert states[-1].endswith(f"see `cq aside list {case.name}`")
    assert waits(case.db, case.name, LINK) == 0
    if case.driver.sweeps:
        assert case.driver.values(FIRST) == case.expected

    assert retry_aside(case.db, case.name, "a") == 1
    linkhelpers.step(case.db, case.name, LINK, case.driver.app)  # before a pass has tried to report it
    assert step(case).startswith("failing: ")
    if case.driver.sweeps:
        assert case.driver.values(FIRST) == case.expected

    repair()
    assert retry_aside(case.db, case.name, "a") == 1
    send(case)
    check(case)


# A side is set back


def rebase(case: Case) -> None:
    opened(case).rebase()


def rebuild(case: Case) -> None:
    opened(case).rebuild()


DECISIONS = pytest.mark.parametrize("decide", [rebase, rebuild])


def expect_stop(case: Case, words: str) -> None:
    """The link is stopped, at start and when there is something to send, and says what to do."""
    assert words in step(case)
    case.put(later=1)
    found = step(case)
    assert found.startswith("stopped: ")
    assert f"`cq link rebase {case.name} {LINK}`" in found
    if case.driver.repeats:
        assert f"`cq link rebuild {case.name} {LINK}`" in found
    assert waits(case.db, case.name, LINK) > 0


def expect_decided(case: Case, decide: Callable[[Case], object], lost: dict[str, int]) -> None:
    """After a decision of the operator the link continues; after a rebase the target is as it was, and more."""
    if decide is rebuild and not case.driver.repeats:
        with pytest.raises(cq.errors.NotNow, match="count them twice"):
            decide(case)
        return
    decide(case)
    send(case)
    if decide is rebase:
        case.expected |= lost
    assert status(case) == "active: "
    if case.driver.sweeps or (case.driver.repeats and not lost.keys() - case.expected.keys()):
        check(case)


@DECISIONS
@EACH_KIND
def test_a_target_that_was_set_back_stops_the_link(case: Case, decide: Callable[[Case], object]) -> None:
    if not case.driver.keeps_positions:
        pytest.skip("it keeps no positions")
    copy = case.driver.copy(FIRST)
    case.put(a=7)
    send(case)
    case.driver.restore(FIRST, copy)
    expect_stop(case, "lacks changes that queue")
    expect_decided(case, decide, {"a": 1})


@DECISIONS
@EACH_KIND
def test_a_store_that_was_set_back_stops_the_link(case: Case, decide: Callable[[Case], object]) -> None:
    if not case.driver.keeps_positions:
        pytest.skip("it keeps no positions")
    before, expected = stored(case.db, ALL), dict(case.expected)
    if case.driver.repeats:
        rebuild(case)  # so that the target has a later generation than the restored store
        send(case)
    case.put(a=7, lost=8)
    send(case)
    restore(case.db, before)
    case.expected = expected
    expect_stop(case, "that this store does not have: the store was set back")
    expect_decided(case, decide, {"a": 7, "lost": 8})
    if case.driver.repeats:
        lost = {} if decide is rebuild and case.driver.sweeps else {"lost": 8}
        case.expected = expected | {"later": 1}
        case.put(a=9)
        send(case)
        case.expected |= lost
        check(case)


# Others are faster


def go_on(case: Case) -> None:
    """Others send the batch, and later ones."""


def move(case: Case) -> None:
    """The link goes to another place."""
    link(case, SECOND)


@pytest.mark.parametrize("others", [go_on, rebase, rebuild, move])
@pytest.mark.parametrize("point", ["read", "sent"])
@MAX_KINDS
def test_a_late_batch_changes_nothing(case: Case, others: Callable[[Case], object], point: str) -> None:
    """A worker stands still with its batch, while others go on: also in a later epoch or generation."""
    if others in (rebuild, move) and not case.driver.repeats:
        pytest.skip("all values would count twice")
    went_on: list[str] = []

    def overtaken(reached: str) -> None:
        if reached == point and not went_on:
            went_on.append(reached)
            others(case)
            case.put(a=50)
            send(case)
            case.put(a=None)
            send(case)

    case.put(a=2)
    combine(case.db, case.name)
    late = task_of(case, overtaken)
    while late.run() == 0.0:
        pass
    assert went_on
    assert late.problem == ""
    check(case, SECOND if others is move else FIRST)
    case.put(a=3)
    send(case)
    check(case, SECOND if others is move else FIRST)


@EACH_KIND
def test_another_target_gets_all_values_and_the_first_one_stays_until_it_is_used_again(case: Case) -> None:
    if not case.driver.repeats:
        link(case, SECOND)
        send(case)
        check(case, SECOND)
        return
    case.put(gone=1)
    send(case)
    before = case.driver.values(FIRST)
    link(case, SECOND)
    case.put(gone=None, a=8)
    send(case)
    check(case, SECOND)
    assert case.driver.values(FIRST) == before
    link(case, FIRST)
    case.put(b=9)
    send(case)
    if case.driver.sweeps:
        check(case, FIRST)


@EACH_KIND
def test_two_workers_send_each_change_while_operators_decide(case: Case) -> None:
    """Rebases, rebuilds and another target, with updates in between."""
    workers = [Worker(case.db, case.driver.app, [case.name], beat=0.1) for _ in range(2)]
    doing = [rebase, rebuild, rebase, move] if case.driver.repeats else [rebase, rebase]
    number = 2
    with running(workers[0]), running(workers[1]):
        for decide in [*doing, go_on]:
            for _ in range(4):
                number += 1
                case.put({f"k{key}": number if (key + number) % 3 else None for key in range(20)})
            decide(case)
        assert wait_until(case.db, partial(_is_sent, case, LINK), SECONDS), status(case)
    send(case)
    check(case, SECOND if move in doing else FIRST)


def _is_sent(case: Case, link: str, tr: Any) -> tuple[bool, Any]:
    rows = [
        row.key
        for bounds in (LinkKeys(case.name, link).all_rows(), cq.keys.QueueKeys(case.name).all_rows())
        for row in tr.snapshot.get_range(*bounds, limit=1)
    ]
    return not rows, tr.watch(rows[0]) if rows else None


# Operators


@EACH_KIND
def test_a_paused_link_keeps_its_changes_until_it_is_resumed(case: Case) -> None:
    before = case.driver.values(FIRST)
    pause_link(case.db, case.name, LINK, paused=True)
    case.put(a=5)
    assert step(case).startswith("paused: ")
    assert (case.driver.values(FIRST), waits(case.db, case.name, LINK)) == (before, 1)
    pause_link(case.db, case.name, LINK, paused=False)
    send(case)
    check(case)


@EACH_KIND
def test_a_link_that_is_removed_leaves_nothing_in_the_store(case: Case) -> None:
    case.put(gone=1)
    send(case)
    case.put(a=5)
    combine(case.db, case.name)
    before = case.driver.values(FIRST)
    admin.remove_observer(case.db, case.name, f"link:{LINK}")
    case.put(gone=None)
    combine(case.db, case.name)
    prefix = LinkKeys(case.name, LINK).prefix
    assert stored(case.db, (prefix, prefix + b"\xff")) == []
    assert case.driver.values(FIRST) == before
    link(case)  # again: it sends all values, and then deletes what has none
    if case.driver.repeats:
        send(case)
        if case.driver.sweeps:
            check(case)
    else:
        assert "was forwarded into" in step(case)


@pytest.mark.parametrize("action", ["pause", "rebase"])
def test_a_link_that_is_removed_meanwhile_is_neither_paused_nor_rebased(
    db: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    case = Case(db, name, MemoryDriver(tmp_path, monkeypatch))
    link(case)
    send(case)
    case.db = Overtaken(db, partial(admin.remove_observer, db, name, f"link:{LINK}"))
    with pytest.raises(cq.errors.NotInStore, match="has no link"):
        opened(case).rebase() if action == "rebase" else pause_link(case.db, name, LINK, paused=True)
    assert case.db.is_done
    prefix = LinkKeys(name, LINK).prefix
    assert stored(db, (prefix, prefix + b"\xff")) == []


@EACH_KIND
def test_a_sweep_of_before_both_sides_were_set_back_deletes_nothing(case: Case) -> None:
    """The link was rebuilt after the backups; a worker that was frozen since then sweeps."""
    if not (case.driver.sweeps and case.driver.keeps_positions):
        pytest.skip("it sweeps nothing, or cannot know")
    backup, copy = stored(case.db, ALL), case.driver.copy(FIRST)
    rebuild(case)
    send(case)
    frozen = opened(case).sender
    epoch = transact(case.db, lambda tr: read_control(tr, LinkKeys(case.name, LINK))).epoch
    restore(case.db, backup)
    case.driver.restore(FIRST, copy)
    for decide in (lambda case: None, rebase, rebase):
        decide(case)
        send(case)
        with pytest.raises(OutdatedBatch):
            frozen.sweep(epoch)
        check(case)
    frozen.target.close()


@pytest.mark.parametrize("is_noticed", [True, False])
@EACH_KIND
def test_a_rebase_of_an_unfinished_rebuild_deletes_no_values_that_the_target_lost(
    case: Case, is_noticed: bool
) -> None:
    """The target is set back to before the rebuild. It has all values, and some of the rebuild are not sent again."""
    if not (case.driver.sweeps and case.driver.keeps_positions):
        pytest.skip("it sweeps nothing, or cannot know")
    copy = case.driver.copy(FIRST)
    rebuild(case)
    combine(case.db, case.name)
    linkhelpers.run_to_end(task_of(case, lambda point: None))
    if is_noticed:
        case.driver.restore(FIRST, copy)
        assert "lacks changes that queue" in step(case)
        rebase(case)
    else:  # no worker has compared since the rebase
        rebase(case)
        case.driver.restore(FIRST, copy)
    send(case)
    check(case)
    case.put(b=None)
    rebuild(case)
    send(case)
    check(case)


@pytest.mark.parametrize("driver", ["sqlite"], indirect=True)
def test_a_link_that_does_not_leave_former_rows_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of the simulation in a thousand has a target set back within a rebuild, and a rebase before its end."""
    monkeypatch.setattr("cq.observers.links.sender.leave_former_rows", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_rebase_of_an_unfinished_rebuild_deletes_no_values_that_the_target_lost(case, is_noticed=True)


# Several links


def test_a_queue_has_several_links_and_none_delays_another(
    db: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One of them is slow, one fails, and one is stopped."""
    driver = MemoryDriver(tmp_path, monkeypatch)
    case = Case(db, name, driver)
    targets = {place: driver.targets[place] for place in ("slow", "failing", "stopped", "good")}
    for place in targets:
        driver.prepare(place)
        admin.put_observer(db, name, links.app(place))
    go, called = threading.Event(), threading.Event()

    def wait(point: str) -> None:
        called.set()
        assert go.wait(SECONDS)

    targets["slow"].signal = wait
    targets["failing"].error = ConnectionError("no route")
    targets["stopped"].error = links.LinkStopped("somebody else writes here")
    sql = made("sqlite", request, tmp_path, monkeypatch)
    admin.put_observer(db, name, sql.spec(FIRST))
    found(db, name, LINK, driver.app).target.create()
    with running(Worker(db, driver.app, [name])):
        for number in range(1, 6):
            case.put({f"k{key}": number for key in range(40)})
            assert wait_until(db, partial(_is_sent, case, "good"), SECONDS)
            assert targets["good"].values == case.expected
        assert called.wait(SECONDS)
        states = {each.link: each.state for each in link_status(db, name)}
        assert (states["failing"], states["stopped"]) == ("failing", "stopped")
        go.set()
    targets["failing"].error = targets["stopped"].error = None
    targets["slow"].signal = lambda point: None
    drain(db, app=driver.app)
    assert [target.values for target in targets.values()] == [case.expected] * 4
    assert sql.values(FIRST) == case.expected
