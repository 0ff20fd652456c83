"""The audit: balanced at every moment of whatever cq does, and not balanced after any kind of damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import admin
from cq.admin.audit import audit_findings, check_audit
from cq.encoding import codec
from cq.encoding.hashing import bucket_of, key_hash
from cq.failure import KeyFailure
from cq.keys import QueueKeys
from cq.keys.audit import AuditKeys
from cq.passes.combine_pass import Pass
from cq.passes.plan import PassPlan
from cq.queue.ledger import MODULUS, from_bytes, plain, to_bytes, weigh
from cq.queue.set_aside import drop_aside, retry_aside
from cq.store.transact import transact
from cq.testing import drain
from tests.kit import queues
from tests.kit.faults import (
    TOO_OLD,
    Calls,
    WrappedDatabase,
    WrappedTransaction,
)
from tests.kit.queues import STAGING, add, aside, begun, code_of, configured, stored


def total(db: Any, name: str) -> list[int]:
    """Added, stored, staged, waiting, aside and dropped of all buckets together, each of which is to be balanced."""
    found = list(check_audit(db, name))
    assert [str(each) for each in found if not each.is_balanced] == []
    figures = ("added", "stored", "staged", "waiting", "aside", "dropped")
    return [sum(getattr(each, what) for each in found) for what in figures]


# Whatever cq does


def test_what_happens_to_updates_is_in_the_figures(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1, audit=True)
    add(db, name, {"a": 1, "b": 20})
    add(db, name, {"a": 300}, {"a": 300}, once="id")
    assert total(db, name) == [621, 0, 0, 621, 0, 0]

    code = code_of(db, name)
    transact(db, lambda tr: Pass(tr, code, 0, PassPlan(STAGING, max_report=0)).run())  # stages all updates
    transact(
        db, lambda tr: Pass(tr, code, 0, PassPlan(STAGING, max_report=1, suspects=[codec.encode("a")])).run()
    )
    assert total(db, name) == [621, 20, 301, 0, 0, 300]
    transact(
        db,
        lambda tr: Pass(
            tr, code, 0, PassPlan(max_report=0, rejected={codec.encode("a"): KeyFailure("for this test")})
        ).run(),
    )
    assert total(db, name) == [621, 20, 0, 0, 301, 300]
    retry_aside(db, name)
    assert total(db, name) == [621, 20, 0, 301, 0, 300]
    transact(
        db,
        lambda tr: Pass(
            tr, code, 0, PassPlan(max_report=0, rejected={codec.encode("a"): KeyFailure("for this test")})
        ).run(),
    )
    drop_aside(db, name)
    assert total(db, name) == [621, 20, 0, 0, 0, 601]
    add(db, name, {"a": 5})
    transact(
        db,
        lambda tr: Pass(
            tr, code, 0, PassPlan(max_report=0, rejected={codec.encode("a"): KeyFailure("for this test")})
        ).run(),
    )
    add(db, name, {"a": 5})
    admin.purge(db, name)
    add(db, name, {"a": 7})
    drain(db, name)
    assert total(db, name) == [7, 7, 0, 0, 0, 0]


def test_a_row_that_is_not_of_cq_is_no_concern_of_the_audit(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1, audit=True)
    add(db, name, {"a": 1})
    transact(db, lambda tr: tr.set_versionstamped_key(QueueKeys(name).new_row(1, 0, 0), b"\xff"))
    assert total(db, name) == [1, 0, 0, 1, 0, 0]
    drain(db, name)
    assert len(aside(db, name)) == 1
    assert total(db, name) == [1, 1, 0, 0, 0, 0]
    drop_aside(db, name)
    assert total(db, name) == [1, 1, 0, 0, 0, 0]


# Damage


@pytest.fixture
def busy(db: Any, name: str) -> QueueKeys:
    """A queue in one bucket that has something everywhere: values, staged, waiting, repeated and set aside."""
    cq.configure(db, name, buckets=1, audit=True)
    words = [f"k{number}" for number in range(9)]
    add(db, name, dict.fromkeys(words, 1))
    drain(db, name)
    add(db, name, dict.fromkeys(words, 10))
    bad = codec.encode("k0")
    transact(
        db,
        lambda tr: Pass(
            tr,
            code_of(db, name),
            0,
            PassPlan(STAGING, max_report=0, rejected={bad: KeyFailure("for this test")}),
        ).run(),
    )
    add(db, name, {"k1": 100, "k2": 100})
    add(db, name, {"k1": 1000}, {"k1": 1000}, once="id")
    assert total(db, name) == [2299, 9, 80, 2200, 10, 0]
    return QueueKeys(name)


def lose(bounds: Callable[[QueueKeys], tuple[bytes, bytes]], db: Any, keys: QueueKeys) -> None:
    """Remove the first row of a range."""
    key, _ = stored(db, bounds(keys))[0]
    transact(db, lambda tr: tr.clear(key))


def put(bounds: Callable[[QueueKeys], tuple[bytes, bytes]], value: bytes, db: Any, keys: QueueKeys) -> None:
    """Replace the value of the first row of a range."""
    key, _ = stored(db, bounds(keys))[0]
    transact(db, lambda tr: tr.set(key, value))


def rows(keys: QueueKeys) -> tuple[bytes, bytes]:
    return keys.rows(1, 0)


def staged(keys: QueueKeys) -> tuple[bytes, bytes]:
    return keys.all_staged()


def row_twice(db: Any, keys: QueueKeys) -> None:
    key, value = stored(db, keys.rows(1, 0))[0]
    transact(db, lambda tr: tr.set(key[:-1] + bytes([key[-1] ^ 1]), value))


def swap(db: Any, keys: QueueKeys) -> None:
    """Exchange two different values: their sum is right."""
    (one, first), (other, second) = stored(db, keys.all_staged())[:2]
    queues.put(db, {one: codec.encode(3), other: codec.encode(17)})
    assert codec.decode(first) + codec.decode(second) == 20


def values_of(keys: QueueKeys) -> tuple[bytes, bytes]:
    return keys.values()


def move(db: Any, keys: QueueKeys) -> None:
    """Give a key's value to another key."""
    key, value = stored(db, keys.values())[0]
    transact(db, lambda tr: tr.clear(key))
    queues.put(db, {keys.value(codec.encode("other")): value})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (partial(lose, rows), "200 missing"),
        (partial(put, rows, b"\xff"), "200 missing"),
        (row_twice, "200 too much"),
        (partial(lose, values_of), "1 missing"),
        (partial(put, values_of, codec.encode(3)), "2 too much"),
        (partial(put, values_of, codec.encode(1 + 2**64)), "the sum is right, but not key by key"),
        (partial(put, values_of, codec.encode("1")), "1 missing"),
        (partial(put, values_of, b"\xff"), "1 missing"),
        (move, "the sum is right, but not key by key"),
        (swap, "the sum is right, but not key by key"),
        (partial(lose, staged), "10 missing"),
        (partial(put, staged, codec.encode(9)), "1 missing"),
        (partial(lose, QueueKeys.aside), "10 missing"),
        (partial(put, QueueKeys.aside, b"\xff"), "10 missing"),
    ],
)  # fmt: skip
def test_damage_is_found(db: Any, name: str, busy: QueueKeys, damage: Any, said: str) -> None:
    damage(db, busy)
    (line,) = audit_findings(db, name)
    assert said in line
    assert line.startswith("bucket 0 of the audit: added 2,299, stored ")

    if b"\xff" not in getattr(damage, "args", ()):
        drain(db, name)  # which does not hide it
        (line,) = audit_findings(db, name)
        assert said in line


