"""`cq verify` of what observers keep: damage to a top, its clouds and a link is found, named and mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.admin.backfill import current_generation
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.keys import QueueKeys
from cq.keys.link import LinkKeys, first_sequence
from cq.keys.top import CloudKeys, TopKeys
from cq.links import LinkFailed
from cq.observers.builtin import FACTORIES
from cq.observers.links.log import BUCKETS
from cq.observers.links.registry import opened_link
from cq.observers.links.state import Control
from cq.observers.top import cloud
from cq.observers.top.cloud import CloudHead, CloudReader
from cq.observers.top.index import top
from cq.observers.top.ranking import Ranking
from cq.observers.top.scores import descending
from cq.observers.verify import top as verifytop
from cq.observers.verify.queue import verification
from cq.store.transact import transact
from cq.testing import assert_drained, assert_values, drain
from cq.verify.kinds import KINDS
from cq.verify.piece import Difference
from cq.verify.verification import Verification
from tests.kit.queues import Writes, add, put, stored
from tests.links.linkhelpers import entries_aside
from tests.links.sqlhelpers import configure as configure_table
from tests.links.sqlhelpers import sql, table_of

pytestmark = pytest.mark.sampled(3)

VALUES = {f"k{number}": number for number in range(1, 41)}


def found_in(db: Any, name: str, **settings: Any) -> list[Difference]:
    """The differences of a queue; not those that another test has made of another queue of a cluster."""
    return [each for each in verification(db, name, **settings).run() if name.encode() in each.where]


def kinds(found: list[Difference]) -> set[str]:
    return {each.kind for each in found}


# The top and its clouds


class Topped:
    """A queue with a top with ranks, whose cloud is published; in groups where a group function is given."""

    def __init__(self, db: Any, name: str, **settings: Any) -> None:
        self.db, self.name = db, name
        self.app = cq.App()
        self.app.queue(name, observers=[top(5, every=0, ranks=True, **settings)])
        self.app.configure(db, name, buckets=4)
        self.queue = QueueKeys(name)
        self.top = TopKeys(self.queue, 1)
        self.clouds = CloudKeys(self.queue)
        add(db, name, VALUES)
        drain(db, name, app=self.app)

    def combine(self) -> None:
        """Passes only: nothing is published."""
        code = self.app.code(transact(self.db, lambda tr: read_config(tr, self.name)), FACTORIES)
        for bucket in [PassRunner(self.db, code, number) for number in range(code.config.buckets)]:
            while bucket.combine().more:
                pass

    def found(self, **settings: Any) -> list[Difference]:
        return found_in(self.db, self.name, app=self.app, **settings)

    def entry(self, key: str, score: object) -> bytes:
        return self.top.entries(None) + descending(score) + key.encode()  # type: ignore[arg-type]


@pytest.fixture
def topped(db: Any, name: str) -> Topped:
    return Topped(db, name)


def head(topped: Topped, **changes: Any) -> bytes:
    """The published head with changes."""
    key = topped.clouds.head(None)
    value = transact(topped.db, lambda tr: tr.get(key).value) or b""
    return replace(CloudHead.from_bytes(value), **changes).to_bytes()


NUMBER = (39).to_bytes(8, "little")
TOPS: dict[str, tuple[str, Callable[[Topped], Writes]]] = {
    "an entry is missing": ("top-missing", lambda t: {t.entry("k7", 7): None}),
    "an entry of a key without a value": (
        "top-extra",
        lambda t: {t.entry("k99", 7): codec.encode(7)},
    ),
    "an entry of another score": ("top-extra", lambda t: {t.entry("k7", 8): codec.encode(8)}),
    "an entry that does not stand where its score does": (
        "top-unreadable",
        lambda t: {t.entry("k7", 7): codec.encode(8)},
    ),
    "an entry that is no CBOR": ("top-unreadable", lambda t: {t.entry("k7", 7): b"\xff"}),
    "an entry of no group": ("top-unreadable", lambda t: {t.top.all_entries + b"\xff\xff": b"\x01"}),
    "a key that no top has": ("top-unreadable", lambda t: {t.top.data + b"?": b""}),
    "a wrong count": ("top-count", lambda t: {t.top.count(None): bytes(8)}),
    "a count of too many digits": ("top-count", lambda t: {t.top.count(None): b"\x7f" * 2_000}),
    "no count": ("top-count", lambda t: {t.top.count(None): None}),
    "a count of a group without entries": ("top-count", lambda t: {t.top.count("nothing"): NUMBER}),
    "a count under a key too long": ("top-count", lambda t: {t.top.count(None) + b"x": NUMBER}),
    "a wrong count of a score": ("top-rank", lambda t: {t.top.node(None, descending(7)): NUMBER}),
    "a count of a score of too many digits": (
        "top-rank",
        lambda t: {t.top.node(None, descending(7)): b"\x7f" * 2_000},
    ),
    "a wrong count of some scores": ("top-rank", lambda t: {t.top.node(None, descending(7)[:1]): NUMBER}),
    "no count of a score": ("top-rank", lambda t: {t.top.node(None, descending(7)): None}),
    "a count of a score that nothing has": (
        "top-rank",
        lambda t: {t.top.node(None, descending(700)): NUMBER},
    ),
    "a count under a key too short": ("top-rank", lambda t: {t.top.node(None, b"abc")[:-1]: NUMBER}),
    "a mark without a notification": ("cloud-notification", lambda t: {t.top.mark(None): bytes(10)}),
    "a cloud that is no CBOR": ("cloud-unreadable", lambda t: {t.clouds.head(None): b"\xff"}),
    "a cloud that is not of its digest": (
        "cloud-unreadable",
        lambda t: {t.clouds.head(None): head(t, digest=bytes(16))},
    ),
    "a cloud without its pieces": (
        "cloud-unreadable",
        lambda t: {t.clouds.head(None): head(t, data=b"", pieces=2)},
    ),
    "a cloud of other entries": (
        "cloud-different",
        lambda t: {
            t.clouds.head(None): head(
                t,
                data=cloud.encode_entries([("k1", 1)]),
                digest=cloud.digest_of(cloud.encode_entries([("k1", 1)])),
            )
        },
    ),
    "a piece of a cloud that is not published": ("cloud-piece", lambda t: {t.clouds.piece(None, 9, 0): b"x"}),
    "a piece under a key too long": ("cloud-piece", lambda t: {t.clouds.piece(None, 9, 0) + b"x": b"x"}),
    "a cloud under a key too long": ("cloud-piece", lambda t: {t.clouds.head(None) + b"x": b"x"}),
    "a kept version that is no CBOR": ("cloud-version", lambda t: {t.clouds.kept(None, 1, 1, 0): b"\xff"}),
    "what no cloud has": ("cloud-piece", lambda t: {t.clouds.heads[:-1] + b"?": b"x"}),
}


@pytest.mark.parametrize(("kind", "damage"), TOPS.values(), ids=TOPS)
def test_damage_to_a_top_is_named_and_mended(
    topped: Topped, kind: str, damage: Callable[[Topped], Writes]
) -> None:
    assert topped.found() == []
    put(topped.db, damage(topped))

    found = topped.found()

    assert kind in kinds(found)
    assert kinds(found) <= {kind, "top-missing", "top-extra", "top-count", "top-rank"}
    assert topped.found() == found
    assert topped.found(repair=True) == [replace(each, repaired=True) for each in found]
    assert topped.found() == []
    drain(topped.db, topped.name, app=topped.app)
    assert topped.found() == []
    assert_values(topped.db, topped.name, VALUES)
    first = [("k40", 40), ("k39", 39), ("k38", 38), ("k37", 37), ("k36", 36)]
    shown = transact(topped.db, CloudReader(topped.name).read)
    assert [(each.key, each.score) for each in shown.entries] == first
    ranking = Ranking(topped.name)
    page = transact(topped.db, lambda tr: ranking.page(tr.snapshot, limit=100))
    assert [(each.key, each.score) for each in page.entries] == sorted(
        VALUES.items(), key=lambda item: item[1], reverse=True
    )
    assert transact(topped.db, lambda tr: ranking.count(tr.snapshot)) == 40
    assert [transact(topped.db, lambda tr: ranking.rank(tr, f"k{n}")) for n in (40, 7)] == [1, 34]  # noqa: B023


def test_a_top_is_built_anew_once_for_all_that_differs(topped: Topped) -> None:
    put(topped.db, {topped.entry(f"k{number}", number): None for number in range(1, 10)})

    found = topped.found(repair=True)

    assert len(found) > 9
    drain(topped.db, topped.name)
    generation = transact(topped.db, lambda tr: current_generation(tr.snapshot, topped.name, "top"))
    assert generation == 2


def test_a_count_of_more_entries_than_one_transaction_counts_is_not_compared(
    topped: Topped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifytop, "_COUNTED", 39)
    put(topped.db, {topped.top.count(None): (39).to_bytes(8, "little")})

    found = verification(topped.db, topped.name, app=topped.app)

    assert list(found.run()) == []
    assert found.notes == ["counts of the top were not compared with more than 39 entries"]


def test_groups_and_scores_of_an_application(db: Any, name: str) -> None:
    topped = Topped(db, name, score=lambda key, value: -value, group=lambda key, value: f"of {value % 3}")
    assert topped.found() == []
    without = verification(db, name)
    assert list(without.run()) == []
    assert "start it with --app" in without.notes[0]
    entry = topped.top.entries("of 1") + descending(-7) + b"k7"
    put(db, {entry: None, topped.top.count("of 1"): None})

    found = topped.found()

    assert kinds(found) == {"top-missing", "top-count", "top-rank", "cloud-different"}
    assert [each.key for each in found if each.kind == "top-missing"] == ["k7"]


def test_a_top_that_is_being_built_is_compared_as_far_as_it_is(topped: Topped) -> None:
    """While another one is read, which stands still."""
    admin.rebuild_observer(topped.db, topped.name, "top")
    put(topped.db, {topped.entry("k7", 7): None})
    assert topped.found() == []
    add(topped.db, topped.name, {"k1": 100})

    assert topped.found() == []
    drain(topped.db, topped.name, app=topped.app)
    assert topped.found() == []


def test_a_cloud_that_is_yet_to_be_published_is_in_order(topped: Topped) -> None:
    """As its mark says so."""
    add(topped.db, topped.name, {"k1": 100})
    topped.combine()

    assert topped.found() == []
    put(topped.db, {topped.top.mark(None): None})
    assert [each.kind for each in topped.found()] == ["cloud-different"]


@pytest.mark.parametrize("after", [1, 4, 6, 8])
def test_a_top_that_is_built_anew_while_it_is_checked_is_in_order(topped: Topped, after: int) -> None:
    """No pass is needed for what nobody reads yet to be cleared."""
    admin.rebuild_observer(topped.db, topped.name, "top")
    topped.combine()
    pieces = 0

    def rebuild(progress: Verification) -> None:
        nonlocal pieces
        if progress.part == "rows":
            pieces += 1
            if pieces == after:
                admin.rebuild_observer(topped.db, topped.name, "top")

    found = verification(topped.db, topped.name, app=topped.app)
    found.progress, found.rows = rebuild, 20

    assert list(found.run()) == []
    assert pieces >= after


# Links


@pytest.fixture
def linked(db: Any, name: str, sqlite_url: str) -> LinkKeys:
    """The keys of a link to a table, which has queued entries."""
    configure_table(db, name, buckets=4)
    add(db, name, VALUES)
    drain(db, name)
    transact(db, lambda tr: links.add(tr, name, {"k1": 1}))
    return LinkKeys(name, "export")


def row_key(keys: LinkKeys, db: Any) -> bytes:
    return stored(db, keys.all_rows())[0][0]


def entry_row(key: str, value: object) -> bytes:
    return b"\x00" + codec.encode([codec.encode(key), value])


def sequence(version: int) -> bytes:
    return first_sequence(1)[:4] + version.to_bytes(8, "big") + bytes(10)


def waiting(keys: LinkKeys, row: bytes) -> Writes:
    """A row of a bucket that has a notification."""
    return {keys.row(1, sequence(1)): row, keys.notification(1): bytes(10)}


LINKS: dict[str, tuple[str, Callable[[LinkKeys, bytes], Writes]]] = {
    "a row that is no CBOR": (
        "link-row",
        lambda e, key: waiting(e, b"\x00\xff"),
    ),
    "a row of no kind": (
        "link-row",
        lambda e, key: waiting(e, b"?"),
    ),
    "a row with the key of a large entry, but without a value": (
        "link-row",
        lambda e, key: {e.row(1, sequence(1)) + b"ak": b"\xff", e.notification(1): bytes(10)},
    ),
    "a row with a key that is none": (
        "link-row",
        lambda e, key: {e.row(1, sequence(1)) + b"\xff": b"\x01", e.notification(1): bytes(10)},
    ),
    "a row from the future": ("link-row", lambda e, key: {e.row(1, sequence(1 << 62)): entry_row("k1", 1)}),
    "a row of a bucket that there is not": (
        "link-row",
        lambda e, key: {e.row(BUCKETS, sequence(1)): entry_row("k1", 1)},
    ),
    "a row under a key too short": ("link-row", lambda e, key: {key[:-1]: entry_row("k1", 1)}),
    "rows without a notification": (
        "link-notification",
        lambda e, key: {e.notification(bucket_of(codec.encode("k1"), BUCKETS)): None},
    ),
    "a notification of a bucket that there is not": (
        "link-notification",
        lambda e, key: {e.notification(BUCKETS): bytes(10)},
    ),
    "a state that cannot be read": ("link-state", lambda e, key: {e.state(1): b"\xff"}),
    "a state of a bucket that there is not": (
        "link-state",
        lambda e, key: {e.state(BUCKETS): codec.encode([0, b""])},
    ),
    "a control that cannot be read": ("link-state", lambda e, key: {e.control: b"\xff"}),
    "a control under a key too long": (
        "link-state",
        lambda e, key: {e.control + b"x": Control().to_bytes()},
    ),
    "a failure that cannot be read": (
        "link-state",
        lambda e, key: {e.failure(1): codec.encode(["an error"])},
    ),
    "a failure of the whole that cannot be read": ("link-state", lambda e, key: {e.failure(None): b"\xff"}),
    "a reason that cannot be read": ("link-state", lambda e, key: {e.stopped: codec.encode("why")}),
    "a keeper's notification that is no versionstamp": ("link-state", lambda e, key: {e.keeper: b"x"}),
    "an entry set aside that cannot be read": (
        "link-aside",
        lambda e, key: {e.aside_piece(1, sequence(1), 0): b"\xff"},
    ),
    "a piece set aside without the first one": (
        "link-aside",
        lambda e, key: {e.aside_piece(1, sequence(1), 1): b"x"},
    ),
    "an entry set aside under a key too short": (
        "link-aside",
        lambda e, key: {e.aside_piece(1, sequence(1), 1)[:-1]: b"x"},
    ),
    "what no link has": ("unknown-key", lambda e, key: {e.prefix + b"?": b""}),
}


@pytest.mark.parametrize(("kind", "damage"), LINKS.values(), ids=LINKS)
def test_damage_to_a_link_is_named_and_mended(
    db: Any,
    name: str,
    linked: LinkKeys,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    damage: Callable[[LinkKeys, bytes], Writes],
) -> None:
    monkeypatch.delenv("CQ_REPORTING_URL")
    assert found_in(db, name) == []
    put(db, damage(linked, row_key(linked, db)))

    found = found_in(db, name)

    assert [each.kind for each in found] == [kind]
    assert found_in(db, name) == found
    assert found_in(db, name, repair=True) == [replace(each, repaired=each.repairable) for each in found]
    assert found_in(db, name) == [each for each in found if not each.repairable]


def test_a_row_of_a_link_that_cannot_be_read_is_kept(db: Any, name: str, linked: LinkKeys) -> None:
    put(db, {linked.row(1, sequence(1)): b"\x01abc", linked.notification(1): bytes(10)})

    found_in(db, name, repair=True)

    (kept,) = entries_aside(db, name, "export")
    assert (kept.bucket, kept.encoded_key, kept.value) == (1, None, b"\x01abc")
    drain(db, name)
    assert len(entries_aside(db, name, "export")) == 1


def test_large_entries_are_in_order(db: Any, name: str, linked: LinkKeys) -> None:
    pairs = [("b", 1), ("a" * 7_000, "x" * 99_000)]
    transact(db, lambda tr: links.add(tr, name, pairs))

    assert found_in(db, name, wait=0) == []


def test_a_table_that_differs_is_named_and_sent_again(
    db: Any, name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = configure_table(db, name, buckets=4)
    add(db, name, VALUES)
    drain(db, name)
    assert found_in(db, name) == []
    sql(link, "UPDATE report SET value = 99 WHERE key = 'k7'")
    sql(link, "DELETE FROM report WHERE key = 'k8'")

    found = list(verification(db, name).run())

    assert sorted((each.kind, each.key, each.repairable, each.repaired) for each in found) == [
        ("link-table", "k7", True, False),
        ("link-table", "k8", True, False),
    ]
    monkeypatch.delenv("CQ_REPORTING_URL")
    without = verification(db, name)
    assert list(without.run()) == []
    assert without.notes == [
        "the table of link 'export' was not compared with the values: $CQ_REPORTING_URL is not set"
    ]
    monkeypatch.setenv("CQ_REPORTING_URL", sqlite_url)
    assert all(each.repaired for each in verification(db, name, repair=True).run())
    filling = verification(db, name)
    assert list(filling.run()) == []
    assert "is still being filled with all values" in filling.notes[0]
    drain(db, name)
    assert list(verification(db, name).run()) == []
    assert table_of(link) == sorted(VALUES.items())
    assert_drained(db, name)


def test_a_database_that_cannot_be_read_ends_no_checks_of_other_tables(
    db: Any, name: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_SECOND_URL", sqlite_url)
    configure_table(db, name)
    second = links.table("second", name="second", url_env="CQ_SECOND_URL")
    cq.configure(db, name, links=[links.table("report"), second])
    with opened_link(db, name, "second") as opened:
        opened.target.create()
        add(db, name, {"a": 1})
        drain(db, name)
        sql(opened, "UPDATE second SET value = 99")
    monkeypatch.setenv("CQ_REPORTING_URL", "sqlite:////nowhere/report.db")

    checked = verification(db, name)
    with pytest.raises(LinkFailed, match="CQ_REPORTING_URL"):
        list(checked.run())
    assert checked.found == 1


def test_every_kind_is_tried() -> None:
    tried = {kind for kind, _ in [*TOPS.values(), *LINKS.values()]} | {"link-table"}

    assert {kind for kind in KINDS if kind.startswith(("top", "cloud", "link"))} == tried - {"unknown-key"}
