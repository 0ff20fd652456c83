"""Sketches by themselves: their errors, sizes and formats, and that groupings of updates agree."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq.combiners import BUILT_IN
from cq.encoding import codec
from cq.encoding.sketches import KINDS, Distinct, Frequent, Quantiles, Theta, frequent
from cq.encoding.sketches.sketch import library
from cq.errors import InvalidConfiguration, InvalidData, TooLarge
from tests.kit.processes import StartedProcesses, ended, run_code
from tests.kit.sketches import needs_sketches
from tests.sketches.damage import SIZES, whole

pytestmark = needs_sketches
MAX_BYTES = 10_000
TEXTS = st.lists(st.text(max_size=3), max_size=60)


def combine(kind: str, values: list[Any]) -> Any:
    return BUILT_IN[kind].combine("key", values)


def in_groups(kind: str, items: list[Any], chance: random.Random) -> Any:
    """The sketch of the items as passes combine them: in order, in groups of any size, some of them folded before."""
    current: list[Any] = []
    at = 0
    while at < len(items):
        group = items[at : at + chance.randrange(1, 400)]
        at += len(group)
        folded = [combine(kind, group)] if chance.random() < 0.5 else [group]
        current = [combine(kind, [*current, *folded])]
    return current[0]


@pytest.mark.parametrize("kind", ["distinct", "theta"])
@given(batches=st.lists(TEXTS, min_size=1, max_size=5), cut=st.integers(0, 5))
def test_the_bytes_of_a_distinct_count_depend_on_the_set_of_items_only(
    kind: str, batches: list[list[str]], cut: int
) -> None:
    items = [item for batch in batches for item in batch]
    whole = combine(kind, [items])

    assert combine(kind, [combine(kind, batches[:cut]), *batches[cut:]]) == whole
    assert combine(kind, [*map(str, reversed(items)), combine(kind, batches)]) == whole


@pytest.mark.parametrize(("kind", "error"), [("distinct", 0.05), ("theta", 0.1)])
@pytest.mark.parametrize("count", [100, 1_025, 30_000])
def test_distinct_counts_are_within_their_bounds(kind: str, error: float, count: int) -> None:
    """The hashes of DataSketches are fixed, so these results are, too: each run has the same errors."""
    items = [f"visitor {number}" for number in range(count)] + ["visitor 0"] * 50

    found = in_groups(kind, items, random.Random(1))

    assert found == in_groups(kind, items[::-1], random.Random(2))
    assert abs(found.estimate - count) <= error * count
    assert found.lower <= found.estimate <= found.upper
    assert len(found.data) < MAX_BYTES
    if count == 100:
        assert found.estimate == count


def test_the_bounds_of_distinct_counts_hold_as_often_as_documented() -> None:
    """Of 200 fixed sets, the bounds of two standard deviations must miss few."""
    missed: Counter[str] = Counter()
    for trial in range(200):
        items = [f"{trial} {number}" for number in range(3_000)]
        for kind in ("distinct", "theta"):
            found = combine(kind, [items])
            missed[kind] += not found.lower <= len(items) <= found.upper

    assert max(missed.values()) <= 20


def test_quantiles_are_within_their_error_however_they_are_grouped() -> None:
    """The bound is seven standard deviations: 99 of 100 errors are below 0.0133, which is 2.58 of them."""
    chance = random.Random(3)
    numbers = [chance.lognormvariate(0, 2) for _ in range(40_000)]

    found = in_groups("quantiles", numbers, chance)

    ordered = sorted(numbers)
    assert (found.count, found.minimum, found.maximum) == (len(numbers), ordered[0], ordered[-1])
    for rank in (0.01, 0.5, 0.9, 0.99):
        true = bisect_right(ordered, found.quantile(rank)) / len(ordered)
        assert abs(true - rank) < 0.04
        assert abs(found.rank(ordered[int(rank * len(ordered))]) - rank) < 0.04
    assert found.rank_error == pytest.approx(0.0133, abs=0.0001)
    assert len(found.data) < MAX_BYTES


def test_quantiles_of_few_numbers_are_exact() -> None:
    found = combine("quantiles", [[float(number) for number in range(1, 101)]])

    assert [found.quantile(rank) for rank in (0, 0.01, 0.5, 0.99, 1)] == [1, 1, 50, 99, 100]
    assert [found.rank(number) for number in (0, 1, 50.5, 100)] == [0, 0.01, 0.5, 1]
    assert combine("quantiles", [3, 1, [2]]).figures() == {
        "count": 3,
        "p50": 2,
        "p90": 3,
        "p99": 3,
        "minimum": 1,
        "maximum": 3,
    }


@given(
    batches=st.lists(st.lists(st.integers(0, 800), max_size=900), min_size=1, max_size=6), skew=st.booleans()
)
def test_counts_of_frequent_items_are_within_their_bounds_for_certain(
    batches: list[list[int]], skew: bool
) -> None:
    texts = [[str(number // 7 if skew else number) for number in batch] for batch in batches]
    true = Counter(text for batch in texts for text in batch)

    found = combine("frequent", [combine("frequent", [batch]) for batch in texts])

    top = {each.item: each for each in found.top(1_000)}
    assert found.total == true.total()
    assert found.error <= found.total / 97
    for text, count in true.items():
        lower, upper = (top[text].lower, top[text].upper) if text in top else (0, found.error)
        assert lower <= count <= upper
    if len(true) <= 192 and all(len(set(batch)) <= 192 for batch in texts):
        assert {item: each.estimate for item, each in top.items()} == true


def test_the_bounds_of_frequent_items_hold_over_many_passes() -> None:
    chance = random.Random(5)
    texts = [f"page {int(chance.paretovariate(0.6))}" for _ in range(30_000)]
    true = Counter(texts)

    found = in_groups("frequent", texts, chance)

    assert 0 < found.error <= found.total / 97
    assert found.total == len(texts)
    assert found.top(1)[0].item == "page 1"
    for each in found.top(1_000):
        assert each.lower <= true[each.item] <= each.upper == each.estimate
    missing = true.keys() - {each.item for each in found.top(1_000)}
    assert max(true[item] for item in missing) <= found.error
    assert len(found.data) < MAX_BYTES


def test_datasketches_reads_frequent_items_of_cq() -> None:
    found = combine("frequent", [[str(number % 700) for number in range(5_000)], ["x"] * 900])

    loaded = library().frequent_strings_sketch.deserialize(found.data)

    assert loaded.total_weight == found.total
    assert loaded.get_upper_bound("x") == found.top(1)[0].upper
    assert loaded.get_lower_bound("x") == found.top(1)[0].lower
    assert loaded.num_active_items == len(found.top(1_000))


def test_193_texts_at_once_leave_their_total_and_their_error() -> None:
    """DataSketches' own writer loses both: all counters are dropped."""
    found = combine("frequent", [[str(number) for number in range(193)]])

    assert (found.total, found.error, found.top(3), found.is_empty) == (193, 1, [], False)
    assert combine("frequent", [found, ["x"]]).figures() == {"total": 194, "error": 1, "top": {"x": 2}}


