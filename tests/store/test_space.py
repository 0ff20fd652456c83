"""Spaces: two prefixes in one store never see each other, and no key of cq is outside of its prefix."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.purging import delete
from cq.cells import Cells
from cq.errors import InvalidConfiguration, InvalidUrl, QueueNotConfigured
from cq.feeds import Feed
from cq.keys import prefix_end
from cq.observers.monitoring.diagnosis import doctor
from cq.observers.top import CloudReader, top
from cq.observers.worker.worker import Worker
from cq.store import Space, absolute, open_exactly, store_of
from cq.store.embedded import Database, KeySelector
from cq.store.embedded.transaction import Transaction
from cq.store.space import SpaceDatabase, SpaceTransaction
from cq.store.transact import transact
from cq.testing import assert_drained, assert_values, drain
from cq.verify.queue import verify
from tests.conftest import cluster_url

QUEUE = "words"
WORDS = cq.CombineQueue(QUEUE)


@pytest.fixture(params=["embedded", pytest.param("cluster", marks=pytest.mark.cluster)])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database of each store, as the application opens it."""
    if request.param == "cluster":
        yield cq.open(cluster_url(), prefix=b"cq/")
        return
    with Database(tmp_path / "whole.db", power_safe=False) as db:
        yield db


@pytest.fixture
def spaces(whole: Any) -> Iterator[tuple[Space, Space]]:
    """Two spaces of the store, one of them named, one with a prefix in bytes that ends with 255."""
    drawn = secrets.token_hex(6)
    both = Space(drawn), Space(b"\x15" + drawn.encode() + b"\xff")
    yield both
    for space in both:
        whole.clear_range(space.prefix, prefix_end(space.prefix))


def test_two_spaces_have_queues_of_one_name_in_one_transaction(whole: Any, spaces: Any) -> None:
    one, other = spaces
    cq.configure(one.database(whole), QUEUE, observers=[top(2)])
    cq.configure(other.database(whole), QUEUE, key="int", combiner="maximum", buckets=3)

    def add(tr: Any) -> None:
        WORDS.add(one.transaction(tr), {"a": 1, "b": 2})
        WORDS.add(other.transaction(tr), {7: 4})
        WORDS.add(other.transaction(tr), {7: 3})

    transact(whole, add)
    drain(one.database(whole))
    assert_values(one.database(whole), QUEUE, {"a": 1, "b": 2})
    assert_values(other.database(whole), QUEUE, {})
    drain(other.database(whole))
    assert_values(other.database(whole), QUEUE, {7: 4})
    cloud = transact(one.database(whole), lambda tr: CloudReader(QUEUE).read(tr.snapshot))
    assert [entry.key for entry in cloud.entries] == ["b", "a"]


def test_a_view_reads_its_own_adds_as_the_store_does(whole: Any, spaces: Any) -> None:
    one, other = spaces
    for space in spaces:
        cq.configure(space.database(whole), QUEUE)
    tr = whole.create_transaction()
    WORDS.add(one.transaction(tr), {"a": 1})

    with pytest.raises(cq.errors.PendingUnreadable):
        WORDS.get(one.transaction(tr), "a", pending=True)
    assert WORDS.get(other.transaction(tr), "a", pending=True) is None


def test_own_adds_are_noticed_if_the_transaction_hides_them(whole: Any, spaces: Any) -> None:
    one, _ = spaces
    cq.configure(one.database(whole), QUEUE)
    tr = whole.create_transaction()
    tr.options.set_read_your_writes_disable()
    WORDS.add(one.transaction(tr), {"a": 1})

    with pytest.raises(cq.errors.PendingUnreadable):
        WORDS.get(one.transaction(tr), "a", pending=True)


def test_workers_and_operators_see_their_own_space_only(whole: Any, spaces: Any) -> None:
    one, other = (space.database(whole) for space in spaces)
    cq.configure(one, QUEUE)
    with pytest.raises(QueueNotConfigured):
        transact(other, lambda tr: WORDS.add(tr, {"a": 1}))
    cq.configure(other, QUEUE)
    for db in (one, other):
        transact(db, lambda tr: WORDS.add(tr, {"a": 1}))

    Worker(one, queues=[QUEUE]).drain()
    assert_values(one, QUEUE, {"a": 1})
    assert_values(other, QUEUE, {})
    assert list(verify(one, QUEUE)) == list(verify(other, QUEUE)) == []

    delete(one, QUEUE)
    drain(other)
    assert_values(other, QUEUE, {"a": 1})