def test_an_operation_that_counts_twice_is_found(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1, audit=True)
    add(db, name, {"a": 5}, {"a": 5}, once="id")
    drain(db, name)
    assert total(db, name) == [10, 5, 0, 0, 0, 5]
    transact(db, lambda tr: tr.clear_range(*QueueKeys(name).markers()))
    add(db, name, {"a": 5}, once="id")  # forgotten, so it counts, and was added, too
    drain(db, name)
    assert total(db, name) == [15, 10, 0, 0, 0, 5]

    add(db, name, {"a": 5}, once="id")
    lost = QueueKeys(name).value(codec.encode("a"))
    transact(db, lambda tr: tr.clear(lost))
    drain(db, name)
    (line,) = audit_findings(db, name)
    assert "10 missing" in line


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(-(2**140), 2**140))))
def test_sums_are_modulo_2_to_the_128_and_shown_modulo_2_to_the_64(pairs: list[tuple[bytes, int]]) -> None:
    weighed = sum(weigh(key, amount) for key, amount in pairs)
    amount = sum(amount for _, amount in pairs)

    assert (plain(weighed) - amount) % 2**64 == 0
    assert -(2**63) <= plain(weighed) < 2**63
    assert (from_bytes(to_bytes(weighed)) - weighed) % MODULUS == 0
    sums = Counter[bytes]()
    for key, each in pairs:
        sums[key] += each
    if all(-(2**31) < each < 2**31 for each in sums.values()):
        assert (weighed % MODULUS == 0) == (amount == 0 == sum(key_hash(key) * n for key, n in sums.items()))