@pytest.mark.parametrize("size", SIZES)
def test_sketches_of_other_programs_are_read(size: int) -> None:
    """DataSketches writes an HLL sketch in types of 4, 6 and 8 bits, compact or not: all are the same sketch."""
    found = whole(size)

    assert {Distinct(data).normalised() for data in found["distinct"]} == {
        combine("distinct", [[f"item {number}" for number in range(size)]]).data
    }
    assert len({Theta(data).normalised() for data in found["theta"]}) == 1
    items = [f"item {number}" for number in range(size)]
    assert combine("theta", [Theta(data) for data in found["theta"]]) == combine("theta", [items])
    for kind in KINDS:
        for data in found[kind]:
            assert KINDS[kind](data).is_empty == (size == 0)
            assert combine(kind, [KINDS[kind](data)]).is_empty == (size == 0)


def test_registers_of_hyperloglog_are_those_of_datasketches() -> None:
    datasketches = library()
    union = datasketches.hll_union(12)
    for number in range(400_000):
        union.update(number)
    kinds = (datasketches.HLL_4, datasketches.HLL_6, datasketches.HLL_8)

    found = {Distinct(union.get_result(kind).serialize_compact()).normalised() for kind in kinds}

    assert len(found) == 1
    assert found.pop()[40:] == union.get_result(datasketches.HLL_8).serialize_compact()[40:]