def test_no_key_is_outside_of_the_prefix(tmp_path: Path) -> None:
    with Database(tmp_path / "one.db", power_safe=False) as whole:
        db = Space("staging").database(whole)
        cq.configure(db, QUEUE, observers=[top(2)], audit=True)
        cq.configure(db, "recent", window=(60, 1))
        Feed("chat").configure(db, numbers=True)
        transact(db, lambda tr: WORDS.add(tr, {"a": 1}, once="first"))
        transact(db, lambda tr: cq.CombineQueue("recent").add(tr, {"a": 1}))
        transact(db, lambda tr: Feed("chat").append_to_group(tr, "all", "hello"))
        transact(db, lambda tr: Feed("chat").append(tr, "ann", "hello"))
        admin.limit(db, QUEUE, max_bytes=1_000_000)
        drain(db)
        with Cells(db) as cells:
            cells.add_cell("here", f"embedded:{tmp_path / 'cell.db'}")
            cells.place("ada")
        Worker(db).drain()

        found = Counter(row.key.partition(b"/")[0] for row in whole.get_range(b"", b"\xff"))
        assert list(found) == [b"staging"]
        assert found[b"staging"] > 20
        assert_drained(db)


def test_keys_of_the_application_stay_where_they_are(whole: Any, spaces: Any) -> None:
    one, _ = spaces
    key = one.prefix + b"\x00of the application"

    def write(tr: Any) -> None:
        view = one.transaction(tr)
        view[key] = b"1"
        view.set_versionstamped_key(key + bytes(10) + len(key).to_bytes(4, "little"), b"2")
        view.add(key + b"n", b"\x05")

    transact(whole, write)
    rows = transact(one.database(whole), lambda tr: tr[key : prefix_end(key)].to_list())
    assert [row.value for row in rows] == [b"1", b"2", b"\x05"]
    assert all(row.key.startswith(key) for row in rows)


@pytest.mark.parametrize(("kind", "view"), [(Transaction, SpaceTransaction), (Database, SpaceDatabase)])
def test_a_view_places_the_keys_of_every_method_that_takes_keys(
    tmp_path: Path, kind: type, view: type
) -> None:
    without_keys = {
        *(
            "options",
            "snapshot",
            "db",
            "path",
            "is_local",
            "copy_to",
            "copied_at",
            "close",
            "transact",
            "create_transaction",
            "cq_noted",
        ),
        *("get_read_version", "set_read_version", "commit", "on_error", "reset", "cancel"),
        *("get_committed_version", "get_versionstamp", "get_approximate_size"),
    }
    with Database(tmp_path / "one.db", power_safe=False) as whole:
        seen = Spy(whole if kind is Database else whole.create_transaction())
        viewed: Any = (
            SpaceDatabase(seen, b"P/")
            if kind is Database
            else SpaceTransaction(SpaceDatabase(whole, b"P/"), seen)
        )
        methods = {name for name in dir(kind) if name[0] != "_"} - without_keys
        for method in methods:
            seen.keys.clear()
            getattr(viewed, method)(*ARGUMENTS.get(method, (b"cq/k", b"cq/l")))
            assert seen.keys, method
            assert all(key.startswith(b"P/") for key in seen.keys), method


def test_a_view_takes_arguments_by_the_names_of_the_binding(tmp_path: Path) -> None:
    with Database(tmp_path / "one.db", power_safe=False) as whole:
        tr = Space("staging").database(whole).create_transaction()
        tr.add(key=b"cq/k", param=b"\x01")
        tr.set_versionstamped_value(key=b"cq/l", param=bytes(14))
        tr.clear_range(begin=b"cq/m", end=b"cq/n")
        tr.add_read_conflict_range(begin=b"cq/m", end=b"cq/n")
        tr.add_read_conflict_key(key=b"cq/k")
        assert tr.get_key(key_selector=KeySelector.first_greater_or_equal(b"cq/")).value == b"cq/k"
        assert [row.key for row in tr.get_range(begin=b"cq/", end=b"cq/l", limit=1)] == [b"cq/k"]
        assert tr.get_estimated_range_size_bytes(begin_key=b"cq/", end_key=b"cq0").wait() == 0
        points = tr.get_range_split_points(begin_key=b"cq/", end_key=b"cq/z", chunk_size=100).wait()
        assert points == [b"cq/", b"cq/z"]
        tr.commit().wait()
        assert whole[b"staging/k"] == b"\x01"


class Spy:
    """Records the keys that the methods of a database or a transaction are given, and calls none of them."""

    def __init__(self, spied: Any) -> None:
        self.spied = spied
        self.snapshot = None
        self.keys: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        assert hasattr(self.spied, name), name
        many = 2 if "range" in name else 1
        return lambda *args: self.keys.extend(getattr(key, "key", key) for key in args[:many])

    def __delitem__(self, key: bytes) -> None:
        self.keys.append(key)


