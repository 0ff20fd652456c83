"""Ages told by versions: a jump of versions, as a recovery makes it, ages nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import admin, runtime
from cq.bucket.attempt_notes import Attempts
from cq.keys import QueueKeys
from cq.observers.scheduling.members import MemberReport, read_members
from cq.observers.scheduling.membership import Membership
from cq.passes.plan import Limits
from cq.queue import limits as pressure
from cq.queue.limits import compare
from cq.queue.operation_ids import Trim
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.transact import transact
from cq.store.version_clock import UNSEEN_SECONDS, VersionClock
from tests.kit.clocks import Jumping, jumping
from tests.kit.observing import Seen
from tests.kit.queues import add, configured, stored
from tests.passes.passhelpers import one_pass

RECOVERY = 100.0
"""By how many seconds a recovery of a cluster moves versions on."""


@pytest.fixture
def clock() -> Iterator[Jumping]:
    with jumping() as clock:
        yield clock


@pytest.fixture
def opened(tmp_path: Path, clock: Jumping) -> Iterator[Callable[[], Any]]:
    """Opens a store again and again: each time as another process, which has seen nothing."""
    handles: list[Any] = []

    def opened() -> Any:
        handles.append(cq.open(f"embedded:{tmp_path / 'jumping.db'}"))
        return handles[-1]

    yield opened
    for handle in handles:
        handle.close()


def beaten(db: Any, **settings: Any) -> Membership:
    """A worker that has beaten."""
    membership = Membership(db, **settings)
    membership.beat(MemberReport())
    return membership


class TestLimits:
    """A queue limited by seconds."""

    @pytest.fixture(autouse=True)
    def _always_looking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pressure, "CHECK_SECONDS", 0.0)

    @pytest.mark.parametrize("is_new", [False, True], ids=["worker that lived on", "worker that starts then"])
    def test_a_jump_fills_no_queue_and_waiting_does(
        self, opened: Callable[[], Any], clock: Jumping, is_new: bool
    ) -> None:
        db = opened()
        cq.configure(db, "words")
        admin.limit(db, "words", max_age=30)
        worker = beaten(db)
        add(db, "words", {"a": 1})

        clock.jumped += RECOVERY
        if is_new:
            worker = beaten(opened())
        db = worker._db
        assert compare(db, "words") == ""
        add(db, "words", {"a": 1})
        worker.beat(MemberReport())
        assert compare(db, "words") == ""

        clock.passed += 20
        worker.beat(MemberReport())
        assert compare(db, "words") == ""
        clock.passed += 11
        worker.beat(MemberReport())
        assert compare(db, "words") == "the oldest update has waited longer than 30 s"
        with pytest.raises(cq.QueueFull):
            add(db, "words", {"a": 1})

    def test_a_worker_that_starts_leaves_a_full_queue_full(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        db = opened()
        cq.configure(db, "words")
        admin.limit(db, "words", max_age=30)
        beaten(db)
        add(db, "words", {"a": 1})
        clock.passed += 31
        beaten(db)
        assert compare(db, "words")

        later = opened()
        beaten(later)
        assert compare(later, "words")
        with pytest.raises(cq.QueueFull):
            add(later, "words", {"a": 1})


class TestMembers:
    """Workers that live, and those that are dead."""

    def test_a_worker_that_starts_after_a_jump_takes_no_live_worker_for_dead(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        live = [beaten(opened()) for _ in range(3)]
        clock.jumped += RECOVERY

        new = beaten(opened())

        assert {each.id for each in new.others} == {each.id for each in live}
        assert ids(new._db) == {new.id, *(each.id for each in live)}

    def test_a_worker_that_lived_on_takes_no_live_worker_for_dead(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        first, other = beaten(opened()), beaten(opened())
        first.beat(MemberReport())
        other.beat(MemberReport())  # a beat that the first one has not seen before the jump
        clock.passed += 1
        clock.jumped += RECOVERY

        first.beat(MemberReport())

        assert [each.id for each in first.others] == [other.id]

    def test_one_that_is_dead_is_found_after_its_beats_have_been_missed(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        dead = beaten(opened(), every=4.0)
        clock.jumped += RECOVERY
        new = beaten(opened())
        for _ in range(3):
            assert [each.id for each in new.others] == [dead.id]
            clock.passed += 1.1  # in its first beats a worker says that it will beat again in a second
            new.beat(MemberReport())
        assert new.others == []

    def test_one_that_is_dead_for_very_long_is_so_at_first_sight(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        beaten(opened())
        clock.passed += UNSEEN_SECONDS + 100
        assert beaten(opened()).others == []


def ids(db: Any) -> set[bytes]:
    return {each.id for each in transact(db, lambda tr: read_members(tr.snapshot))}


class TestPasses:
    """What else goes by ages."""

    def test_a_jump_makes_no_overload(self, opened: Callable[[], Any], clock: Jumping) -> None:
        db = opened()
        seen = Seen()
        app = seen.app("words")
        app.configure(db, "words", buckets=1)
        add(db, "words", *({f"k{number}": 1} for number in range(20)))
        limits = Limits(read_bytes=100, overload_seconds=5.0, repack_bytes=0)
        beaten(db)
        one_pass(db, "words", app, limits=limits)
        assert seen.values == {}

        clock.jumped += RECOVERY
        add(db, "words", {"later": 1})
        one_pass(db, "words", app, limits=limits)
        assert seen.values == {}

        clock.passed += 6
        add(db, "words", {"later": 1})
        one_pass(db, "words", app, limits=limits)
        assert seen.values != {}

    def test_notes_of_live_workers_are_not_old_after_a_jump(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        db = opened()
        config = configured(db, "words", buckets=1)
        first, second, third = (Attempts(db, config, 0) for _ in range(3))
        first.begin(10.0)
        clock.jumped += RECOVERY
        second.begin(10.0)
        assert not second.cautious
        clock.passed += 11
        third.begin(10.0)
        assert third.cautious

    def test_an_operation_id_is_remembered_for_a_day_whatever_jumps(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        db = opened()
        cq.configure(db, "words", buckets=1)
        worker = beaten(db)
        add(db, "words", {"a": 1}, once="id")
        one_pass(db, "words")
        for _ in range(3):
            clock.jumped += 40_000.0
            clock.passed += 1
            worker.beat(MemberReport())
        assert_remembered_for_a_day(db, worker, clock)

    def test_an_operation_id_is_remembered_for_a_day_if_the_clock_was_ahead_for_a_moment(
        self, opened: Callable[[], Any], clock: Jumping
    ) -> None:
        """By workers, too, that start when it is right again."""
        db = opened()
        cq.configure(db, "words", buckets=1)
        add(db, "words", {"a": 1}, once="id")
        clock.jumped = 3 * 86_400.0
        add(db, "words", {"b": 1})
        clock.jumped = 0.0
        db = opened()
        worker = beaten(db)
        one_pass(db, "words")
        assert_remembered_for_a_day(db, worker, clock)


def assert_remembered_for_a_day(db: Any, worker: Membership, clock: Jumping) -> None:
    """The operation id of queue `words` is stored now, and no more after a day."""
    trim(db)
    assert len(stored(db, QueueKeys("words").markers())) == 1
    for _ in range(3):
        clock.passed += 40_000.0
        worker.beat(MemberReport())
    trim(db)
    assert stored(db, QueueKeys("words").markers()) == []


def trim(db: Any) -> None:
    look = Trim(db, "words")
    while look.step():
        pass


STEPS = st.lists(
    st.tuples(
        st.floats(0.001, 20),  # seconds that pass
        st.sampled_from([0, 0, 0, 50, RECOVERY, 500]),  # by how many seconds versions jump meanwhile
        st.booleans(),  # before or after these seconds
        st.booleans(),  # whether a commit is observed, or a read version
    ),
    min_size=1,
    max_size=20,
)


class Set(runtime.Machine):
    """A machine whose clock the test sets."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@given(STEPS)