# What it costs


def test_a_pass_writes_no_more_unless_it_leaves_a_row_out(db: Any, name: str) -> None:
    made = []
    for audit in (False, True):
        cq.configure(db, f"{name}-{audit}", buckets=1, audit=audit)
        for updates, once in (({"a": 1}, None), ({"b": 1}, "id"), ({"b": 1}, "id")):
            add(db, f"{name}-{audit}", updates, once=once)
            code, tr = code_of(db, f"{name}-{audit}"), Calls(begun(db, f"{name}-{audit}"))
            Pass(tr, code, 0).run()
            tr.inner.commit().wait()
            made.append([each for each in tr.made if each not in ("get", "get_read_version")])

    without, with_audit = made[:3], made[3:]
    assert with_audit[:2] == without[:2]
    assert Counter(with_audit[2]) - Counter(without[2]) == Counter(["add"])


# Turning it on and off


def test_an_audit_that_is_on_stays_as_it_is(db: Any, name: str) -> None:
    first = configured(db, name, buckets=4, audit=True)
    assert first.settings()["audit"] is True
    add(db, name, {"a": 1})

    assert configured(db, name) == configured(db, name, audit=True) == first
    assert total(db, name) == [1, 0, 0, 1, 0, 0]


def test_an_audit_that_is_turned_off_leaves_nothing(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=4)
    add(db, name, {"a": 1, "b": 1})
    on = configured(db, name, audit=True)
    assert on.audit is not None
    bounds = AuditKeys(name).of_generation(on.audit.generation)
    assert len(stored(db, bounds)) > 4

    assert configured(db, name, audit=False).audit is None
    assert stored(db, bounds) == []
    with pytest.raises(
        cq.errors.InvalidConfiguration, match=f"no audit: turn it on with `cq configure {name} --audit`"
    ):
        check_audit(db, name)


@pytest.mark.parametrize(
    "settings",
    [{"value": "decimal"}, {"value": "any"}, {"combiner": "maximum"}, {"value": "str", "combiner": "last"}],
)
def test_only_sums_of_int_have_an_audit(db: Any, name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(
        cq.errors.InvalidConfiguration, match="expected values of int and the combiner sum for an audit"
    ):
        cq.configure(db, name, **settings, audit=True)
    cq.configure(db, name, **settings)
    with pytest.raises(
        cq.errors.InvalidConfiguration, match="expected values of int and the combiner sum for an audit"
    ):
        cq.configure(db, name, audit=True)
    with pytest.raises(cq.errors.QueueNotConfigured):
        check_audit(db, f"{name}-none")


def test_an_audit_cannot_begin_in_the_middle_of_a_purge(db: Any, name: str) -> None:
    cq.configure(db, name)
    add(db, name, {"a": 1})
    admin.purge(db, name)

    with pytest.raises(cq.errors.NotNow, match="is still being purged"):
        cq.configure(db, name, audit=True)


class Hooked(WrappedDatabase):
    """A database that does something before it makes its n-th transaction."""

    def __init__(self, db: Any, hooks: Mapping[int, Callable[[], object]]) -> None:
        super().__init__(db)
        self.hooks, self.made = hooks, 0

    def create_transaction(self) -> Any:
        self.made += 1
        self.hooks.get(self.made, lambda: None)()
        return super().create_transaction()


def stop() -> None:
    raise InterruptedError


def test_turning_it_on_can_be_broken_off_and_done_again(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=2)
    add(db, name, {f"k{number}": 1 for number in range(20)})
    with pytest.raises(InterruptedError):
        cq.configure(Hooked(db, {5: stop}), name, audit=True)
    add(db, name, {f"k{number}": 1 for number in range(20)})

    first, second = check_audit(db, name)
    assert first.is_balanced
    assert str(second) == (
        "bucket 1 of the audit is not checked: it holds data that the audit does not include yet: "
        f"run `cq configure {name} --audit` again"
    )
    cq.configure(db, name, audit=True)
    assert total(db, name) == [40, 0, 0, 40, 0, 0]
    cq.configure(Hooked(db, {3: stop}), name, audit=True)  # which reads nothing again


def test_what_two_include_at_once_counts_once(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 5})
    hooked = Hooked(db, {4: lambda: cq.configure(db, name, audit=True)})  # behind the other one's reading

    cq.configure(hooked, name, audit=True)

    assert total(db, name) == [5, 0, 0, 5, 0, 0]


