"""Links to queues of other stores: the totals of many stores in one, which queues fit, and what counts twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links
from cq.combiners import resolve
from cq.observers.links.registry import opened_link, pause_link
from cq.observers.links.spec import QUEUE_ENV
from cq.observers.links.targets.queue import QueueTarget
from cq.observers.monitoring.link_status import link_status
from cq.store import version_chain
from cq.testing import drain
from cq.verify.queue import verify
from tests.kit.faults import ChainedDatabase, Died, FaultyDatabase
from tests.kit.queues import add, configured, put_built_in
from tests.kit.sized import MOST, Sized
from tests.kit.sketches import needs_sketches
from tests.links.linkhelpers import change, combine, link_tasks, run_to_end, status, waits

QUEUE, LINK = "visits", "forward"


class Stores:
    """Stores that forward, and one that receives."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.opened: list[Any] = []
        self.central: Any = self.open("central")
        self.use("central")

    def open(self, name: str) -> Any:
        db = cq.open(f"embedded:{self.folder}/{name}.db")
        self.opened.append(db)
        return db

    def use(self, name: str) -> None:
        """Have the receiving store be this one."""
        self.monkeypatch.setenv(QUEUE_ENV, f"embedded:{self.folder}/{name}.db")

    def cell(self, name: str, **settings: Any) -> Any:
        """A store that forwards its queue."""
        db = self.open(name)
        cq.configure(db, QUEUE, links=[links.queue()], **settings)
        return db


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    made = Stores(tmp_path, monkeypatch)
    yield made
    for db in made.opened:
        db.close()


def values(db: Any, name: str = QUEUE) -> dict[Any, Any]:
    """What a queue has, once all is combined."""
    drain(db, name)
    return dict(cq.CombineQueue(name).scan(db))


def problem(db: Any) -> str:
    """Drain, and return the state of the link, and why it fails or is stopped."""
    drain(db, QUEUE)
    return status(db, QUEUE)


def died(point: str) -> None:
    if point == "sent":
        raise Died


def tasks_into(db: Any, central: Any) -> list[Any]:
    """The tasks of the buckets, with this database as the receiving store, which stays open."""
    with link_tasks(db, QUEUE) as tasks:
        buckets = tasks[1:]
    target = buckets[0]._target
    assert isinstance(target, QueueTarget)
    target._receiving = central
    return buckets


