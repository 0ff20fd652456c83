"""Functions that a retried transaction calls take collections, and refuse iterators."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import cq
from cq.feeds.feed import Feed
from cq.keys.link import LinkKeys
from cq.observers.links.log import append
from cq.observers.visits import Visits
from cq.store.transact import transact
from cq.testing import assert_drained, assert_values, drain
from cq.windows import Window
from tests.kit.faults import error_class
from tests.kit.queues import add

CONFLICT = 1020
PAIRS = [("a", 1), ("b", 2)]
ITERATORS: list[Callable[[], Iterator[Any]]] = [
    lambda: iter(PAIRS),
    lambda: (pair for pair in PAIRS),
    lambda: zip("ab", (1, 2), strict=True),
    lambda: map(tuple, PAIRS),
]


def iterator(content: Iterable[Any]) -> Any:
    """An iterator, whose type a type checker would refuse."""
    return iter(content)


@pytest.mark.parametrize("made", ITERATORS)
def test_an_add_of_an_iterator_is_refused_and_writes_nothing(
    db: Any, name: str, made: Callable[[], Iterator[Any]]
) -> None:
    cq.configure(db, name, window=60)
    queue, tries = cq.CombineQueue(name), []
    for adds in (queue, Window(queue)):
        updates: Any = made()

        def fail_once(tr: Any) -> None:
            adds.add(tr, updates)  # noqa: B023 - runs at once
            tries.append(tr)
            if len(tries) == 1:
                raise error_class(tr)(CONFLICT)

        with pytest.raises(TypeError, match="when the transaction is retried") as refused:
            transact(db, fail_once)
        assert isinstance(refused.value, cq.InvalidData)
    assert_drained(db, name)


@pytest.mark.parametrize(
    "updates",
    [PAIRS, tuple(PAIRS), {*PAIRS}, frozenset(PAIRS), dict(PAIRS), dict(PAIRS).items(), Counter(dict(PAIRS))],
    ids=lambda updates: type(updates).__name__,
)
def test_collections_are_added(db: Any, name: str, updates: Any) -> None:
    cq.configure(db, name)
    add(db, name, updates)
    with cq.Emitter(cq.CombineQueue(name), db) as emitter:
        emitter.emit_many(updates)
    drain(db, name)

    assert_values(db, name, {"a": 2, "b": 4})


def test_a_late_add_of_an_iterator_is_refused(db: Any, name: str) -> None:
    """It would be counted as late, and with 0 updates by a retry."""
    cq.configure(db, name, window=60)
    with pytest.raises(TypeError, match="retried"):
        transact(db, lambda tr: Window(name).add(tr, iterator(PAIRS), at=1.0))


def test_an_emitter_refuses_iterators(db: Any, name: str) -> None:
    """A caller whose call ended with `EmitterFull` calls again with the same argument."""
    cq.configure(db, name)
    with cq.Emitter(cq.CombineQueue(name), db) as emitter:
        with pytest.raises(TypeError, match="retried"):
            emitter.emit_many(iterator(PAIRS))
        with pytest.raises(TypeError, match="retried"):
            asyncio.run(emitter.emit_many_async(iterator(PAIRS)))
        assert emitter.statistics().emitted == 0


def test_reads_of_many_keys_refuse_iterators(db: Any, name: str) -> None:
    cq.configure(db, name, window=60)
    for readable in (cq.CombineQueue(name), Window(name)):
        assert transact(db, lambda tr: readable.get_many(tr, {"a", "b"})) == {"a": None, "b": None}  # noqa: B023
        with pytest.raises(TypeError, match="retried"):
            transact(db, lambda tr: readable.get_many(tr, iterator("ab")))  # noqa: B023


def test_feeds_exports_and_visits_refuse_iterators(db: Any, name: str) -> None:
    feed, visits = Feed(name), Visits(name)
    feed.configure(db)
    visits.configure(db)
    calls: list[Callable[[Any], object]] = [
        lambda tr: feed.append_many(tr, "ann", iterator(["hello"])),
        lambda tr: append(tr, LinkKeys(name, "own"), 1, iterator(PAIRS)),
        lambda tr: visits.count_each(tr, iterator([("page", "ann", 0.0)])),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="retried"):
            transact(db, call)
