"""Sharing out: every task belongs to one worker, few move when one comes or goes, and none to one that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq import keys
from cq.errors import CorruptData
from cq.keys import membership as workerkeys
from cq.observers.scheduling.members import ROLES, Member, MemberReport, TaskId, kinds_of, order, read_members
from cq.observers.scheduling.membership import Membership
from cq.store.transact import transact
from tests.kit.clocks import Jumping, jumping

SHARES = [TaskId("combine", f"q{queue}", number) for queue in range(25) for number in range(16)]


def member(number: int, **what: Any) -> Member:
    given: dict[str, Any] = {
        "id": number.to_bytes(8, "big"),
        "stamp": b"\0" * 10,
        "every": 4.0,
        "roles": frozenset(ROLES),
        "kinds": kinds_of(what.get("roles", ROLES)),
        "queues": None,
        "host": "here",
        "pid": 1,
        "report": MemberReport(),
    }
    return Member(**{**given, **what})


def owner(share: TaskId, members: list[Member]) -> bytes | None:
    return next(iter(order(share, members)), None)


@pytest.fixture
def clock() -> Iterator[Jumping]:
    """Time passes when the test says so."""
    with jumping() as found:
        yield found


class TestOwner:
    """Rendezvous hashing."""

    @given(st.sets(st.integers(0, 10**6), min_size=1, max_size=12))
    def test_a_worker_more_or_less_moves_only_its_own_tasks(self, numbers: set[int]) -> None:
        members = [member(number) for number in numbers]
        before = {share: owner(share, members) for share in SHARES[:80]}
        for gone in members:
            after = {share: owner(share, [each for each in members if each != gone]) for share in before}
            moved = {share for share in before if before[share] != after[share]}
            assert moved == {share for share in before if before[share] == gone.id}

    def test_tasks_are_shared_out_about_evenly(self) -> None:
        members = [member(number) for number in range(8)]
        owners = [owner(share, members) for share in SHARES]
        counts = [owners.count(each.id) for each in members]
        assert min(counts) > 25
        assert max(counts) < 80

    def test_a_task_goes_to_those_that_do_it(self) -> None:
        members = [
            member(1, roles=frozenset({"link"})),
            member(2, queues=frozenset({"other"})),
            member(3, report=MemberReport(lacking=frozenset({"q"}))),
            member(4),
        ]
        assert {owner(TaskId("combine", "q", number), members) for number in range(20)} == {members[3].id}
        assert owner(TaskId("combine", "q", 1), members[:3]) is None

    def test_one_link_of_a_queue_can_be_left_alone(self) -> None:
        members = [member(1, report=MemberReport(lacking=frozenset({"link/q/3"}))), member(2)]
        shares = [TaskId.of_link("q", 3, number) for number in range(9)]
        assert {owner(share, members) for share in shares} == {members[1].id}
        others = {owner(TaskId.of_link("q", 4, number), members) for number in range(9)}
        assert others == {each.id for each in members}
        assert owner(TaskId("combine", "q", 0), members[:1]) == members[0].id

    @pytest.mark.parametrize("kind", ["trim", "expiry", "settle", "combine"])
    def test_a_worker_is_not_counted_on_for_kinds_that_it_does_not_announce(self, kind: str) -> None:
        other = member(1, kinds=kinds_of(ROLES) - {kind})
        members = [other, member(2)]
        shares = [TaskId(kind, f"q{number}", 0) for number in range(20)]
        assert {owner(share, members) for share in shares} == {members[1].id}
        assert {owner(share, [member(1), member(2)]) for share in shares} == {each.id for each in members}
        assert owner(TaskId("publish", "q", 0), [other]) == other.id

    def test_limits_are_looked_at_also_where_nobody_combines(self) -> None:
        paused = [member(1, report=MemberReport(lacking=frozenset({"q"})))]
        assert owner(TaskId("combine", "q", 0), paused) is None
        assert owner(TaskId("limit", "q", 0), paused) == paused[0].id
        assert owner(TaskId("limit", "q", 0), [member(1, roles=frozenset({"link"}))]) is None

    def test_a_worker_that_is_stuck_in_a_task_loses_it_to_the_next_in_order(self) -> None:
        members = [member(number) for number in range(4)]
        share = SHARES[0]
        first = owner(share, members)
        rest = [each for each in members if each.id != first]
        second = owner(share, rest)
        stuck = [
            member(int.from_bytes(each.id), report=MemberReport(stuck=frozenset({str(share)})))
            if each.id == first
            else each
            for each in members
        ]

        assert owner(share, stuck) == second
        assert order(share, stuck)[-1] == first
        assert owner(SHARES[1], stuck) == owner(SHARES[1], members)
        everyone = [member(number, report=MemberReport(stuck=frozenset({str(share)}))) for number in range(4)]
        assert owner(share, everyone) == first


class TestMembership:
    """Coming, beating, going, and being taken for gone."""

    @pytest.fixture(autouse=True)
    def _empty(self, db: Any) -> None:
        transact(db, lambda tr: tr.clear_range(*workerkeys.workers()))

    def test_workers_see_each_other_come_and_leave(self, db: Any) -> None:
        first, second = Membership(db), Membership(db)
        assert first.beat(MemberReport())
        assert not first.beat(MemberReport())
        assert all(first.is_mine(share) for share in SHARES)
        second.beat(MemberReport())
        assert first.beat(MemberReport())
        assert {share for share in SHARES if first.is_mine(share)} == {
            share for share in SHARES if not second.is_mine(share)
        }
        second.leave(1.0)
        assert first.beat(MemberReport())
        assert all(first.is_mine(share) for share in SHARES)

    def test_one_that_beats_no_more_is_gone_after_several_reads_and_long_enough(
        self, db: Any, clock: Jumping
    ) -> None:
        first, second = Membership(db), Membership(db)
        second.beat(MemberReport())
        first.beat(MemberReport())
        for _ in range(10):  # reads alone do not count
            assert not first.beat(MemberReport())
        clock.passed += 1000  # nor does time alone, after a suspension of this worker say
        second.beat(MemberReport())
        assert not first.beat(MemberReport())
        for _ in range(2):
            clock.passed += 5
            assert not first.beat(MemberReport())
        clock.passed += 5
        assert first.beat(MemberReport())
        assert all(first.is_mine(share) for share in SHARES)
        assert ids(db) == [first.id]

    def test_one_that_was_busy_is_missed_sooner(self, db: Any, clock: Jumping) -> None:
        first, second = Membership(db), Membership(db)
        second.beat(MemberReport(), is_busy=True)
        first.beat(MemberReport())
        for _ in range(3):
            clock.passed += 1.1
            gone = first.beat(MemberReport())
        assert gone
        assert ids(db) == [first.id]

    def test_one_in_place_of_a_dead_one_has_its_tasks_at_once(self, db: Any) -> None:
        first, dead = Membership(db), Membership(db, identity="b-0")
        dead.beat(MemberReport())
        first.beat(MemberReport())
        mine = [share for share in SHARES if first.is_mine(share)]
        again = Membership(db, identity="b-0")
        assert again.beat(MemberReport())
        assert not first.beat(MemberReport())
        assert [share for share in SHARES if first.is_mine(share)] == mine
        assert [share for share in SHARES if not again.is_mine(share)] == mine

    def test_one_that_is_taken_for_gone_comes_back_with_its_next_beat(self, db: Any, clock: Jumping) -> None:
        first, second = Membership(db), Membership(db)
        second.beat(MemberReport())
        for _ in range(5):
            first.beat(MemberReport())
            clock.passed += 5
        assert ids(db) == [first.id]
        watch = transact(db, lambda tr: tr.watch(workerkeys.WORKERS_CHANGED))
        second.beat(MemberReport())
        watch.wait()
        assert first.beat(MemberReport())
        assert not all(first.is_mine(share) for share in SHARES)

    def test_a_row_of_long_ago_counts_for_nobody_from_the_first(self, db: Any) -> None:
        """After all workers were killed, the first one that starts need not wait."""
        dead = Membership(db, every=1e-6)
        dead.beat(MemberReport())
        transact(db, lambda tr: tr.set(b"other", b""))
        first = Membership(db)
        first.beat(MemberReport())
        assert all(first.is_mine(share) for share in SHARES)
        assert ids(db) == [first.id]

    def test_what_a_worker_says_of_itself_is_read_by_the_others(self, db: Any) -> None:
        worker = Membership(db, ["link"], ["a", "b"])
        report = MemberReport(
            frozenset({"a"}), frozenset({"link/b/1"}), {"totals": {"passes": 3}}, frozenset({"c"})
        )
        worker.beat(report)
        (found,) = transact(db, lambda tr: read_members(tr.snapshot))
        assert (found.roles, found.queues) == (frozenset({"link"}), frozenset({"a", "b"}))
        assert found.report == report

    def test_a_task_of_a_kind_that_others_do_not_announce_is_done_here(self, db: Any) -> None:
        """Workers of another version beat beside this one, with rows that list fewer kinds."""
        first, fewer, other = Membership(db), Membership(db), Membership(db)
        first.beat(MemberReport())
        fewer.me = replace(fewer.me, kinds=fewer.me.kinds - {"settle"})
        other.me = replace(other.me, kinds=other.me.kinds - {"settle", "trim"})
        for each in (fewer, other):
            transact(db, partial(store_row, worker=each.id, row=each.me.to_bytes()))
        assert first.beat(MemberReport())

        assert all(first.is_mine(TaskId("settle", f"q{number}", 0)) for number in range(20))
        assert not all(first.is_mine(share) for share in SHARES)  # passes are shared with both
        trimming = [first.is_mine(TaskId("trim", f"q{number}", 0)) for number in range(30)]
        assert any(trimming)
        assert not all(trimming)  # shared with the one that announces it

    def test_a_worker_announces_the_kinds_of_its_roles(self, db: Any) -> None:
        Membership(db, ["link", "measure"]).beat(MemberReport())
        (found,) = transact(db, lambda tr: read_members(tr.snapshot))
        assert found.kinds == {"link", "measure"}

    def test_one_that_cannot_say_all_that_it_leaves_alone_does_nothing(self, db: Any) -> None:
        first, second = Membership(db), Membership(db)
        first.beat(MemberReport())
        second.beat(MemberReport(lacking=frozenset(f"{'long' * 20}-{number}" for number in range(2_000))))
        first.beat(MemberReport())
        assert not any(second.is_mine(share) for share in SHARES)
        assert all(first.is_mine(share) for share in SHARES)
        second.beat(MemberReport())
        first.beat(MemberReport())
        assert any(second.is_mine(share) for share in SHARES)

    def test_a_row_that_cannot_be_read_stands_for_nobody(self, db: Any) -> None:
        transact(db, lambda tr: tr.set(workerkeys.worker(b"12345678"), b"nonsense"))
        first = Membership(db)
        first.beat(MemberReport())
        assert all(first.is_mine(share) for share in SHARES)

    @pytest.mark.parametrize("value", [b"", b"\0" * 10, b"\0" * 10 + b"\x80", b"\0" * 10 + b"\xa1aa\x01"])
    def test_a_row_that_is_not_cqs_is_said(self, value: bytes) -> None:
        with pytest.raises(CorruptData):
            Member.of_row(workerkeys.worker(b"12345678"), value)


def store_row(tr: Any, worker: bytes, row: bytes) -> None:
    """Store the row of a worker as its beat does."""
    tr.set_versionstamped_value(workerkeys.worker(worker), bytes(10) + row + bytes(4))
    tr.set_versionstamped_value(workerkeys.WORKERS_CHANGED, keys.INCOMPLETE_VERSIONSTAMP)


def ids(db: Any) -> list[bytes]:
    return [each.id for each in transact(db, lambda tr: read_members(tr.snapshot))]