@pytest.mark.parametrize(
    "sizes", [(0, 0), (3, 4), (7, 1), (50, 7), (383, 1), (384, 1), (5_000, 300), (300, 5_000)]
)
def test_a_merged_distinct_count_is_written_as_a_checked_one(sizes: tuple[int, int]) -> None:
    """Results of the package are not checked: the numbers in them agree, as in a sketch that cq has checked."""
    for lg_k, lg_other in ((12, 12), (7, 10), (10, 7)):
        other = library().hll_sketch(lg_other, library().HLL_4)
        for item in range(sizes[0]):
            other.update(item)
        merged = Distinct.merge([Distinct(other.serialize_updatable()), [*map(str, range(sizes[1]))]], lg_k)
        assert merged.data == merged.normalised()


def test_theta_sketches_have_set_operations() -> None:
    one = combine("theta", [[f"u{number}" for number in range(100)]])
    other = combine("theta", [[f"u{number}" for number in range(60, 150)]])

    assert one.intersection(other).estimate == 40
    assert one.difference(other).estimate == 60
    assert one.union(other).estimate == 150
    assert one.intersection(combine("theta", [["x"]])).estimate == 0
    with pytest.raises(InvalidData, match="expected a theta sketch, got: str"):
        one.difference("u1")


def test_set_operations_of_large_sets_are_within_their_bounds() -> None:
    one = combine("theta", [[f"u{number}" for number in range(20_000)]])
    other = combine("theta", [[f"u{number}" for number in range(15_000, 40_000)]])

    for found, true in ((one.intersection(other), 5_000), (one.difference(other), 15_000)):
        assert found.lower <= true <= found.upper
        assert combine("theta", [found]).estimate == found.estimate


@pytest.mark.parametrize("size", [8, 23, 24, 255, 256, 65_535, 65_536, 89_000])
def test_a_sketch_is_encoded_as_by_the_encoder_of_cbor(size: int) -> None:
    found = Distinct(bytes([0, 0, Distinct.FAMILY]).ljust(size, b"x"))
    assert codec.encode_value(found) == codec.encode(found)
    assert codec.decode(codec.encode_value(found)) == found


def test_an_encoded_sketch_has_the_limit_of_any_value() -> None:
    with pytest.raises(TooLarge):
        codec.encode_value(Distinct(bytes([0, 0, Distinct.FAMILY]).ljust(100_000, b"x")))


@pytest.mark.parametrize("kind", list(KINDS))
def test_sketches_survive_encoding_and_have_equality_and_a_plain_repr(kind: str) -> None:
    update = [1.0, 2.0] if kind == "quantiles" else ["a", "b", "b"]
    found = combine(kind, [update])

    assert codec.decode(codec.encode_value(found)) == found
    assert codec.decode(codec.encode([found]))[0] == found
    assert type(found)(bytes(found)) == found
    assert hash(type(found)(found.data)) == hash(found)
    assert found != combine(kind, [update, update[0]]) or kind in ("distinct", "theta")
    assert found != found.data
    shown = {
        "distinct": "Distinct(estimate=2, lower=2, upper=2)",
        "theta": "Theta(estimate=2, lower=2, upper=2)",
        "quantiles": "Quantiles(count=2, p50=1.0, p90=2.0, p99=2.0, minimum=1.0, maximum=2.0)",
        "frequent": "Frequent(total=3, error=0, top={'b': 2, 'a': 1})",
    }
    assert repr(found) == shown[kind]
    assert repr(type(found)(b"damaged")) == f"{type(found).__name__}(7 bytes)"