class Selector:
    """A key selector as both stores have it."""

    def __init__(self, key: bytes, or_equal: bool = True, offset: int = 0) -> None:
        self.key, self.or_equal, self.offset = key, or_equal, offset


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "get": (b"cq/k",),
    "clear": (b"cq/k",),
    "get_key": (Selector(b"cq/k"),),
    "get_range": (Selector(b"cq/k"), Selector(b"cq/l")),
    "get_range_startswith": (b"cq/k",),
    "clear_range_startswith": (b"cq/k",),
    "get_range_split_points": (b"cq/k", b"cq/l", 100),
    "set_versionstamped_key": (b"cq/" + bytes(10) + b"\x03\x00\x00\x00", b""),
    "bit_set_versionstamped_key": (b"cq/" + bytes(10) + b"\x03\x00\x00\x00", b""),
}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "a/b",
        "-a",
        "0x",
        "0x1",
        "a" * 100,
        b"",
        b"\xff",
        b"\xffa",
        b"cq/inside",
        b"c",  # the default space is a part of this one and the next
        b"cq",
        "0x63",
        "0x6371",
        "0x63712f61",
        bytes(101),
        7,
        None,
        object(),
    ],
)
def test_what_cannot_be_a_prefix_is_refused(prefix: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="prefix"):
        Space(prefix)


class Directory:
    """The part of an `fdb.Subspace` and of a directory that a space reads."""

    def key(self) -> bytes:
        return b"\x15\x01"


def test_a_prefix_may_be_given_in_several_ways() -> None:
    assert Space("staging").prefix == b"staging/"
    assert Space("0x1501").prefix == Space(b"\x15\x01").prefix == Space(Directory()).prefix == b"\x15\x01"
    assert Space().prefix == Space("cq").prefix == b"cq/"


def test_messages_name_a_store_by_its_url(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'test.db'}"
    opened = cq.open(url)

    assert store_of(opened) == url
    assert store_of(Space("staging").database(opened)) == f"{url}?prefix=staging"
    assert store_of(Space(b"\x15/").database(opened)) == f"{url}?prefix=0x152f"
    assert store_of(SpaceDatabase(object(), b"a/")) == "fdb:?prefix=a"


@pytest.mark.cluster
def test_subspaces_and_directories_are_prefixes() -> None:
    whole = cq.open(cluster_url(), prefix=b"cq/")
    import fdb

    subspace = fdb.Subspace(("shop", secrets.token_hex(4)))
    assert Space(subspace).prefix == subspace.key()
    directory = fdb.directory.create_or_open(whole, ("cq-test", secrets.token_hex(4)))
    assert Space(directory).prefix == directory.key()
    fdb.directory.remove(whole, ("cq-test",))


def test_a_url_the_environment_or_an_argument_gives_the_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CQ_PREFIX", raising=False)
    url = f"embedded:{tmp_path / 'one.db'}"
    for given, prefix in ((f"{url}?mode=0600&prefix=eu", None), (url, "us"), (f"{url}?prefix=eu", b"\x01")):
        cq.configure(cq.open(given, prefix=prefix), QUEUE)
    monkeypatch.setenv("CQ_PREFIX", "asia")
    cq.configure(cq.open(url), QUEUE)
    cq.configure(open_exactly(url), "of-the-default")

    with Database(tmp_path / "one.db") as whole:
        keys = [
            row.key
            for row in whole.get_range(b"", b"\xff")
            if b"/queues/" in row.key or b"\x01queues/" in row.key
        ]
    assert keys == [
        b"\x01queues/words",
        b"asia/queues/words",
        b"cq/queues/of-the-default",
        b"eu/queues/words",
        b"us/queues/words",
    ]
    assert absolute(f"{url}?prefix=eu") == f"{url}?prefix=eu"
    assert absolute(f"{url}?prefix=eu&mode=660") == f"{url}?prefix=eu"  # the mode is for a new file only


@pytest.mark.parametrize(
    "options", ["?prefix=", "?prefix=a/b", "?mode=0600&mode=0600", "?prefix=a&prefix=b", "?prefix=a&size=1"]
)
def test_wrong_options_of_a_url_are_refused(tmp_path: Path, options: str) -> None:
    with pytest.raises(InvalidUrl):
        cq.open(f"embedded:{tmp_path / 'one.db'}{options}")
    with pytest.raises(InvalidUrl, match="only an embedded store takes"):
        cq.open("fdb:/nowhere?mode=0600")
    assert list(tmp_path.iterdir()) == []


def test_doctor_checks_the_queues_of_the_space(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'one.db'}"
    cq.configure(cq.open(url), "of-the-default")
    cq.configure(cq.open(f"{url}?prefix=eu"), QUEUE)

    assert [each.name for each in doctor(f"{url}?prefix=eu") if each.name.startswith("queue")] == [
        "queue words"
    ]