def test_totals_of_many_stores_come_together(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    cells = [stores.cell(f"cell{number}") for number in range(3)]
    for number, db in enumerate(cells):
        add(db, QUEUE, {"home": 10, "about": number})
        drain(db, QUEUE)
        add(db, QUEUE, {"home": -3, f"only-{number}": 1})
        drain(db, QUEUE)
        add(db, QUEUE, {f"only-{number}": -1})
        drain(db, QUEUE)

    assert values(stores.central) == {"home": 21, "about": 3}
    assert [waits(db, QUEUE, LINK) for db in cells] == [0, 0, 0]
    assert list(verify(stores.central, QUEUE)) == []


def test_what_can_be_forwarded(stores: Stores) -> None:
    """A queue of each kind, with the updates of two stores and their total."""
    kinds: dict[str, tuple[Any, list[list[Any]], Any]] = {
        "minimum": ({"combiner": "minimum"}, [[5, 3], [4]], 3),
        "maximum": ({"combiner": "maximum"}, [[5, 3], [9, 4]], 9),
        "decimals": (
            {"value": Decimal},
            [[Decimal("0.1"), Decimal("1e40")], [Decimal("-1e40")]],
            Decimal("0.1"),
        ),
        "union": ({"combiner": "union", "value": set}, [[{1}, {2}], [{2, 3}]], {1, 2, 3}),
        "counter": (
            {"combiner": "counter", "value": dict},
            [[{"a": 2}, {"a": -2, "b": 1}], [{"a": 1}]],
            {"a": 1, "b": 1},
        ),
        "last": ({"combiner": "last", "value": str}, [["a", "b"]], "b"),
        "deleted": ({"combiner": "last", "value": str}, [["a", cq.DELETE]], None),
    }
    cells = [stores.open("cell0"), stores.open("cell1")]
    for name, (settings, given, _) in kinds.items():
        cq.configure(stores.central, name, **settings)
        for db, updates in zip(cells, given, strict=False):
            cq.configure(db, name, links=[links.queue()], **settings)
            for update in updates:
                change(db, name, {"key": update})
    for db in cells:
        drain(db)

    found = {name: values(stores.central, name).get("key") for name in kinds}
    assert found == {name: total for name, (_, _, total) in kinds.items()}


def test_what_a_store_purges_is_taken_from_the_total(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    for number in range(2):
        db = stores.cell(f"cell{number}")
        add(db, QUEUE, {"home": 10 + number})
        drain(db)
    admin.purge(db, QUEUE)
    add(db, QUEUE, {"home": 1})
    drain(db)

    assert values(stores.central) == {"home": 11}


def test_an_own_queue_at_the_receiving_store(stores: Stores) -> None:
    db = stores.open("cell")
    cq.configure(stores.central, "all", key=(str, int))
    cq.configure(db, QUEUE, key=(str, int), links=[links.queue("all")])
    add(db, QUEUE, {("a", 1): 2})
    drain(db)

    assert values(stores.central, "all") == {("a", 1): 2}
    assert [each.target for each in link_status(db)] == [f"queue all in ${QUEUE_ENV}"]


@pytest.mark.parametrize("combiner", ["union", "counter"])
def test_a_change_as_large_as_a_value_is_forwarded_in_parts(stores: Stores, combiner: str) -> None:
    value = "set" if combiner == "union" else "dict"
    cq.configure(stores.central, QUEUE, value=value, combiner=combiner)
    db = stores.cell("cell", value=value, combiner=combiner)
    large = [{f"{kind}{number:05}" for number in range(5_900)} for kind in "ab"]
    updates: list[Any] = large if combiner == "union" else [dict.fromkeys(each, 1) for each in large]
    add(db, QUEUE, *({"home": update} for update in updates))

    assert problem(db) == "active: "
    assert values(stores.central) == {"home": resolve(combiner).combine("home", updates)}


@needs_sketches
@pytest.mark.parametrize("combiner", ["distinct", "theta(lg_k=6)"])
@pytest.mark.parametrize("seed", [1, 2])
def test_items_of_many_stores_count_once(stores: Stores, combiner: str, seed: int) -> None:
    """Workers that die, commits that are unknown, and forwards that begin again, in any order."""
    draw = random.Random(seed)
    cq.configure(stores.central, QUEUE, combiner=combiner)
    cells = [stores.cell(f"cell{number}", combiner=combiner) for number in range(2)]
    seen: dict[str, set[str]] = {"home": set(), "help": set()}
    for _ in range(12):
        db = draw.choice(cells)
        key = draw.choice(list(seen))
        items = {str(draw.randrange(3_000)) for _ in range(draw.choice([1, 20, 400]))}
        seen[key] |= items
        change(db, QUEUE, {key: items})
        match draw.randrange(4):
            case 0:
                with link_tasks(db, QUEUE) as tasks:
                    for task in tasks[1:]:
                        task.signal = died
                        with suppress(Died):
                            task.run()
            case 1:
                faulty = FaultyDatabase(stores.central, draw.randrange(99), unknown=0.4)
                for task in tasks_into(db, faulty):
                    task.run()
            case 2:
                admin.rebuild_observer(db, QUEUE, f"link:{LINK}")
            case _:
                drain(db)
    drain(cells[0])
    drain(cells[1])

    assert [waits(db, QUEUE, LINK) for db in cells] == [0, 0]
    assert [problem(db).partition(": ")[2] for db in cells] == ["", ""]
    found, parts = values(stores.central), [values(db) for db in cells]
    code = resolve(combiner)
    for key, items in seen.items():
        assert found[key] == code.combine(key, [part[key] for part in parts if key in part])
        assert found[key].lower <= len(items) <= found[key].upper
    assert list(verify(stores.central, QUEUE)) == []


# What cannot be


@pytest.mark.parametrize("combiner", ["first", "quantiles", "frequent", "frequent(lg_max_k=9)"])
def test_a_combiner_whose_changes_do_not_add_up_is_refused(stores: Stores, combiner: str) -> None:
    db = stores.open("cell")
    config = configured(db, QUEUE, combiner=combiner)

    expected = "expected one of sum, minimum, maximum, last, union, counter, distinct, theta$"
    with pytest.raises(cq.errors.InvalidConfiguration, match=f"cannot be forwarded: {expected}"):
        put_built_in(db, config, links.queue())


@pytest.mark.parametrize("env", ["", "nothing://ada:secret@host", "embedded:"])
def test_a_url_that_names_no_store_is_said_and_not_repeated(stores: Stores, env: str) -> None:
    stores.monkeypatch.setenv(QUEUE_ENV, env)
    db = stores.cell("cell")
    add(db, QUEUE, {"home": 1})

    assert f"${QUEUE_ENV} " in problem(db)
    assert "secret" not in problem(db)


def test_a_receiving_store_is_not_made_where_there_is_none(stores: Stores) -> None:
    stores.use("elsewhere")
    db = stores.cell("cell")
    add(db, QUEUE, {"home": 1})

    assert f"there is no store where ${QUEUE_ENV} says" in problem(db)
    assert not (stores.folder / "elsewhere.db").exists()


def test_the_receiving_queue_must_be_there_and_of_the_same_kind(stores: Stores) -> None:
    db = stores.cell("cell")
    add(db, QUEUE, {"home": 1})
    assert "'visits' is not configured" in problem(db)
    cq.configure(stores.central, QUEUE, combiner="maximum")
    assert "has combiner maximum@1 instead of sum@1: forward into a queue of the same kind" in problem(db)
    admin.delete(stores.central, QUEUE)
    cq.configure(stores.central, QUEUE)
    drain(db)

    assert values(stores.central) == {"home": 1}


def test_a_queue_is_not_forwarded_into_itself(stores: Stores) -> None:
    db = stores.cell("central")
    add(db, QUEUE, {"home": 1})

    assert "would be forwarded into itself" in problem(db)


def test_a_receiver_of_six_levels_gets_batches_of_at_most_a_megabyte(stores: Stores) -> None:
    settings: Any = {"combiner": "last", "value": str}  # without differences: adds write all levels
    cq.configure(stores.central, QUEUE, rollup="1s:1h,1m:2h,5m:3h,15m:4h,1h:60d,1d:forever", **settings)
    db = stores.cell("cell", **settings)
    updates = [(f"key-{number}", "x" * 40_000) for number in range(60)]
    for pair in updates:
        add(db, QUEUE, [pair])
    combine(db, QUEUE)
    sized = Sized(stores.central)
    for task in tasks_into(db, sized):
        run_to_end(task)

    assert 0 < max(sized.sizes) <= MOST
    combine(stores.central, QUEUE)
    assert dict(cq.CombineQueue(QUEUE).scan(stores.central)) == dict(updates)


# Exactly once


def test_commits_that_are_unknown_count_once(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    db = stores.cell("cell")
    faulty = FaultyDatabase(stores.central, 5, unknown=0.4)
    for _ in range(3):
        change(db, QUEUE, {f"key-{number}": 1 for number in range(20)})
        for task in tasks_into(db, faulty):
            run_to_end(task)

    assert values(stores.central) == {f"key-{number}": 3 for number in range(20)}


def test_a_delivery_does_not_begin_at_an_earlier_commit_of_its_process(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would miss the position that another worker has stored since, as if the store had been set back."""
    monkeypatch.setattr(version_chain, "CHAIN_SECONDS", 3600.0)
    cq.configure(stores.central, QUEUE)
    db = stores.cell("cell")
    here, there = ChainedDatabase(db), ChainedDatabase(stores.central)
    tasks = tasks_into(here, there)
    for _ in range(2):
        for each in (here, there):
            cq.CombineQueue(QUEUE).add_now(each, {"home": 1})
        combine(db, QUEUE)
        for task in tasks:
            run_to_end(task)

    chained_adds = [["MainThread"], ["MainThread"]]  # the first add of each process begins its chain
    assert [here.chained, there.chained] == chained_adds
    assert values(stores.central) == {"home": 4}


# What was set back, and what begins again


def exported(stores: Stores, **settings: Any) -> Any:
    """A store whose queue was forwarded."""
    cq.configure(stores.central, QUEUE, **settings)
    db = stores.cell("cell", **settings)
    add(db, QUEUE, {"home": 5})
    drain(db)
    return db


def test_a_sum_that_is_forwarded_from_the_beginning_would_count_twice(stores: Stores) -> None:
    db = exported(stores)
    admin.rebuild_observer(db, QUEUE, f"link:{LINK}")

    assert "was forwarded into 'visits' before" in problem(db)
    assert values(stores.central) == {"home": 5}


def test_a_receiving_queue_that_was_purged_counts_what_comes_behind(stores: Stores) -> None:
    db = exported(stores)
    admin.purge(stores.central, QUEUE)
    add(db, QUEUE, {"home": 1})
    drain(db)

    assert values(stores.central) == {"home": 1}


def test_a_deletion_that_is_queued_before_a_rebuild_reaches_the_receiving_queue(stores: Stores) -> None:
    """It is in no value that the rebuild sends again."""
    cq.configure(stores.central, QUEUE, value=int, combiner="last")
    db = stores.cell("cell", value=int, combiner="last")
    add(db, QUEUE, {"kept": 1, "deleted": 1})
    drain(db, QUEUE)
    assert values(stores.central) == {"kept": 1, "deleted": 1}
    pause_link(db, QUEUE, LINK, paused=True)
    add(db, QUEUE, {"deleted": cq.DELETE})
    drain(db, QUEUE)
    with opened_link(db, QUEUE) as opened:
        opened.rebuild()
    pause_link(db, QUEUE, LINK, paused=False)
    drain(db, QUEUE)
    assert values(stores.central) == {"kept": 1}
