"""Queues of sketches: what they take and refuse, how passes combine them, and what reads return."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cq
import cq.aio
from cq.combiners import BUILT_IN, built_in_combiner
from cq.encoding import codec
from cq.encoding.json_values import to_json, update_to_json, value_from_json, value_from_word
from cq.encoding.sketches import KINDS, Distinct, Frequent, Quantiles, Theta
from cq.errors import (
    CodeMismatch,
    ConfigurationConflict,
    CorruptData,
    CqError,
    InvalidConfiguration,
    InvalidData,
    MissingPackage,
)
from cq.keys import QueueKeys
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from tests.kit.observing import app_with
from tests.kit.queues import add, aside, code_of, combine_all, get, put, stored
from tests.kit.sketches import needs_sketches

pytestmark = needs_sketches
MISSING = r"sketches need the package datasketches: run `pip install 'combine-queue\[sketches\]'`"


def combined(kind: str, values: list[Any]) -> Any:
    return BUILT_IN[kind].combine("key", values)


@pytest.fixture
def _without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)  # an import raises ImportError


@pytest.mark.parametrize("kind", ["distinct", "theta"])
def test_items_batches_and_sketches_are_counted(db: Any, name: str, kind: str) -> None:
    visitors = cq.configure(db, name, combiner=kind, buckets=2)
    visitors.add_now(db, {"home": "ann", "help": 1})
    visitors.add_now(db, {"home": ["ann", "bob"], "help": {1.5, "x"}})
    visitors.add_now(db, {"home": combined(kind, [("bob", "cai")]), "none": []})

    assert get(db, name, "home", pending=True).estimate == 3
    drain(db, name)
    assert_drained(db, name)
    found = transact(db, lambda tr: visitors.get_many(tr, ["home", "help", "none"]))
    assert found == {
        "home": combined(kind, [["ann", "bob", "cai"]]),
        "help": combined(kind, [1, 1.5, "x"]),
        "none": None,
    }
    assert dict(transact(db, lambda tr: visitors.items(tr.snapshot)).items) == {
        key: value for key, value in found.items() if value is not None
    }


def test_quantiles_and_frequent_items_are_read(db: Any, name: str) -> None:
    times = cq.configure(db, name, combiner="quantiles")
    pages = cq.configure(db, f"{name}p", combiner="frequent")
    times.add_now(db, {"home": 0.5})
    times.add_now(db, {"home": [number / 10 for number in range(1, 101)]})
    pages.add_now(db, {"site": ["/", "/", "/a"]})
    pages.add_now(db, {"site": "/a"})
    pages.add_now(db, {"site": "/"})
    drain(db, name)
    drain(db, f"{name}p")

    time = transact(db, lambda tr: times.get(tr, "home"))
    page = transact(db, lambda tr: pages.get(tr, "site"))
    assert isinstance(time, Quantiles)
    assert (time.count, time.quantile(0.99), time.maximum) == (101, 9.9, 10)
    assert isinstance(page, Frequent)
    assert page.top(1) == [("/", 3, 3, 3)]


def test_the_values_of_several_keys_are_merged(db: Any, name: str) -> None:
    visitors = cq.configure(db, name, combiner="distinct")
    visitors.add_now(db, {"mon": ["a", "b"], "tue": ["b", "c"], "wed": "d"})
    drain(db, name)

    found = transact(db, lambda tr: visitors.merged(tr, ["mon", "tue", "sun"]))
    assert isinstance(found, Distinct)
    assert found.estimate == 3
    assert transact(db, lambda tr: visitors.merged(tr.snapshot, ["sun"])) is None
    assert transact(db, lambda tr: visitors.merged(tr, [])) is None


def test_values_of_other_combiners_are_merged_too(db: Any, name: str) -> None:
    words = cq.configure(db, name)
    words.add_now(db, {"a": 5, "b": -5, "c": 2})
    drain(db, name)

    assert transact(db, lambda tr: words.merged(tr, ["a", "c", "d"])) == 7
    assert transact(db, lambda tr: words.merged(tr, ["a", "b"])) is None
    own = cq.Combiner("own", 1, lambda key, values: sum(values))
    cq.configure(db, f"{name}o", combiner=own)
    with pytest.raises(CodeMismatch, match="asks for the combiner"):
        transact(db, lambda tr: cq.CombineQueue(f"{name}o").merged(tr, ["a"]))


def test_values_are_merged_in_asyncio(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'test.db'}"
    db = cq.open(url)
    cq.configure(db, "visitors", combiner="distinct").add_now(db, {"mon": "a", "tue": ["a", "b"]})
    drain(db)

    async def read() -> Any:
        async with await cq.aio.open(url) as db:
            visitors = cq.aio.CombineQueue[str, Any]("visitors")
            return await db.transact(lambda tr: visitors.merged(tr, ["mon", "tue"]))

    assert asyncio.run(read()).estimate == 2


def test_updates_that_a_sketch_does_not_take_are_refused_before_the_first_write(db: Any, name: str) -> None:
    cq.configure(db, name, combiner="quantiles", buckets=1)
    queue = cq.CombineQueue[str, Any](name)
    whole = combined("quantiles", [[float(number) for number in range(1000)]]).data
    for wrong in (
        *(float("nan"), [1, "x"], b"bytes", None, {"a": 1}, cq.DELETE),
        *(Quantiles(whole[:-1]), Quantiles(b""), Distinct(combined("distinct", ["a"]).data)),
    ):
        with pytest.raises(InvalidData, match=r"^key 'b': "):
            queue.add_now(db, {"a": 1, "b": wrong})
    with pytest.raises(InvalidData, match="expected a serialised sketch in bytes, got: str"):
        Quantiles("text")  # type: ignore[arg-type]

    assert stored(db, QueueKeys(name).rows(1, 0)) == []


def test_a_value_type_is_implied_and_belongs_to_its_combiner(db: Any, name: str) -> None:
    cq.configure(db, name, combiner="theta")
    cq.configure(db, name)  # nothing changes

    assert code_of(db, name).config.settings()["value"] == "theta"
    with pytest.raises(
        InvalidConfiguration, match="expected a value type of distinct for the combiner 'distinct'"
    ):
        cq.configure(db, f"{name}d", combiner="distinct", value=int)
    for combiner in ("sum", "last"):
        with pytest.raises(InvalidConfiguration, match="expected a"):
            cq.configure(db, f"{name}s", combiner=combiner, value="distinct")


def test_versions_without_sketches_refuse_the_queue(db: Any, name: str) -> None:
    cq.configure(db, name, combiner="theta")
    cq.configure(db, f"{name}s")

    assert code_of(db, name).config.features == ["sketches"]
    assert code_of(db, f"{name}s").config.features == []


def test_an_update_without_new_items_changes_nothing(db: Any, name: str) -> None:
    """Then a pass neither writes the value nor calls the observers."""
    changes: list[cq.Change] = []
    app = app_with(
        db, name, cq.Observer("seen", 1, lambda tr, some: changes.extend(some)), combiner="distinct"
    )
    visitors: cq.CombineQueue[str, Any] = cq.CombineQueue(name)
    visitors.add_now(db, {"home": [f"u{number}" for number in range(1000)]})
    drain(db, name, app=app)
    visitors.add_now(db, {"home": ["u1", "u999"]})
    drain(db, name, app=app)

    assert [(each.old, each.new) for each in changes] == [(None, get(db, name, "home"))]


def test_a_damaged_value_sets_the_updates_of_its_key_aside(db: Any, name: str) -> None:
    cq.configure(db, name, combiner="distinct", buckets=1)
    damaged = Distinct(combined("distinct", [[str(number) for number in range(900)]]).data[:-5])
    encoded = codec.encode("home")
    put(db, {QueueKeys(name).value(encoded): codec.encode(damaged)})
    add(db, name, {"home": "x", "help": "y"})

    combine_all(db, name)

    (entry,) = aside(db, name)
    assert entry.updates == ["x"]
    assert "damaged bytes, or no sketch of the kind 'distinct': another length" in entry.error
    assert get(db, name, "home") == damaged
    assert get(db, name, "help").estimate == 1
    with pytest.raises(InvalidData, match="damaged bytes"):
        _ = get(db, name, "home").estimate


def test_a_damaged_update_in_a_row_is_set_aside(db: Any, name: str) -> None:
    cq.configure(db, name, combiner="theta", buckets=1)
    add(db, name, {"home": "x", "help": "y"})
    ((row, value),) = stored(db, QueueKeys(name).rows(1, 0))
    content = codec.decode(value)
    content[content.index("x")] = Theta(b"\x02\x03\x03 no sketch")
    put(db, {row: codec.encode(content)})

    combine_all(db, name)

    assert [entry.updates for entry in aside(db, name)] == [[Theta(b"\x02\x03\x03 no sketch")]]
    assert get(db, name, "help").estimate == 1


@pytest.mark.parametrize("content", [1, b"", b"\x01\x01\xff"])
def test_a_tag_without_a_sketch_is_corrupt(content: Any) -> None:
    import cbor2

    from cq.encoding.sketches import TAG

    with pytest.raises(CorruptData, match="no sketch of a known kind"):
        codec.decode(cbor2.dumps(cbor2.CBORTag(TAG, content)))


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_combiner_of_another_size_needs_no_app(db: Any, name: str, is_declared: bool) -> None:
    exact = cq.sketches.distinct(lg_k=14)
    app = cq.App()
    if is_declared:
        app.queue(name, combiner=exact)
    visitors = cq.configure(db, name, combiner="distinct(lg_k=14)")
    visitors.add_now(db, {"home": [str(number) for number in range(5_000)]})
    drain(db, name, app=app)

    found = get(db, name, "home")
    assert len(found.data) == (1 << 14) + 40
    merged = transact(db, lambda tr: cq.CombineQueue(name, combiner=exact).merged(tr, ["home"]))
    assert merged == transact(db, lambda tr: visitors.merged(tr, ["home"])) == found
    for other in ("distinct", "distinct(lg_k=13)"):
        with pytest.raises(ConfigurationConflict, match=r"combiner.*distinct\(lg_k=14\)"):
            cq.configure(db, name, combiner=other)


@pytest.mark.parametrize(
    ("combiner", "message"),
    [
        ("distinct(lg_k=17)", r"from distinct\(lg_k=7\) to distinct\(lg_k=16\), got: .distinct\(lg_k=17\)"),
        ("theta(k=9)", r"from theta\(lg_k=5\) to theta\(lg_k=13\), got"),
        ("quantiles(k=)", r"from quantiles\(k=8\) to quantiles\(k=2000\), got"),
        ("frequent(lg_max_k=08)", r"from frequent\(lg_max_k=3\) to frequent\(lg_max_k=11\), got"),
        ("sum(k=8)", r"expected a combiner of sum, .* got: .sum\(k=8\)"),
    ],
)
def test_other_sizes_by_name_are_refused(db: Any, name: str, combiner: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        cq.configure(db, name, combiner=combiner)


def test_a_size_by_name_is_that_of_the_function() -> None:
    for name, made in {
        "distinct(lg_k=7)": cq.sketches.distinct(lg_k=7),
        "theta(lg_k=13)": cq.sketches.theta(lg_k=13),
        "quantiles(k=2000)": cq.sketches.quantiles(k=2_000),
        "frequent(lg_max_k=11)": cq.sketches.frequent(lg_max_k=11),
    }.items():
        found = built_in_combiner(name)
        assert found is not None
        assert found.name == made.name == name
    for kind in KINDS.values():
        assert built_in_combiner(f"{kind.KIND}({kind.PARAMETER}={kind.SIZE})") is BUILT_IN[kind.KIND]


def test_an_emitter_merges_items(db: Any, name: str) -> None:
    visitors = cq.configure(db, name, combiner="distinct")
    with cq.Emitter(visitors, db) as emitter:
        emitter.emit_many([("home", f"visitor {number % 400}") for number in range(1000)])
        emitter.emit("home", ["visitor 1", "visitor 2"])
    drain(db, name)

    assert get(db, name, "home") == combined("distinct", [[f"visitor {number}" for number in range(400)]])


@pytest.mark.usefixtures("_without_the_package")
def test_without_the_package_items_are_added_and_nothing_is_combined(db: Any, name: str) -> None:
    visitors = cq.configure(db, name, combiner="distinct")
    visitors.add_now(db, {"home": ["ann"]})

    for use in (
        partial(code_of, db, name),
        partial(get, db, name, "home", pending=True),
        partial(transact, db, lambda tr: visitors.merged(tr, ["home"])),
        lambda: Distinct(combined_data()).estimate,
    ):
        with pytest.raises(CqError, match=MISSING) as refused:
            use()
        assert isinstance(refused.value, CodeMismatch | MissingPackage)
    assert repr(Distinct(combined_data())) == "Distinct(12 bytes)"


def combined_data() -> bytes:
    """A sketch with one coupon."""
    return bytes.fromhex("0201070c03080108") + (1 << 26 | 5).to_bytes(4, "little")


@pytest.mark.usefixtures("_without_the_package")
def test_frequent_items_need_no_package(db: Any, name: str) -> None:
    pages = cq.configure(db, name, combiner="frequent")
    pages.add_now(db, {"site": ["/", "/a", "/"]})
    drain(db, name)

    assert get(db, name, "site").top(1)[0].estimate == 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_updates_are_read_from_json(kind: str) -> None:
    value = cq.encoding.codec.ValueType(kind)
    items = [1.5, 2] if kind == "quantiles" else ["a", "b"]
    sketch = combined(kind, [items])

    for update in (items[0], items, sketch):
        assert value_from_json(value, update_to_json(update)) == update
    assert value_from_word(value, "7") == (7 if kind == "quantiles" else "7")
    for wrong in ({"sketch": "not base64"}, {"sketch": 1}, {}, {"sketch": "", "other": ""}):
        with pytest.raises(InvalidData, match=f"expected JSON of a {kind}"):
            value_from_json(value, wrong)
    assert to_json(sketch) == sketch.figures()
    assert to_json({"a": [sketch]}) == {"a": [sketch.figures()]}
