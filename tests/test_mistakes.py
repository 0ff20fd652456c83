"""Arguments of the wrong kind: the first mistake is an error that shows the right call, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.feeds import Feed
from cq.observers.top import top
from cq.observers.top.ranking import Ranking
from cq.observers.worker.worker import Worker
from cq.store import Space
from cq.testing import assert_drained
from cq.windows import Window

Call = Callable[[Any, Any, Any], object]
"""A call with a database, a transaction of it, and a queue."""


@cq.transactional
def save(tr: Any) -> None:
    """A function that is called with anything."""


def wrong(argument: object) -> Any:
    """The argument, whose type a type checker would refuse."""
    return argument


@pytest.fixture
def queue(db: Any) -> cq.CombineQueue:
    """A configured queue, and a configured feed."""
    cq.configure(db, "words", window=60)
    Feed("chat").configure(db)
    return cq.CombineQueue("words")


@pytest.mark.parametrize(
    "call",
    [
        lambda db, tr, queue: queue.add(db, {"a": 1}),
        lambda db, tr, queue: queue.get(db, "a"),
        lambda db, tr, queue: queue.get_many(db, ["a"]),
        lambda db, tr, queue: queue.items(db),
        lambda db, tr, queue: Window(queue).add(db, {"a": 1}),
        lambda db, tr, queue: Window(queue).get(db, "a"),
        lambda db, tr, queue: Ranking("words").page(db),
        lambda db, tr, queue: Feed("chat").append(db, "ann", "hello"),
        lambda db, tr, queue: queue.add(Space("other").database(db), {"a": 1}),
    ],
)
def test_a_database_instead_of_a_transaction(db: Any, queue: cq.CombineQueue, call: Call) -> None:
    with pytest.raises(TypeError, match=r"expected a transaction, got a database: .*db\.transact\(lambda tr"):
        call(db, None, queue)
    assert_drained(db, "words")


@pytest.mark.parametrize(
    "call",
    [
        lambda db, tr, queue: list(queue.scan(tr)),
        lambda db, tr, queue: queue.add_now(tr, {"a": 1}),
        lambda db, tr, queue: cq.transact(tr, save),
        lambda db, tr, queue: cq.configure(tr, "words"),
        lambda db, tr, queue: cq.Emitter(queue, tr),
    ],
)
def test_a_transaction_instead_of_a_database(db: Any, queue: cq.CombineQueue, call: Call) -> None:
    with pytest.raises(TypeError, match=r"expected a database, got a transaction: .* `fn\(tr\)`"):
        call(db, db.create_transaction(), queue)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda db, tr, queue: queue.add(tr, ["a", "b"]), "as in `add(tr, {key: update})`, or pairs"),
        (lambda db, tr, queue: queue.add(tr, "hello"), "as in `add(tr, {key: update})`, got: 'hello' (str)"),
        (lambda db, tr, queue: queue.add(tr, "hello", 1), "`add(tr, {key: update})`, got: 'hello' (str)"),
        (lambda db, tr, queue: queue.add(tr, None), "`add(tr, {key: update})`, got: None (NoneType)"),
        (lambda db, tr, queue: queue.get_many(tr, "hello"), "give a list, as in ['hello']"),
        (lambda db, tr, queue: Feed("chat").append_many(tr, "ann", "hello"), "give a list, as in ['hello']"),
    ],
)
def test_updates_and_keys_in_another_form(db: Any, queue: cq.CombineQueue, call: Call, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)) as refused:
        cq.transact(db, lambda tr: call(db, tr, queue))
    assert isinstance(refused.value, cq.errors.WrongType)
    assert isinstance(refused.value, cq.InvalidData)
    assert_drained(db, "words")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda db, tr, queue: queue.add({"a": 1}, tr),
            "expected a transaction as the first argument, got: {'a': 1}",
        ),
        (lambda db, tr, queue: queue.add(tr.snapshot, {"a": 1}), "give `tr`, not `tr.snapshot`"),
        (lambda db, tr, queue: cq.transact(wrong(save), db), "as in `cq.transact(db, fn)`"),
        (lambda db, tr, queue: cq.transact(wrong("embedded:a.db"), save), "`db = cq.open('embedded:a.db')`"),
        (lambda db, tr, queue: cq.transact(db, wrong(save(tr))), "give the function itself"),
        (lambda db, tr, queue: cq.transactional(db), "write `@cq.transactional` without a database"),
        (lambda db, tr, queue: cq.transactional(wrong("tx")), '@cq.transactional(parameter="tx")'),
        (lambda db, tr, queue: cq.Emitter(db, queue), "write `cq.Emitter(cq.CombineQueue('words'), db)`"),
        (lambda db, tr, queue: cq.open(db), "give a str or a path, as in cq.open('embedded:cq.db')"),
        (lambda db, tr, queue: cq.open(wrong(b"embedded:cq.db")), "give a str or a path"),
    ],
)
def test_mixed_up_arguments(db: Any, queue: cq.CombineQueue, call: Any, message: str) -> None:
    tr = db.create_transaction()

    with pytest.raises(TypeError, match=re.escape(message)):
        call(db, tr, queue)
    tr.commit().wait()
    assert_drained(db, "words")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cq.Observer("totals", 1, wrong("f")),
            "`function` of Observer 'totals' to be a function, got: 'f'",
        ),
        (lambda: cq.Observer("totals", 1, wrong(save), clear=wrong(5)), "`clear` of Observer 'totals'"),
        (lambda: cq.Combiner("longest", 1, wrong(None)), "`combine` of Combiner 'longest'"),
        (
            lambda: cq.Combiner("longest", 1, wrong(save), is_empty=wrong(None)),
            "`is_empty` of Combiner 'longest'",
        ),
        (
            lambda: cq.Combiner("longest", 1, wrong(save), convert=wrong("x")),
            "`convert` of Combiner 'longest'",
        ),
        (lambda: cq.Decider("stock", 1, wrong({})), "`decide` of Decider 'stock'"),
        (lambda: cq.Decider("stock", 1, wrong(save), observer=wrong("x")), "`observer` of Decider 'stock'"),
    ],
)
def test_what_is_no_function_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("observers", "message"),
    [
        (top(3), "expected a list of observers or links, got: ObserverSpec"),
        ("top", "expected a list of observers or links, got: 'top'"),
        (["top"], r"expected an observer to be .* of cq\.links returns, got: 'top'"),
        ([top], r"expected an observer, got the function that makes it: write `top\(...\)`"),
        ([links.table], r"write `table\(...\)`"),
    ],
)
def test_observers_in_another_form(db: Any, observers: Any, message: str) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration, match=message):
        cq.App().queue("hits", observers=observers)
    with pytest.raises(cq.errors.InvalidConfiguration, match=message):
        cq.configure(db, "hits", observers=observers)


def test_a_path_is_a_local_store_whatever_its_characters(tmp_path: Path) -> None:
    for name in ("a.db", "b?mode=0660", "~"):
        path = tmp_path / name
        database: Any = cq.open(path)
        database.close()

        assert database.path == path.resolve()
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("url", ["fdb:/etc/foundationdb/fdb.cluster", "embedded:cq.db"])
def test_a_url_as_a_path_is_refused(url: str) -> None:
    with pytest.raises(cq.errors.InvalidUrl, match="give a URL as a str"):
        cq.open(Path(url))


def test_an_unknown_queue_or_feed_suggests_the_nearest_name(db: Any, queue: cq.CombineQueue) -> None:
    for call in (
        lambda: cq.transact(db, lambda tr: cq.CombineQueue("wrods").get(tr, "a")),
        lambda: cq.transact(db, lambda tr: cq.CombineQueue("wrods").add(tr, {"a": 1})),
        lambda: admin.put_observer(db, "wrods", admin.ObserverSpec("seen", 1)),
    ):
        with pytest.raises(
            cq.errors.QueueNotConfigured, match=r"did you mean 'words'.* `cq configure wrods --combiner"
        ) as refused:
            call()
        assert (refused.value.name, refused.value.nearest) == ("wrods", "words")
    with pytest.raises(cq.errors.FeedNotConfigured, match=r"did you mean 'chat'.* `cq feed configure caht`"):
        cq.transact(db, lambda tr: Feed("caht").read(tr, "ann"))


def test_an_unknown_queue_without_a_similar_name_is_to_be_configured(db: Any, queue: cq.CombineQueue) -> None:
    for name, command in {
        "visits": r"`cq configure visits --combiner sum`, or `cq configure --app MODULE:APP` if an app",
        "visits.window": "`cq configure visits --window 10m/10s`, as this is the name of a level",
        "visits.1h": "`cq configure visits --rollup 1h:forever`, as this is the name of a level",
    }.items():
        with pytest.raises(cq.errors.QueueNotConfigured, match=f"run {command}"):
            cq.transact(db, partial(cq.CombineQueue(name).get, key="a"))


def test_an_unknown_combiner_or_role_suggests_the_nearest_name(db: Any) -> None:
    with pytest.raises(cq.errors.InvalidConfiguration, match=r"did you mean 'union'"):
        cq.configure(db, "words", combiner="unoin")
    with pytest.raises(cq.errors.InvalidConfiguration, match=r"did you mean 'link'"):
        Worker(db, roles=["lnik"])
