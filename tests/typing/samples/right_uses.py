"""Uses of cq that type checkers accept, with the types that they infer. No function here is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any, assert_type

import cq
from cq.feeds import Feed, FeedPage, Message
from cq.observers.top.ranking import RankedEntry, Ranking
from cq.queue import Page
from cq.windows import Window

words: cq.CombineQueue[str, int] = cq.CombineQueue("words")
pairs = cq.CombineQueue[tuple[str, int], set[str]]("pairs")
untyped = cq.CombineQueue("untyped")


@cq.transactional
def save(tr: cq.Transaction, text: str, *, mark: str = "!") -> int:
    """A transaction with other parameters and a result."""
    tr.set(b"text", text.encode())
    tr[b"mark"] = mark.encode()
    words.add(tr, Counter(text.split()))
    return len(text)


@cq.transactional
def count(tr: cq.Snapshot, word: str) -> int | None:
    """A transaction that only reads."""
    return words.get(tr, word)


@cq.transactional(parameter="tx")
def rename(tx: cq.Transaction, old: str, new: str) -> bool:
    """A transaction with another name for its parameter."""
    words.add(tx, {old: -1, new: 1})
    return True


@cq.transactional
def untyped_transaction(tr: Any, text: str) -> str:
    """As in code that was written before cq had types for transactions."""
    return text


class Library:
    """A class with a transactional method."""

    @cq.transactional
    def save(self, tr: cq.Transaction, text: str) -> int:
        """Saves with other functions, in one transaction."""
        return save(tr, text) + save(tr, text, mark="?")


def configured(db: cq.Database, own: cq.Combiner, app: cq.App) -> None:
    """`configure` returns the queue with the types of its settings."""
    assert_type(cq.configure(db, "a", key=str, value=int), cq.CombineQueue[str, int])
    assert_type(
        cq.configure(db, "a", key=(str, int), value=set[str]), cq.CombineQueue[tuple[str, int], set[str]]
    )
    assert_type(
        cq.configure(db, "a", key=(str, int, bytes), value=Decimal, combiner="sum", buckets=2),
        cq.CombineQueue[tuple[str, int, bytes], Decimal],
    )
    assert_type(cq.configure(db, "a", key=int, combiner=own), cq.CombineQueue[int, Any])
    assert_type(cq.configure(db, "a", key="int", value=str), cq.CombineQueue[Any, str])
    assert_type(cq.configure(db, "a", key="(str, int)", value="any"), cq.CombineQueue[Any, Any])
    assert_type(cq.configure(db, "a", window=(600, 10), audit=True), cq.CombineQueue[Any, Any])
    assert_type(app.configure(db, "a", key=str), cq.CombineQueue[Any, Any])
    assert_type(app.queue("a", key=str, value=int, window=(600, 10)), cq.CombineQueue[str, int])
    assert_type(app.queue("a", key=(str, int), value=float), cq.CombineQueue[tuple[str, int], float])
    assert_type(
        app.queue("a", key=(str, int, bytes), value=set[str]),
        cq.CombineQueue[tuple[str, int, bytes], set[str]],
    )
    assert_type(app.queue("a", key=str, combiner=own, expire="30d"), cq.CombineQueue[str, Any])
    assert_type(
        app.queue("a", value=Decimal, window=("10m", timedelta(seconds=10))), cq.CombineQueue[Any, Decimal]
    )
    assert_type(app.queue("a", combiner=own), cq.CombineQueue[Any, Any])
    chat: Feed[str] = app.feed("chat", keep="30d")
    assert_type(chat, Feed[str])


def transactions(db: cq.Database, tr: cq.Transaction, library: Library) -> None:
    """A database and a transaction are both accepted, and results keep their types."""
    assert_type(save(db, "a b"), int)
    assert_type(save(tr, "a b", mark="?"), int)
    assert_type(save(tr=db, text="a b"), int)
    assert_type(count(db, "a"), int | None)
    assert_type(count(tr.snapshot, "a"), int | None)
    assert_type(rename(db, "a", "b"), bool)
    assert_type(untyped_transaction(db, "a"), str)
    assert_type(library.save(db, "a"), int)
    assert_type(library.save(tr, "a"), int)


def opened() -> None:
    """`transact` returns what the function returns."""
    db = cq.open("embedded:cq.db")
    assert_type(db.transact(lambda tr: words.get(tr, "a")), int | None)
    assert_type(cq.transact(db, lambda tr: tr.get(b"key").value), bytes | None)
    assert_type(db.transact(lambda tr: save(tr, "a"), write_only=True), int)


def reads(db: cq.Database, tr: cq.Transaction) -> None:
    """Keys and values have the types of the queue."""
    assert_type(words.get(tr, "a", pending=True), int | None)
    assert_type(words.get_many(tr.snapshot, ["a", "b"]), dict[str, int | None])
    assert_type(words.items(tr), Page[str, int])
    assert_type(words.items(tr).items, list[tuple[str, int]])
    assert_type(words.scan(db), Iterator[tuple[str, int]])
    assert_type(pairs.get(tr, ("a", 1)), set[str] | None)
    assert_type(untyped.get(tr, "a"), Any | None)


def adds(tr: cq.Transaction) -> None:
    """Updates are a dict, or a collection of pairs."""
    words.add(tr, {"a": 1})
    words.add(tr, [("a", 1), ("a", 2)], once="event-1")
    pairs.add(tr, {("a", 1): {"b"}})
    untyped.add(tr, {"a": 1, "b": "c"})
    cq.CombineQueue[str, str]("last").add(tr, {"a": cq.DELETE})


def windows_and_emitters(db: cq.Database, tr: cq.Transaction) -> None:
    """Windows have totals of int unless their queue has other values; an emitter has the types of its queue."""
    window = Window(words)
    assert_type(window, Window[str])
    assert_type(window, Window[str, int])
    prices = Window[str, Decimal]("prices", late=600)
    assert_type(prices.get(tr, "a"), Decimal | None)
    assert_type(window.get_many(tr, ["a"]), dict[str, int | None])
    assert_type(window.items(tr), Page[str, int])
    with cq.Emitter(words, db) as emitter:
        assert_type(emitter, cq.Emitter[str, int])
        emitter.emit("a")
        emitter.emit_many({"a": 2})


def alert(tr: cq.Transaction, changes: list[cq.Change[str, int]]) -> None:
    """An observer."""
    for change in changes:
        assert_type(change.key, str)
        assert_type((change.old, change.new), tuple[int | None, int | None])


def observers(db: cq.Database) -> None:
    """Observers are functions, or have a version."""
    cq.configure(db, "words", observers=[alert])
    cq.configure(db, "words", observers=[cq.Observer("alert", 2, alert)])
    assert_type(cq.Observer("alert", 2, alert), cq.Observer[str, int])


def tops_and_feeds(db: cq.Database, tr: cq.Transaction) -> None:
    """The types of a top are those of its queue; a feed has the type of its messages."""
    ranking: Ranking[str, int] = Ranking("words")
    assert_type(ranking.page(tr, values=True).entries, list[RankedEntry[str, int]])
    assert_type(ranking.page(tr).entries[0].key, str)
    chat: Feed[str] = Feed("chat")
    chat.append(tr, ("ann", 1), "hello")
    assert_type(chat.read(tr, "ann"), FeedPage[str])
    assert_type(chat.read(tr, "ann").messages, tuple[Message[str], ...])
    assert_type(chat.wait(db, "ann").messages[0].body, str)


def modules_of_the_root() -> None:
    """Pages use these with `import cq` alone, and the items of an open database."""
    db = cq.open()
    db[b"a"] = b"1"
    del db[b"a"]
    try:
        cq.outbox.add(db[b"a":b"b"], "words", {"a": 1})
    except cq.errors.UserNotPlaced:
        cq.sketches.distinct()