def test_ages_are_those_of_a_clock_that_never_jumps(steps: list[tuple[float, float, bool, bool]]) -> None:
    """No age is too low; for each jump it is too high by the time between two commits at most."""
    clock, world = VersionClock(), Set()
    ahead = gap = max_gap = 0.0

    def version() -> int:
        return round((world.now + ahead) * VERSIONS_PER_SECOND)

    with runtime.using(world):
        made = [(world.now, version())]
        clock.observe(version(), world.now)
        for seconds, jump, is_first, is_commit in steps:
            ahead += jump if is_first else 0
            world.now += seconds
            made.append((world.now, version()))
            ahead += 0 if is_first else jump
            clock.observe(version(), world.now if is_commit else None)
            made.append((world.now, version()))
            gap += seconds
            max_gap = max(max_gap, gap)
            gap = 0.0 if is_commit else gap
        now, jumps = version(), sum(jump > 0 for _, jump, _, _ in steps)
        ages = [(world.now - at, clock.age(each, now)) for at, each in made]
        for true, age in ages:
            assert true - 0.001 <= age <= true + jumps * max_gap + 0.001
            assert clock.age(clock.before(now, true), now) >= true - 0.001
        assert all(before >= after for (_, before), (_, after) in pairwise(ages))
        assert [clock.sure_age(each, now) for _, each in made] == [age for _, age in ages]


def test_what_was_before_the_first_version_is_sure_only_beyond_ten_recoveries() -> None:
    clock = VersionClock()
    first = 5_000 * VERSIONS_PER_SECOND
    clock.observe(first, runtime.monotonic())
    now = first + 3 * VERSIONS_PER_SECOND
    assert clock.sure_age(first, now) == 3
    assert clock.sure_age(first - 999 * VERSIONS_PER_SECOND, now) == 3
    assert clock.sure_age(first - 1_500 * VERSIONS_PER_SECOND, now) == 503
    assert clock.age(first - 1_500 * VERSIONS_PER_SECOND, now) == 1_503
