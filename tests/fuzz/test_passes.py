"""What a broken or malicious writer leaves in a queue is set aside; all else is combined, no worker stops for it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import cbor2
import pytest

import cq
from cq import admin
from cq.app import App
from cq.config.flags import Flags
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.errors import CorruptData, CqError
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys
from cq.observers.scheduling.members import ROLES
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.top.index import top
from cq.observers.worker.queues import find_queues
from cq.observers.worker.worker import Worker
from cq.observers.worker.workload import Workload
from cq.queue.bucket_state import BucketState
from cq.queue.set_aside import drop_aside, read_aside, retry_aside
from cq.store.api import METADATA_VERSION
from cq.store.transact import transact
from tests.fuzz import stores
from tests.fuzz.inputs import BOMBS, bounded, broken, searched
from tests.kit.queues import add, aside, combine_all, configured, get, nothing_queued, stored

ROWS = {
    "no list": codec.encode({"a": 1}),
    "an empty list": codec.encode([]),
    "half a pair": codec.encode([None, b"aa"]),
    "a key that is not encoded": codec.encode([None, "a", 1]),
    "an empty key": codec.encode([None, b"", 1]),
    "a key that is too long": codec.encode([None, b"\x59\x27\x10" + b"x" * 10_000, 1]),
    "a key beyond all lengths": codec.encode([None, b"x" * 70_000, 1]),
    "an operation that is none": codec.encode([5, b"aa", 1]),
    "an empty operation": codec.encode([b"", b"aa", 1]),
    "an operation beyond all lengths": codec.encode([b"x" * 70_000, b"aa", 1]),
}
CONTENTS = {
    "a key of another type": codec.encode([None, codec.encode(5), 1]),
    "a key in another spelling": codec.encode([None, b"\x78\x01a", 1]),
    "an update of another type": codec.encode([None, codec.encode("z"), "text"]),
    "undefined": codec.encode([None, codec.encode("z"), cbor2.undefined]),
    "null": codec.encode([None, codec.encode("z"), None]),
}


def write(db: Any, key: bytes, value: bytes) -> None:
    """As a stranger does."""
    transact(db, lambda tr: tr.set(key, value))


def add_row(db: Any, name: str, value: bytes) -> None:
    """A row as cq would store one, with any content."""
    keys = QueueKeys(name)

    def put(tr: Any) -> None:
        tr.set_versionstamped_key(keys.new_row(1, 0, 0), value)
        tr.set_versionstamped_value(keys.notification(1, 0), INCOMPLETE_VERSIONSTAMP)

    transact(db, put)


@pytest.mark.parametrize("row", [*ROWS.values(), *CONTENTS.values()], ids=[*ROWS, *CONTENTS])
def test_what_is_broken_is_set_aside_and_all_else_is_combined(db: Any, name: str, row: bytes) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    add_row(db, name, row)
    add(db, name, {"a": 2, "b": 3})

    combine_all(db, name)

    assert (get(db, name, "a"), get(db, name, "b")) == (3, 3)
    assert nothing_queued(db, name)
    assert aside(db, name)
    assert all(isinstance(each.error, str) for each in aside(db, name))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_in_a_queue_takes_little_time_and_memory(db: Any, name: str, bomb: str) -> None:
    cq.configure(db, name, value="any", buckets=1)
    add(db, name, {"a": 1})
    add_row(db, name, BOMBS[bomb])
    add_row(db, name, b"\x83\xf6\x42" + codec.encode("z") + BOMBS[bomb][:90_000])
    add(db, name, {"b": 2})

    with bounded():
        combine_all(db, name)
        aside(db, name)

    assert (get(db, name, "a"), get(db, name, "b")) == (1, 2)
    assert nothing_queued(db, name)


def test_rows_that_were_changed_cost_nothing_else(db: Any, name: str) -> None:
    """Of transactions with a key of their own each, some rows are broken: all other keys have exact values."""
    for rng in searched(15):
        queue = f"{name}-{rng.random()}"
        cq.configure(db, queue, buckets=2)
        for number in range(12):
            add(db, queue, {f"k{number % 6}": 1}, once=f"op{number}" if number % 3 else None)
        keys = QueueKeys(queue)
        rows = stored(db, keys.all_rows())
        chosen = rng.sample(rows, 3)
        intact = Counter(
            codec.decode(codec.decode(value)[1]) for key, value in rows if (key, value) not in chosen
        )
        touched = {codec.decode(codec.decode(value)[1]) for _, value in chosen}
        for key, value in chosen:
            other = broken(value, rng)
            write(db, key, other)
            touched |= {each for each in (f"k{number}" for number in range(6)) if each.encode() in other}

        combine_all(db, queue)

        for key, count in intact.items():
            assert key in touched or get(db, queue, key) == count
        assert nothing_queued(db, queue)
        for each in aside(db, queue):
            codec.brief(each.updates)


@pytest.mark.parametrize("behind", [b"", b"\x00", b"\x00" * 9, b"\x00" * 17, b"\x00" * 19, b"\x00" * 2_000])
def test_a_row_under_a_key_that_is_none_is_set_aside(db: Any, name: str, behind: bytes) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    write(db, QueueKeys(name).rows(1, 0)[0] + behind, codec.encode([None, b"aa", 5]))

    combine_all(db, name)

    assert get(db, name, "a") == 1
    assert nothing_queued(db, name)
    assert len(aside(db, name)) == 1


@pytest.mark.parametrize("behind", [b"\xff", b"\xff" * 9, b"\x7f"])
def test_a_row_behind_all_others_is_left_and_takes_no_other_along(db: Any, name: str, behind: bytes) -> None:
    cq.configure(db, name, buckets=1)
    write(db, QueueKeys(name).rows(1, 0)[0] + behind, codec.encode([None, b"aa", 5]))
    add(db, name, {"a": 1})

    results = combine_all(db, name)
    add(db, name, {"a": 2})
    combine_all(db, name)

    assert results[-1].found_copied
    assert get(db, name, "a") == 3


def test_a_drain_comes_to_its_end_whatever_says_that_there_is_work(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=2)
    add(db, name, {"a": 1})
    begin = QueueKeys(name).notifications()[0]
    for behind in (
        b"",
        b"\x00",
        b"\x00\x00\x00\x01" * 2,
        b"\x00\x00\x00\x01\x00\x00\x00\x09",
        b"\xff" * 8,
        b"\x00" * 50,
    ):
        write(db, begin + behind, b"no versionstamp")

    Worker(db, queues=[name]).drain()

    assert get(db, name, "a") == 1


def test_trimming_comes_to_its_end_whatever_lies_among_the_markers(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"a": 1}, once="id")
    combine_all(db, name)
    begin = QueueKeys(name).markers()[0]

    def litter(tr: Any) -> None:
        for number in range(1_500):
            tr.set(begin + b"\xff\xff" + number.to_bytes(2, "big") * 9, b"")
            tr.set(begin + number.to_bytes(2, "big"), b"")

    transact(db, litter)
    assert stores.trim(db, name) == 1


def test_a_worker_leaves_a_queue_alone_whose_configuration_it_cannot_read(db: Any, name: str) -> None:
    bad, good = f"{name}-bad", f"{name}-good"
    cq.configure(db, bad, buckets=2, observers=[top(3, every=0)])
    cq.configure(db, good, buckets=1)
    keys = QueueKeys(bad)
    rows = dict(stored(db, (keys.prefix, keys.prefix + b"\xff")))
    transact(db, lambda tr: tr.set(keys.flags, Flags(reason="why", until=5.0).to_bytes()))
    rows[keys.flags] = stored(db, (keys.flags, keys.flags + b"\x00"))[0][1]
    for rng in searched(60):
        key = rng.choice([keys.config, keys.config, keys.flags, keys.observer_current("top")])

        def change(tr: Any, key: bytes = key, rng: random.Random = rng) -> None:
            for each, value in rows.items():
                tr.set(each, value)
            tr.set(key, broken(rows[key], rng))
            tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)

        transact(db, change)

        found, watch = find_queues(db, App(), [bad, good])
        watch.cancel()
        assert found[good].code is not None
        assert found[bad].code is not None or found[bad].problem
        work = Workload(db, App(), [bad, good], ROLES, WorkerCounts(), None)
        work.load()[1].cancel()
        assert any(job.task_id.queue == good for job in work.jobs)
        assert any(job.task_id.queue == bad for job in work.jobs) or work.problem(bad)


def test_a_configuration_is_read_or_refused(db: Any, name: str) -> None:
    config = configured(db, name, key=(str, int), value="any", combiner="last", observers=[top(3, every=0)])
    real = config.to_bytes()
    for rng in searched(300):
        try:
            found = QueueConfig.from_bytes(name, broken(real, rng))
        except CqError:
            continue
        found.settings()
        for number in range(min(found.buckets, 3)):
            QueueKeys(name).rows(found.generation, number)
        assert QueueConfig.from_bytes(name, found.to_bytes()).to_bytes() == found.to_bytes()  # NaN is no NaN


@pytest.mark.parametrize("kind", [BucketState, Flags])
def test_states_and_flags_are_read_or_refused(kind: Any) -> None:
    real = kind().to_bytes()
    for rng in searched(200):
        try:
            found = kind.from_bytes(broken(real, rng))
        except CorruptData:
            continue
        assert kind.from_bytes(found.to_bytes()) == found or "nan" in repr(found)
        if kind is Flags:
            found.is_paused(0.0)


def test_a_queue_with_a_broken_state_holds_up_no_other(db: Any, name: str) -> None:
    bad, good = f"{name}-bad", f"{name}-good"
    for queue in (bad, good):
        cq.configure(db, queue, buckets=1)
        add(db, queue, {"a": 1})
    write(db, QueueKeys(bad).state(1, 0), codec.encode([b"", True, b"\xff" * 50_000, 0, {}, 0, None]))

    with pytest.raises(CorruptData, match="state"):
        combine_all(db, bad)
    Worker(db, queues=[good]).drain()

    assert get(db, good, "a") == 1


def test_an_entry_set_aside_that_cannot_be_read_is_shown_and_not_added_again(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    begin = QueueKeys(name).aside()[0]
    for behind, value in (
        (b"", b""),
        (b"\xff", b"\x81\x01"),
        (b"\x00" * 40, codec.encode(["x", 1])),
        (b"\x01", b"\xa0"),
    ):
        write(db, begin + behind, value)

    found = aside(db, name)

    assert [each.encoded_key for each in found] == [b""] * 4
    with pytest.raises(CqError):
        retry_aside(db, name)
    assert len(transact(db, lambda tr: read_aside(tr, name))) == 4
    assert drop_aside(db, name) == 4


@pytest.mark.parametrize(
    "note", [b"", b"\xff", b"\x00" * 10 + b"\x81\x05", b"\x00" * 10 + b"\x81\x80", b"\x00" * 10 + b"\xf6"]
)
def test_a_note_of_an_attempt_that_cannot_be_read_makes_cautious(db: Any, name: str, note: bytes) -> None:
    seen: list[Any] = []

    def watch(tr: Any, changes: Any) -> None:
        seen.extend(changes)

    app = App()
    app.queue(name, observers=[watch])
    app.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    write(db, QueueKeys(name).attempt(1, 0, b"somebody"), note)

    combine_all(db, name, app)

    assert [change.new for change in seen] == [1]


def test_a_mark_that_cannot_be_read_is_an_error_that_says_so(db: Any, name: str) -> None:
    cq.configure(db, name)
    admin.limit(db, name, max_bytes=1_000)
    write(db, QueueKeys(name).full, codec.encode([1, {}]))

    with pytest.raises(CorruptData, match="full queue"):
        add(db, name, {"a": 1})


def test_a_purge_whose_mark_cannot_be_read_is_an_error_that_says_so(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    admin.purge(db, name)
    write(db, QueueKeys(name).purge, b"\xff" * 20_000)

    with pytest.raises(CorruptData, match="purge"):
        combine_all(db, name)
    assert transact(db, lambda tr: read_config(tr, name)).purges.latest == 1