@pytest.mark.parametrize(
    ("kind", "update", "message"),
    [
        ("distinct", [b"bytes"], "to be of str, int or float, got: bytes"),
        ("distinct", 1 << 63, "an int of up to 64 bits"),
        ("theta", [True], "to be of str, int or float, got: bool"),
        ("quantiles", float("nan"), "finite numbers"),
        ("quantiles", [1, float("inf")], "finite numbers"),
        ("quantiles", 10**400, "finite numbers"),
        ("quantiles", "1", "to be numbers, got: str"),
        ("frequent", 1, "to be texts"),
        ("frequent", ["x" * 257], "at most 256 bytes"),
    ],
)
def test_items_that_cannot_be_counted_are_refused(kind: str, update: Any, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        KINDS[kind].check_update(update)


def test_questions_outside_of_their_range_are_refused() -> None:
    found = combine("quantiles", [1])
    for rank in (-0.1, 1.1, float("nan"), "0.5"):
        with pytest.raises(InvalidData, match="a rank from 0 to 1"):
            found.quantile(rank)
    with pytest.raises(InvalidData, match="finite"):
        found.rank(float("nan"))
    with pytest.raises(InvalidData, match="a number of texts"):
        combine("frequent", ["a"]).top(-1)
    assert (Quantiles(whole(0)["quantiles"][0]).quantile(0.5), Frequent(whole(0)["frequent"][0]).top(3)) == (
        None,
        [],
    )


def test_other_sizes_have_other_errors() -> None:
    items = [str(number) for number in range(20_000)]
    small, large = cq.sketches.distinct(lg_k=8), cq.sketches.distinct(lg_k=14)

    spans = [found.upper - found.lower for code in (small, large) if (found := code.combine("key", [items]))]

    assert spans[0] > 4 * spans[1]
    assert cq.sketches.distinct() is BUILT_IN["distinct"]
    assert len(cq.sketches.theta(lg_k=7).combine("key", [items]).data) == 8 * 128 + 24
    assert len(cq.sketches.quantiles(k=20).combine("key", [list(range(20_000))]).data) < 1_000
    assert len({cq.sketches.quantiles(k=k).name for k in (8, 9)}) == 2
    for wrong in (6, 17, 12.0):
        with pytest.raises(InvalidConfiguration, match="lg_k of 'distinct' to be 7 to 16"):
            cq.sketches.distinct(lg_k=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("lg_max_k", "length"), [(10, 40), (11, 256)])
def test_frequent_items_of_other_sizes_are_within_their_bounds_and_the_limit_of_a_value(
    lg_max_k: int, length: int
) -> None:
    draw = random.Random(lg_max_k)
    texts = [f"{number:0{length}}" for number in range(4_000)]
    items = [texts[int(4_000 * draw.random() ** 4)] for _ in range(12_000)]
    true = Counter(items)
    merge = partial(cq.sketches.frequent(lg_max_k=lg_max_k).combine, "key")
    parts = [merge([items[begin : begin + 2_000]]) for begin in range(0, len(items), 2_000)]

    found = merge([merge(parts[:2]), merge(parts[2:])])

    assert found.total == len(items)
    for each in found.top(10_000):
        assert each.lower <= true[each.item] <= each.upper
    shown = {each.item for each in found.top(10_000)}
    assert all(count <= found.error for item, count in true.items() if item not in shown)
    assert len(codec.encode_value(found)) <= frequent.MAX_BYTES + 100
    if len(shown) * (length + 12) < frequent.MAX_BYTES // 2:  # so bytes were never the limit
        assert found.error <= 2.7 / 2**lg_max_k * len(items)


def test_damaged_sketches_are_refused_without_a_crash(processes: StartedProcesses) -> None:
    """In a process of its own: the readers of DataSketches are in C++, and damaged bytes crash them."""
    program = Path(__file__).with_name("damage.py")

    found = ended(processes.python(program, 1, 700))

    assert (found.status, found.err) == (0, "")
    assert all(read > 0 for read in eval(found.out).values())  # noqa: S307 - of this program


def test_importing_cq_imports_neither_datasketches_nor_numpy() -> None:
    program = "import sys, cq, cq.cli.main; print(sorted({'datasketches', 'numpy'} & set(sys.modules)))"

    assert run_code(program).out == "[]\n"
