"""Forwarding: the totals of many stores in one, exactly once, and nothing passed over when a store was set back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import keys
from cq.combiners import resolve
from cq.observers.builtin import FACTORIES
from cq.observers.export.queue import BUCKETS
from cq.observers.export.spec import export_spec
from cq.observers.export.task import ExportTask
from cq.observers.exporters import export_tasks
from cq.observers.forward.exporter import ForwardExporter
from cq.observers.forward.observer import DEFAULT_ENV, NAME, forward_spec
from cq.observers.monitoring.export_status import export_status
from cq.store.api import METADATA_VERSION
from cq.store.transact import transact
from cq.testing import drain
from cq.verify.queue import verify
from tests.faults import FaultyDatabase
from tests.helpers import add, combine_all, configured, put_built_in, stored
from tests.observers.export.exporthelpers import entries_aside, run_to_end, waits, with_settings
from tests.sized import MOST, Sized

QUEUE = "visits"


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
        self.monkeypatch.setenv(DEFAULT_ENV, f"embedded:{self.folder}/{name}.db")

    def cell(self, name: str, **settings: Any) -> Any:
        """A store that forwards its queue."""
        db = self.open(name)
        cq.configure(db, QUEUE, observers=[forward_spec()], **settings)
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


class _App(cq.App):
    """An app that has the built-in observers."""

    def code(self, wanted: Any, built_in: Any = None) -> Any:
        return super().code(wanted, built_in or FACTORIES)


def combine(db: Any, name: str = QUEUE) -> None:
    """Run passes until nothing is queued, without exporting."""
    combine_all(db, name, _App())


def exporter_of(db: Any) -> tuple[ForwardExporter, int]:
    """The exporter of a queue, and its generation."""
    config = configured(db, QUEUE)
    observer = next(each for each in config.observers if each.name == NAME)
    keeper: Any = export_tasks(db, config, observer)[0]
    return keeper._exporter, observer.generation


def problem(db: Any) -> str:
    """Why the forward fails or is stopped."""
    drain(db, QUEUE)
    (found,) = export_status(db, QUEUE)
    return f"{found.state}: {found.error}"


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
    assert [waits(db, QUEUE) for db in cells] == [0, 0, 0]
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
            cq.configure(db, name, observers=[forward_spec()], **settings)
            for update in updates:
                add(db, name, {"key": update})
                combine(db, name)
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
    cq.purge(db, QUEUE)
    add(db, QUEUE, {"home": 1})
    drain(db)

    assert values(stores.central) == {"home": 11}


def test_an_own_queue_at_the_receiving_store(stores: Stores) -> None:
    db = stores.open("cell")
    cq.configure(stores.central, "all", key=(str, int))
    cq.configure(db, QUEUE, key=(str, int), observers=[forward_spec("all")])
    add(db, QUEUE, {("a", 1): 2})
    drain(db)

    assert values(stores.central, "all") == {("a", 1): 2}
    assert [each.table for each in export_status(db)] == [f"all in ${DEFAULT_ENV}"]


def test_a_forward_that_is_enabled_later_begins_with_all_values(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    db = stores.open("cell")
    cq.configure(db, QUEUE)
    add(db, QUEUE, {"home": 7})
    drain(db)
    put_built_in(db, configured(db, QUEUE), forward_spec())
    add(db, QUEUE, {"home": 1})
    drain(db)

    assert values(stores.central) == {"home": 8}


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
        add(db, QUEUE, {key: items})
        combine(db)
        exporter, generation = exporter_of(db)
        match draw.randrange(4):
            case 0:
                for task in tasks_of(db, exporter, generation, died):
                    with suppress(Died):
                        task.run()
            case 1:
                exporter._receiving = FaultyDatabase(stores.central, draw.randrange(99), unknown=0.4)
                for task in tasks_of(db, exporter, generation, lambda point: None):
                    task.run()
                exporter._receiving = None  # it stays open
            case 2:
                cq.rebuild_observer(db, QUEUE, NAME)
            case _:
                drain(db)
        exporter.close()
    drain(cells[0])
    drain(cells[1])

    assert [waits(db, QUEUE) for db in cells] == [0, 0]
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
    with pytest.raises(cq.InvalidConfiguration, match=f"cannot be forwarded: {expected}"):
        put_built_in(db, config, forward_spec())


@pytest.mark.parametrize(("first", "second"), [("export", "forward"), ("forward", "export")])
def test_a_queue_has_a_table_or_is_forwarded(stores: Stores, first: str, second: str) -> None:
    db = stores.open("cell")
    specs = {"export": export_spec("visits"), "forward": forward_spec()}
    config = put_built_in(db, configured(db, QUEUE), specs[first])

    with pytest.raises(cq.InvalidConfiguration, match=f"has the observer '{first}', and cannot have"):
        put_built_in(db, config, specs[second])


@pytest.mark.parametrize("env", ["", "nothing://ada:secret@host", "embedded:"])
def test_a_url_that_names_no_store_is_said_and_not_repeated(stores: Stores, env: str) -> None:
    stores.monkeypatch.setenv(DEFAULT_ENV, env)
    db = stores.cell("cell")
    add(db, QUEUE, {"home": 1})

    assert f"${DEFAULT_ENV} " in problem(db)
    assert "secret" not in problem(db)


def test_a_receiving_store_is_not_made_where_there_is_none(stores: Stores) -> None:
    stores.use("elsewhere")
    db = stores.cell("cell")
    add(db, QUEUE, {"home": 1})

    assert f"there is no store where ${DEFAULT_ENV} says" in problem(db)
    assert not (stores.folder / "elsewhere.db").exists()


def test_a_variable_is_named_and_no_url(stores: Stores) -> None:
    with pytest.raises(cq.InvalidConfiguration, match="such as CQ_FORWARD_URL"):
        forward_spec(url_env="embedded:central.db")


def test_the_receiving_queue_must_be_there_and_of_the_same_kind(stores: Stores) -> None:
    db = stores.cell("cell")
    add(db, QUEUE, {"home": 1})
    assert "'visits' is not configured" in problem(db)
    cq.configure(stores.central, QUEUE, combiner="maximum")
    assert "has combiner maximum@1 instead of sum@1: forward into a queue of the same kind" in problem(db)
    cq.delete(stores.central, QUEUE)
    cq.configure(stores.central, QUEUE)
    drain(db)

    assert values(stores.central) == {"home": 1}


def test_a_queue_is_not_forwarded_into_itself(stores: Stores) -> None:
    db = stores.cell("central")
    add(db, QUEUE, {"home": 1})

    assert "would be forwarded into itself" in problem(db)


def test_an_update_that_is_refused_is_set_aside(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE, rollup="1m:2d")  # whose keys are shorter
    db = stores.cell("cell")
    add(db, QUEUE, {"a": 1, "a" * 7_995: 1, "b": 1})
    drain(db)

    assert values(stores.central) == {"a": 1, "b": 1}
    (found,) = entries_aside(db, QUEUE)
    assert "exceeds the limit" in found.error


def test_a_receiver_of_six_levels_gets_batches_of_at_most_a_megabyte(stores: Stores) -> None:
    settings: Any = {"combiner": "last", "value": str}  # without differences: adds write all levels
    cq.configure(stores.central, QUEUE, rollup="1s:1h,1m:2h,5m:3h,15m:4h,1h:60d,1d:forever", **settings)
    db = stores.cell("cell", **settings)
    updates = [(f"key-{number}", "x" * 40_000) for number in range(60)]
    for pair in updates:
        add(db, QUEUE, [pair])
    combine(db)
    exporter, generation = exporter_of(db)
    exporter._receiving = sized = Sized(stores.central)
    for task in tasks_of(db, exporter, generation, lambda point: None):
        run_to_end(task)

    assert 0 < max(sized.sizes) <= MOST
    combine(stores.central)
    assert dict(cq.CombineQueue(QUEUE).scan(stores.central)) == dict(updates)


# Exactly once


class Died(BaseException):
    """The process is no more."""


def died(point: str) -> None:
    if point == "exported":
        raise Died


def tasks_of(db: Any, exporter: ForwardExporter, generation: int, signal: Any) -> list[ExportTask]:
    return [
        with_settings(ExportTask(db, QUEUE, bucket, exporter, generation=generation), signal=signal)
        for bucket in range(BUCKETS)
    ]


def test_a_batch_whose_worker_dies_counts_once(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    db = stores.cell("cell")
    exporter, generation = exporter_of(db)
    add(db, QUEUE, {f"key-{number}": 1 for number in range(50)})
    combine(db)
    for task in tasks_of(db, exporter, generation, died):
        with pytest.raises(Died):
            task.run()
    exporter.close()
    add(db, QUEUE, {f"key-{number}": 1 for number in range(50)})
    drain(db)

    assert values(stores.central) == {f"key-{number}": 2 for number in range(50)}


def test_a_worker_that_was_late_changes_nothing(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    db = stores.cell("cell")
    exporter, generation = exporter_of(db)
    for _ in range(2):
        add(db, QUEUE, {f"key-{number}": 1 for number in range(50)})
        combine(db)
        for task in tasks_of(db, exporter, generation, overtaken_by(db)):
            task.run()
        drain(db)
    exporter.close()

    assert values(stores.central) == {f"key-{number}": 2 for number in range(50)}


def overtaken_by(db: Any) -> Any:
    """Have another worker do all there is to do, before the batch that was read is applied, and behind it."""

    def overtake(point: str) -> None:
        drain(db)

    return overtake


def test_commits_that_are_unknown_count_once(stores: Stores) -> None:
    cq.configure(stores.central, QUEUE)
    db = stores.cell("cell")
    exporter, generation = exporter_of(db)
    exporter._receiving = FaultyDatabase(stores.central, 5, unknown=0.4)
    for _ in range(3):
        add(db, QUEUE, {f"key-{number}": 1 for number in range(20)})
        combine(db)
        for task in tasks_of(db, exporter, generation, lambda point: None):
            run_to_end(task)

    assert values(stores.central) == {f"key-{number}": 3 for number in range(20)}


# What was set back, and what begins again


def exported(stores: Stores, **settings: Any) -> Any:
    """A store whose queue was forwarded."""
    cq.configure(stores.central, QUEUE, **settings)
    db = stores.cell("cell", **settings)
    add(db, QUEUE, {"home": 5})
    drain(db)
    return db


def restore(db: Any, rows: list[tuple[bytes, bytes]]) -> None:
    """Put all of a store back."""

    def put(tr: Any) -> None:
        tr.clear_range(b"", b"\xff")
        for key, value in rows:
            tr.set(key, value)
        tr.set_versionstamped_value(METADATA_VERSION, keys.INCOMPLETE_VERSIONSTAMP)

    transact(db, put)


ALL = (b"", b"\xff")


def test_a_receiving_store_that_was_set_back_stops_the_forward(stores: Stores) -> None:
    db = exported(stores)
    before = stored(stores.central, ALL)
    add(db, QUEUE, {"home": 1})
    drain(db)
    restore(stores.central, before)
    assert "stopped: the store in $CQ_FORWARD_URL lacks changes" in problem(db)

    cq.configure(stores.central, "anew")
    put_built_in(db, configured(db, QUEUE), forward_spec("anew"))
    drain(db)
    assert values(stores.central, "anew") == {"home": 6}


def test_another_receiving_store_stops_the_forward(stores: Stores) -> None:
    db = exported(stores)
    cq.configure(stores.open("other"), QUEUE)
    stores.use("other")
    add(db, QUEUE, {"home": 1})

    assert "is not the one exported to before. Forward it from all stores into another" in problem(db)
    stores.use("central")
    drain(db)
    assert values(stores.central) == {"home": 6}


def test_a_store_that_was_set_back_stops_its_forward(stores: Stores) -> None:
    db = exported(stores)
    before = stored(db, ALL)
    add(db, QUEUE, {"home": 1})
    drain(db)
    restore(db, before)
    add(db, QUEUE, {"home": 2})

    assert "that this store does not have: the store was set back" in problem(db)
    assert values(stores.central) == {"home": 6}


def test_a_sum_that_is_forwarded_from_the_beginning_would_count_twice(stores: Stores) -> None:
    db = exported(stores)
    cq.rebuild_observer(db, QUEUE, NAME)

    assert "was forwarded into 'visits' before" in problem(db)
    assert values(stores.central) == {"home": 5}


def test_a_maximum_may_be_forwarded_from_the_beginning(stores: Stores) -> None:
    db = exported(stores, combiner="maximum")
    cq.rebuild_observer(db, QUEUE, NAME)
    add(db, QUEUE, {"home": 7})

    assert problem(db) == "active: "
    assert values(stores.central) == {"home": 7}


def test_what_a_table_was_to_get_is_not_forwarded(stores: Stores) -> None:
    """Its entries wait in the same export queue, and are values, not differences."""
    cq.configure(stores.central, QUEUE)
    db = stores.open("cell")
    cq.configure(db, QUEUE, observers=[export_spec("visits")])
    add(db, QUEUE, {"home": 3, "about": 1})
    combine(db)
    assert waits(db, QUEUE) > 0
    cq.remove_observer(db, QUEUE, "export")
    put_built_in(db, configured(db, QUEUE), forward_spec())
    add(db, QUEUE, {"home": 1})

    assert problem(db) == "active: "
    assert values(stores.central) == {"home": 4, "about": 1}


def test_a_receiving_queue_that_was_purged_counts_what_comes_behind(stores: Stores) -> None:
    db = exported(stores)
    cq.purge(stores.central, QUEUE)
    add(db, QUEUE, {"home": 1})
    drain(db)

    assert values(stores.central) == {"home": 1}
