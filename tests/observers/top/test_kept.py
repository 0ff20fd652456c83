"""The kept versions of clouds: which there are, the cloud as of a time, and the ranks in a window one width ago."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

import cq
from cq import admin
from cq.errors import CorruptData, InvalidConfiguration, NotInStore, NotReady
from cq.keys import QueueKeys, below, version_of
from cq.keys.top import CloudKeys, split_kept
from cq.observers.top.cloud import Cloud, CloudChange, CloudReader
from cq.observers.top.index import top
from cq.observers.top.publisher import read_through
from cq.observers.top.trending import trending
from cq.observers.verify.queue import verification
from cq.observers.worker.worker import Worker
from cq.queue.bucket_state import BucketState
from cq.store.transact import transact
from cq.verify.kinds import KINDS
from cq.windows import Window
from tests.kit.clocks import Clock, set_clock
from tests.kit.queues import commits, put, stored
from tests.observers.top.tops import ToldTop, publish, publisher

START = 1_000_000.0
WIDTH = 60
STEP = 5  # the slice of the window


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


def kept(db: Any, name: str, group: str | None = None) -> list[tuple[float, int]]:
    """(seconds after `START`, version) of the kept versions of a cloud."""
    keys = CloudKeys(QueueKeys(name))
    rows = [split_kept(key[len(keys.all_kept) :]) for key, _ in stored(db, below(keys.kept_of(group)))]
    return [((row.time - START * 1000) / 1000, row.version) for row in rows if row.number == 0]


def as_of(told: ToldTop, seconds: float, group: str | None = None) -> Cloud:
    """The cloud as of so many seconds after `START`."""
    found: Cloud = told.read(CloudReader(told.name, group).read, START + seconds)
    return found


def scores(cloud: Cloud) -> dict[Any, Any]:
    return {entry.key: entry.score for entry in cloud.entries}


def publish_each(told: ToldTop, clock: Clock, times: list[float]) -> None:
    """Publish a version at each of these times, whose score is the time."""
    task = publisher(told)
    for time in times:
        clock.now = START + time
        told.tell({"a": time})
        publish(task)


# The cloud as of a time


def test_the_cloud_as_of_a_time_is_the_latest_that_was_published_until_then(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep="1h")
    publish_each(told, clock, [0.5, 1, 3])

    for time, version, score in [
        (0.5, 1, 0.5),
        (0.9, 1, 0.5),
        (1, 2, 1),
        (2.999, 2, 1),
        (3, 3, 3),
        (999, 3, 3),
    ]:
        found = as_of(told, time)
        assert (found.version, scores(found)) == (version, {"a": score})
    assert as_of(told, 1).created == datetime.fromtimestamp(START + 1, UTC)
    with pytest.raises(
        NotInStore, match=r"as of 1970-01-12 13:46:40 UTC: the oldest is of 1970-01-12 13:46:40 UTC"
    ):
        as_of(told, 0.4)
    with pytest.raises(NotInStore, match="as of -1000000000000 seconds since 1970"):
        told.read(CloudReader(told.name).read, -1e12)


def test_the_newest_cloud_needs_not_be_kept(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0)
    with pytest.raises(NotReady):
        as_of(told, 1)
    publish_each(told, clock, [0, 1])

    assert kept(db, told.name) == []
    assert as_of(told, 1).version == 2
    assert told.read(CloudReader(told.name).oldest).version == 2
    with pytest.raises(NotInStore):
        as_of(told, 0.9)


def test_versions_are_kept_for_the_time_after_their_replacement(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep=10)
    publish_each(told, clock, [0, 1, 12, 13, 22.001])

    assert kept(db, told.name) == [(12, 3), (13, 4), (22.001, 5)]
    assert told.read(CloudReader(told.name).oldest).version == 3
    publish_each(told, clock, [100])
    assert as_of(told, 90).version == 5  # it was the newest until 100


def test_a_step_keeps_one_version_each_the_last(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep="1h/10s")
    publish_each(told, clock, [0, 3, 9.999, 10, 25, 29])

    assert kept(db, told.name) == [(9.999, 3), (10, 4), (29, 6)]


def test_versions_of_one_millisecond_are_all_kept(db: Any, clock: Clock) -> None:
    told, task = ToldTop(db, every=0, keep=10), None
    task = publisher(told)
    for score in range(1, 4):
        told.tell({"a": score})
        publish(task)

    assert kept(db, told.name) == [(0, 1), (0, 2), (0, 3)]
    assert as_of(told, 0).version == 3


def test_versions_of_a_clock_that_was_far_ahead_are_cleared(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep=10)
    publish_each(told, clock, [500, 5, 0])

    assert kept(db, told.name) == [(0, 3), (5, 2)]
    assert as_of(told, 0).version == 3


def test_a_kept_version_beyond_one_value_is_whole(db: Any, clock: Clock) -> None:
    told = ToldTop(db, n=1000, every=0, keep=10)
    task = publisher(told)
    for number in range(3):
        clock.now = START + number
        told.tell({f"{key:0200}": number for key in range(1000)})
        publish(task)

    for number in range(3):
        assert scores(as_of(told, number)) == {f"{key:0200}": number for key in range(1000)}
    clock.now = START + 100
    told.tell({f"{0:0200}": 9})
    publish(task)
    rows = stored(db, below(CloudKeys(told.keys).all_kept))
    assert len({key[-12:-4] for key, _ in rows}) == 2
    assert len(rows) == 8  # two versions of a head and three pieces


def test_groups_keep_versions_of_their_own(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep=10, group=lambda key, value: key[0])
    task = publisher(told)
    for number in range(2):
        clock.now = START + number
        told.tell({"a1": number + 1, "b1": number + 5})
        publish(task)

    assert scores(as_of(told, 0, "a")) == {"a1": 1}
    assert scores(as_of(told, 1, "b")) == {"b1": 6}
    assert kept(db, told.name, "a") == [(0, 1), (1, 2)]


def test_changes_between_two_versions(db: Any, clock: Clock) -> None:
    told = ToldTop(db, n=3, every=0, keep=10)
    task = publisher(told)
    told.tell({"a": 9, "b": 5, "c": 4})
    publish(task)
    clock.now += 1
    told.tell({"b": 11, "c": None, "d": 1})
    publish(task)

    older, newer = as_of(told, 0), as_of(told, 1)

    assert newer.changes_since(older) == [
        CloudChange("b", 11, 5),
        CloudChange("d", 1, None),
        CloudChange("c", None, 4),
    ]
    assert newer.changes_since(newer) == []


@pytest.mark.parametrize("wrong", ["soon", "30d/", "1h/2h", "1h/0s", 0, -1, 1.5, True])
def test_times_that_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"expected (a duration|clouds to be kept)"):
        top(keep=wrong)


# Which updates a version includes


def test_a_version_says_through_which_commit_it_includes_all_updates(db: Any, name: str) -> None:
    queue = cq.configure(db, name, buckets=4, observers=[top(every=0)])
    reader = CloudReader(name)

    def commit(**updates: int) -> int:
        tr = db.create_transaction()
        queue.add(tr, updates)
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        return version_of(stamp.wait())

    first = commit(a=1, b=2, c=3)
    Worker(db, queues=[name]).drain()
    cloud = transact(db, reader.read)
    assert cloud.through >= first

    second = commit(a=1)  # one bucket has a row
    commit(b=1, c=1)
    through = transact(db, lambda tr: read_through(tr, queue.keys, 0))
    assert first <= through < second


def test_while_updates_are_staged_a_version_includes_what_the_one_before_did(db: Any, name: str) -> None:
    queue = cq.configure(db, name, buckets=1)
    state = queue.keys.state(1, 0)
    transact(db, lambda tr: queue.add(tr, {"a": 1}))
    transact(db, lambda tr: tr.set(state, BucketState(staged=True).to_bytes()))

    assert transact(db, lambda tr: read_through(tr, queue.keys, 7)) == 7


# Purges and removals


def test_a_purge_and_the_removal_of_the_top_delete_the_versions(db: Any, name: str) -> None:
    cq.configure(db, name, observers=[top(every=0, keep="1h")])
    for end in (partial(admin.purge, db, name), partial(admin.remove_observer, db, name, "top")):
        add(db, name, a=1)
        add(db, name, b=1)
        assert kept(db, name)
        end()
        assert kept(db, name) == []
        Worker(db, queues=[name]).drain()
        for _, version in kept(db, name):
            assert transact(db, CloudReader(name).read).version == version
            assert transact(db, CloudReader(name).read).entries == ()


def test_no_version_is_kept_during_a_purge(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep="1h")
    task = publisher(told)
    told.tell({"a": 1})
    publish(task)
    told.tell({"b": 1})
    concurrent = db.create_transaction()
    mark = stored(db, below(task._keys.marks))[0][1]
    task._publish(concurrent, None, mark)

    admin.purge(db, told.name)

    assert not commits(concurrent)
    publish(task)
    assert (told.read(CloudReader(told.name).read).version, kept(db, told.name)) == (2, [])


def test_verify_repairs_a_damaged_version(db: Any, name: str) -> None:
    cq.configure(db, name, observers=[top(every=0, keep="1h")])
    add(db, name, a=1)
    assert list(verification(db, name).run()) == []
    keys = CloudKeys(QueueKeys(name))
    [(key, value)] = stored(db, below(keys.all_kept))
    other = keys.kept(None, 5, 5, 0)
    for wrong in (
        {key: b"x"},
        {other: value},
        {keys.kept(None, 5, 5, 1): b""},
        {keys.all_kept + b"short": b""},
    ):
        put(db, wrong)

        found = list(verification(db, name, repair=True).run())

        assert {each.kind for each in found} <= {"cloud-version", "cloud-piece"} & KINDS.keys()
        assert found
        assert list(verification(db, name).run()) == []
        transact(db, lambda tr: tr.set(key, value))


def test_a_version_without_its_head_is_an_error_of_the_reader(db: Any, clock: Clock) -> None:
    told = ToldTop(db, every=0, keep=10)
    publish_each(told, clock, [0, 1])
    keys = CloudKeys(told.keys)
    transact(db, lambda tr: tr.set(keys.kept(None, int(START + 0.5) * 1000 + 500, 1, 1), b""))

    with pytest.raises(CorruptData, match="--repair"):
        as_of(told, 0.7)


# The ranks in a window


def ranks(db: Any, name: str) -> list[tuple[str, Any, int, int | None]]:
    return [tuple(each) for each in transact(db, lambda tr: trending(tr.snapshot, name, by=WIDTH))]


def test_each_key_has_its_rank_of_one_width_ago(db: Any, window: Window, clock: Clock) -> None:
    add(db, window.name, a=9, b=5, c=5, d=1)
    assert ranks(db, window.name) == [
        ("a", 9, 1, None),
        ("b", 5, 2, None),
        ("c", 5, 2, None),
        ("d", 1, 4, None),
    ]

    clock.now = START + WIDTH + STEP  # the first updates have left
    add(db, window.name, c=7, a=2, d=2, e=1)

    assert ranks(db, window.name) == [("c", 7, 1, 2), ("a", 2, 2, 1), ("d", 2, 2, None), ("e", 1, 4, None)]


def test_a_window_keeps_one_version_of_each_step_until_no_reader_needs_it(
    db: Any, window: Window, clock: Clock
) -> None:
    for seconds in range(2 * WIDTH):
        clock.now = START + seconds
        add(db, window.name, a=1)

    times = [time for time, _ in kept(db, f"{window.name}.window")]
    assert times == [*range(2 * WIDTH - 1 - WIDTH - 2 * STEP, 2 * WIDTH, STEP)]


def test_a_purge_deletes_versions_with_keys_that_have_left_the_window(
    db: Any, window: Window, clock: Clock
) -> None:
    add(db, window.name, a=1)
    clock.now += WIDTH + STEP
    Worker(db, queues=[window.name]).drain()
    assert kept(db, f"{window.name}.window")

    admin.purge(db, window.name)

    assert kept(db, f"{window.name}.window") == []
    add(db, window.name, a=2)
    assert ranks(db, window.name) == [("a", 2, 1, None)]


def test_a_top_in_groups_keeps_no_ranks_of_a_window(db: Any, name: str, clock: Clock) -> None:
    app = cq.App()
    cq.configure(db, name, window=(WIDTH, STEP))
    app.queue(f"{name}.window", observers=[top(3, every=0, group=lambda key, value: str(key))])
    app.configure(db, f"{name}.window")
    transact(db, lambda tr: cq.CombineQueue(name).add(tr, {"a": 1}))
    Worker(db, queues=[name], app=app).drain()

    assert kept(db, f"{name}.window", "a") == []


def test_other_periods_and_times_are_refused(db: Any, window: Window) -> None:
    add(db, window.name, a=1)
    with pytest.raises(NotInStore, match="no level of 1h: it has no roll-up, and its window is 1m/5s"):
        transact(db, lambda tr: trending(tr.snapshot, window.name, by="1h"))
    with pytest.raises(InvalidConfiguration, match="give no time"):
        transact(db, lambda tr: trending(tr.snapshot, window.name, by="1m", at=START))