# Buckets that take more than one transaction to read


class Slow(WrappedDatabase):
    """A database whose transactions are too old after so many rows of ranges."""

    def __init__(self, db: Any, rows: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(db)
        self.rows, self.meanwhile, self.made = rows, meanwhile, 0

    def create_transaction(self) -> Any:
        self.made += 1
        return SlowTransaction(self, self.inner.create_transaction())


class SlowTransaction(WrappedTransaction):
    def __init__(self, slow: Slow, tr: Any) -> None:
        super().__init__(slow, tr)
        self._slow, self._left = slow, slow.rows

    @property
    def snapshot(self) -> Any:
        return self

    def get(self, key: bytes) -> Any:
        return self.inner.snapshot.get(key)

    def on_error(self, code: int) -> Any:
        """Begin again, as the transaction of a retry."""
        self._left = self._slow.rows
        self._slow.made += 1
        return self.inner.on_error(code)

    def get_range(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for row in self.inner.snapshot.get_range(*args, **kwargs):
            if not self._left:
                self._slow.meanwhile()
                raise self._slow.error(TOO_OLD)
            self._left -= 1
            yield row


@pytest.fixture
def large(db: Any, name: str) -> str:
    """A queue in one bucket with 60 values, 40 staged, and 5 rows that wait."""
    cq.configure(db, name, buckets=1, audit=True)
    add(db, name, {f"k{number}": 1 for number in range(60)})
    drain(db, name)
    add(db, name, {f"k{number}": 1 for number in range(40)})
    transact(db, lambda tr: Pass(tr, code_of(db, name), 0, PassPlan(STAGING, max_report=0)).run())
    add(db, name, *[{"a": 1}] * 5)
    return name


def test_a_bucket_is_read_in_several_transactions_while_no_pass_writes_to_it(db: Any, large: str) -> None:
    slow = Slow(db, 30, lambda: add(db, large, {"more": 1}))
    (found,) = check_audit(slow, large)

    assert found.is_balanced, str(found)
    assert (found.stored, found.staged, found.waiting) == (60, 40, 8)
    assert slow.made == 1 + 4


def test_a_pass_in_between_makes_it_begin_anew(db: Any, large: str) -> None:
    slow = Slow(db, 60, lambda: drain(db, large) if slow.made == 2 else None)
    (found,) = check_audit(slow, large)

    assert found.is_balanced, str(found)
    assert (found.stored, found.staged, found.waiting) == (105, 0, 0)
    assert slow.made == 1 + 3


def test_a_pass_over_a_part_of_it_in_between_makes_it_begin_anew(db: Any, large: str) -> None:
    """The queue has three buckets by now, and the audit still has one."""
    admin.rebucket(db, large, 3)
    drain(db, large)
    keys = sorted((f"k{number}" for number in range(60)), key=lambda key: key_hash(codec.encode(key)))
    key = next(key for key in keys if bucket_of(codec.encode(key), 3) == 2)
    add(db, large, {key: 1})
    slow = Slow(db, 60, lambda: drain(db, large) if slow.made == 2 else None)
    (found,) = check_audit(slow, large)

    assert found.is_balanced, str(found)
    assert (found.stored, found.waiting) == (106, 0)


def test_a_large_bucket_that_passes_write_to_is_said_to_be_unknown(db: Any, large: str) -> None:
    def write() -> None:
        add(db, large, {"more": 1})
        drain(db, large)

    (found,) = check_audit(Slow(db, 60, write), large)

    assert not found.is_balanced
    assert "more than can be read at one version while passes write to it: pause" in found.unknown
    cq.configure(db, large, audit=False)
    with pytest.raises(
        cq.errors.NotNow, match=f"pause the queue .* run `cq configure {large} --audit` again"
    ):
        cq.configure(Slow(db, 60, write), large, audit=True)


def test_what_waits_has_to_be_read_at_one_version(db: Any, large: str) -> None:
    (found,) = check_audit(Slow(db, 3), large)

    assert "when little is queued" in found.unknown
    assert list(audit_findings(Slow(db, 6), large)) == []
