"""Combiners: the type, and the built-in combiners.

A combiner combines the updates of one key, in commit order, into the key's value. It must be associative, because cq
combines updates in groups of any size: combine([a, b, c]) == combine([combine([a, b]), c]) ==
combine([a, combine([b, c])]). It need not be commutative. It never returns None. `is_empty` decides whether a value
deletes the key, and cq calls it only when it writes a current value: a fold of +1 and -1 must not disappear before a
later 5. The idea comes from Apache Fluo's combine queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation, localcontext
from functools import lru_cache
from itertools import chain
from math import fsum, isfinite, isnan, log2
from operator import ne
from types import NoneType
from typing import Any, Final

from cq.encoding.bounds import check_merged
from cq.encoding.codec import DELETE, MAX_UPDATE_BYTES, ValueType, encode, shown
from cq.encoding.sketches import KINDS, ItemCount, Sketch
from cq.encoding.sketches.sketch import library
from cq.errors import InvalidConfiguration, InvalidData
from cq.observer import check_functions
from cq.plain_text import suggestion


def _never(value: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Combiner:
    """A function that combines the updates of a key, with its name and version.

    Args:
        name: its name in configurations, other than those of the built-in combiners.
        version: increment it with every change of the results of `combine`.
        combine: returns the combination of a non-empty sequence of values. Its arguments are the key and the values in
            commit order, the current value first if the key has one. cq calls it for a single value, too. It must be
            associative, must not return None, and must not change its arguments.
        is_empty: whether a value deletes the key.
        value_types: the types of values that it supports; empty: all types.
        takes_delete: whether `DELETE` is a valid update of its queues.
        difference: `difference(new, old)` returns an update that changes `old` into `new` in any combination that
            includes `old`; either may be None for no value. It returns None if no update is needed.
        is_idempotent: whether a value combined with itself, or with any value that it includes, stays as it is. A
            forward of all values may then start again.
        convert: `convert(key, value, version)` returns the value of this version for a value that the combiner made in
            another version: workers call it once for each value when the version of a queue's combiner changes. It
            must not return an empty value. Without it, values stay as they are.
    """

    name: str
    version: int
    combine: Callable[[Any, Sequence[Any]], Any]
    is_empty: Callable[[Any], bool] = _never
    value_types: tuple[str, ...] = ()
    takes_delete: bool = field(default=False, kw_only=True)
    difference: Callable[[Any, Any], Any] | None = field(default=None, kw_only=True)
    is_idempotent: bool = field(default=False, kw_only=True)
    convert: Callable[[Any, Any, int], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_functions(self, "combine", "difference", "convert")
        check_functions(self, "is_empty")


MAX_DIGITS: Final = 10_000
"""Limit of a sum of decimals."""

# Decimals are added exactly, because rounded sums are not associative. So a sum with too many digits is an error.
_EXACT: Final = Context(MAX_DIGITS, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])


def _sum(key: Any, values: Sequence[Any]) -> Any:
    if Decimal not in map(type, values):
        return sum(values)
    with _exactly():
        return sum(values)


@contextmanager
def _exactly() -> Iterator[None]:
    try:
        with localcontext(_EXACT):
            yield
    except Inexact:
        raise InvalidData(f"a sum of these decimals takes more than {MAX_DIGITS:,} digits") from None


def _subtracted(new: Any, old: Any) -> Any:
    new, old = (0 if value is None else value for value in (new, old))
    if Decimal not in (type(new), type(old)):
        return new - old
    with _exactly():
        return new - old


def _same(new: Any, old: Any) -> Any:
    return new  # to combine it again changes nothing


def _is_zero(value: Any) -> bool:
    return bool(value == 0)


def _minimum(key: Any, values: Sequence[Any]) -> Any:
    return min(_comparable(values))


def _maximum(key: Any, values: Sequence[Any]) -> Any:
    return max(_comparable(values))


def is_comparable(value: object) -> bool:
    """Whether the value has a place in a total order of its type. False for NaN and sets, also within lists.

    Comparisons with NaN are false, and sets are compared by inclusion, so the minimum of several such values would
    depend on their grouping.
    """
    if isinstance(value, float):
        return value == value
    if isinstance(value, Decimal):
        return not value.is_nan()
    if isinstance(value, list | tuple):
        return all(map(is_comparable, value))
    return not isinstance(value, Set)


def _comparable(values: Sequence[Any]) -> Sequence[Any]:
    """The comparable values, or only the first value if all are incomparable.

    `add` refuses incomparable values, but earlier versions stored them. Skipping them is associative, and the next
    number replaces a stored NaN.
    """
    return [value for value in values if is_comparable(value)] or values[:1]


def _last(key: Any, values: Sequence[Any]) -> Any:
    return values[-1]


def _is_delete(value: Any) -> bool:
    return value is DELETE


def _first(key: Any, values: Sequence[Any]) -> Any:
    return values[0]


def _union(key: Any, values: Sequence[Set[Any]]) -> Any:
    check_merged(values)
    return set().union(*values)


def _added_items(new: Set[Any] | None, old: Set[Any] | None) -> Any:
    return set(new or ()) - set(old or ()) or None


def _counter(key: Any, values: Sequence[Mapping[Any, Any]]) -> Any:
    check_merged(values)
    total: dict[Any, Any] = {}
    with _exactly():
        for counts in values:
            for item, count in counts.items():
                total[item] = total.get(item, 0) + count
    return {item: count for item, count in total.items() if count != 0}


def _subtracted_counts(new: Mapping[Any, Any] | None, old: Mapping[Any, Any] | None) -> Any:
    with _exactly():  # unary minus rounds a Decimal, too
        negated = {item: -count for item, count in (old or {}).items()}
    return _counter(None, [new or {}, negated]) or None


def updates_between(combiner: Combiner, new: Any, old: Any) -> list[Any]:
    """The updates that change `old` into `new`, see `Combiner.difference`; none if no update is needed.

    A value may be larger than an update, and the difference of two values as large as both together. So a large
    difference of the built-in combiners of sets and dicts comes in parts, whose combination it is.
    """
    if combiner.difference is None:
        raise TypeError(f"the combiner {combiner.name!r} has no differences")
    update = combiner.difference(new, old)
    if update is None:
        return []
    return _parts(update) if combiner.difference in (_added_items, _subtracted_counts) else [update]


def _parts(update: Any) -> list[Any]:
    """A set or a dict as parts that each have the size of an update; a single item stays as it is."""
    if len(update) < 2 or len(encode(update)) <= MAX_UPDATE_BYTES:
        return [update]
    items = list(update.items() if isinstance(update, Mapping) else update)
    kind, middle = dict if isinstance(update, Mapping) else set, len(items) // 2
    return [part for half in (items[:middle], items[middle:]) for part in _parts(kind(half))]


def _intervals(key: Any, values: Sequence[Sequence[Sequence[int]]]) -> Any:
    united: list[list[int]] = []
    for begin, end, number in sorted(map(tuple, chain.from_iterable(values))):
        if united and begin < united[-1][1]:
            united[-1] = [united[-1][0], max(united[-1][1], end), united[-1][2] + number]
        else:
            united.append([begin, end, number])
    return united


def _is_empty(value: Any) -> bool:
    return not value


def _log_of_sum(key: Any, values: Sequence[float]) -> float:
    """The binary logarithm of the sum of the numbers with these logarithms."""
    highest = max(values)
    return highest + log2(fsum(2.0 ** (value - highest) for value in values))


def latest_only(combiner: Combiner) -> Combiner:
    """A combiner of values that are the latest update alone, in the form of the given combiner's values."""

    def latest(key: Any, values: Sequence[Any]) -> Any:
        return combiner.combine(key, values[-1:])

    return replace(combiner, combine=latest, is_empty=_never, difference=None)


_COMPARING: Final = ("minimum", "maximum")  # accept only comparable values
_ADDABLE: Final = frozenset((int, float, bool, Decimal))
_ADDED_ONCE: Final = frozenset((str, bytes, int, bool))


def _is_number(value: object) -> bool:
    """Whether the value can be added to others. False for Decimals without digits: CBOR gives them back as floats."""
    return type(value) in _ADDABLE and (type(value) is not Decimal or value.is_finite())


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]


def _is_not_finite(value: float) -> bool:
    return not isfinite(value)


REFUSED_FLOATS: Final[Mapping[str, Callable[[float], bool]]] = {
    **dict.fromkeys(_COMPARING, isnan),
    "decaying": _is_not_finite,
}
"""{built-in combiner: which floats it refuses}, of those that refuse some."""


def _has_counts(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_number, value.values())) and _is_without_nan(value)


def _is_without_nan(members: object) -> bool:
    """Whether these members of a set, or keys of a dict, equal themselves: NaN would be one more with each add."""
    return isinstance(members, Set | Mapping) and (
        set(map(type, members)) <= _ADDED_ONCE or not any(map(_has_nan, members))
    )


def _has_nan(member: object) -> bool:
    if isinstance(member, tuple | frozenset):
        return any(map(_has_nan, member))
    return isinstance(member, float | Decimal) and not is_comparable(member)


def _are_intervals(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_interval, value))


def _is_interval(value: object) -> bool:
    if not isinstance(value, list | tuple) or list(map(type, value)) != [int, int, int]:
        return False
    begin, end, _ = value
    return bool(begin < end)


_TAKEN: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "sum": (_is_number, "a number"),
    "counter": (_has_counts, "a dict of numbers, without NaN as a key,"),
    "union": (_is_without_nan, "a set without NaN"),
    "intervals": (_are_intervals, "a list of intervals [begin, end, number] of ints, where begin < end,"),
    "decaying": (_is_finite, "a finite float"),
    **dict.fromkeys(_COMPARING, (is_comparable, "a value that has an order, so neither NaN nor a set")),
}
"""{built-in combiner: whether it can combine an update of its value types, and what it expects}."""


def check_combinable(name: str, version: int, update: object) -> None:
    """Raises `InvalidData` if the built-in combiner of this name and version could not combine the update.

    Combiners of applications are not asked: who adds need not have their code.
    """
    can_combine, expected = _TAKEN.get(name, (None, ""))
    if can_combine is not None and BUILT_IN[name].version == version and not can_combine(update):
        raise InvalidData(f"expected {expected} for the combiner {name!r}, got: {shown(update)}")


_NUMBERS: Final = ("int", "decimal", "float", "any")
_ORDERED: Final = (*_NUMBERS, "str", "bytes", "datetime")


def of_sketches(kind: type[Sketch], size: int) -> Combiner:
    """The combiner of a kind of sketches of this size: raw items, batches and sketches become one sketch.

    Its name has the size, such as `distinct(lg_k=14)`, unless it is the default size.
    """
    name = kind.KIND if size == kind.SIZE else f"{kind.KIND}({kind.PARAMETER}={size})"

    def combine(key: Any, values: Sequence[Any]) -> Any:
        return kind.merge(values, size)

    is_union = issubclass(kind, ItemCount)
    return Combiner(
        name,
        1,
        combine,
        _is_empty_sketch,
        (kind.KIND,),
        difference=_same if is_union else None,
        is_idempotent=is_union,
    )


def _is_empty_sketch(value: Any) -> bool:
    return isinstance(value, Sketch) and value.is_empty


sum_ = Combiner("sum", 1, _sum, _is_zero, _NUMBERS, difference=_subtracted)
minimum = Combiner("minimum", 1, _minimum, _never, _ORDERED, difference=_same, is_idempotent=True)
maximum = Combiner("maximum", 1, _maximum, _never, _ORDERED, difference=_same, is_idempotent=True)
last = Combiner("last", 1, _last, _is_delete, takes_delete=True, is_idempotent=True)
first = Combiner("first", 1, _first, is_idempotent=True)
union = Combiner("union", 1, _union, _is_empty, ("set",), difference=_added_items, is_idempotent=True)
counter = Combiner("counter", 1, _counter, _is_empty, ("dict",), difference=_subtracted_counts)
intervals = Combiner("intervals", 1, _intervals, _is_empty, ("list",))
decaying = Combiner("decaying", 1, _log_of_sum, value_types=("float",))
_SKETCHES: Final = tuple(of_sketches(kind, kind.SIZE) for kind in KINDS.values())

BUILT_IN: Final[dict[str, Combiner]] = {
    combiner.name: combiner
    for combiner in (sum_, minimum, maximum, last, first, union, counter, intervals, decaying, *_SKETCHES)
}
"""The built-in combiners, which every worker has:

- `sum`: of int or Decimal, exact; of float, approximate, because float addition is not associative. 0 deletes the key.
- `minimum`, `maximum`: of numbers, str, bytes or datetimes. They refuse NaN and sets, which have no total order.
- `last`, `first`: the update that was committed last or first. `DELETE` as an update of `last` deletes the key.
- `union`: of sets, without NaN. An empty set deletes the key.
- `counter`: of dicts of counts, summed for each item, which is not NaN. Items with count 0 are removed; an empty dict
  deletes the key.
- `intervals`: of lists of intervals [begin, end, number]. Those that overlap become one, with the sum of their numbers.
- `decaying`: of floats, logarithms of scores that decay, see `cq.observers.top.HalfLife`; approximate, as `sum`.
- `distinct`, `quantiles`, `frequent`, `theta`: sketches, see `cq.sketches`. A sketch without items deletes the key.

Sketches of other sizes are built in, too, with names such as `distinct(lg_k=14)`: see `built_in_combiner`.
"""
_SIZED: Final = re.compile(r"([a-z]+)\(([a-z_]+)=([1-9][0-9]{0,3})\)")


@lru_cache(maxsize=256)
def built_in_combiner(name: str) -> Combiner | None:
    """The built-in combiner of a name, also of sketches of another size; None: there is none.

    >>> built_in_combiner("distinct(lg_k=14)").name
    'distinct(lg_k=14)'
    """
    named = _SIZED.fullmatch(name)
    if named is None:
        return BUILT_IN.get(name)
    kind, size = KINDS.get(named[1]), int(named[3])
    if kind is None or named[2] != kind.PARAMETER or size not in kind.SIZES:
        return None
    return BUILT_IN[kind.KIND] if size == kind.SIZE else of_sketches(kind, size)


def resolve(combiner: str | Combiner) -> Combiner:
    """The built-in combiner of a name, or the given combiner; raises `InvalidConfiguration` for an unknown name.

    A combiner of an application must have a name of its own, as audits, windows and roll-ups know the built-in ones by
    name.
    """
    if isinstance(combiner, Combiner):
        if BUILT_IN.get(combiner.name, combiner) != combiner:
            raise InvalidConfiguration(
                f"{combiner.name!r} is the name of a built-in combiner: give your combiner another name"
            )
        return combiner
    found = built_in_combiner(combiner) if isinstance(combiner, str) else None
    kind = KINDS.get(combiner.partition("(")[0]) if isinstance(combiner, str) else None
    if found is None and kind is not None:
        raise InvalidConfiguration(
            f"expected a size of {kind.KIND!r} from {kind.KIND}({kind.PARAMETER}={kind.SIZES[0]}) to "
            f"{kind.KIND}({kind.PARAMETER}={kind.SIZES[-1]}), got: {shown(combiner)}"
        )
    if found is None:
        raise InvalidConfiguration(
            f"expected a combiner of {', '.join(BUILT_IN)} (or a cq.Combiner of your own), got: {shown(combiner)}"
            f"{suggestion(combiner, BUILT_IN)}"
        )
    return found


def require_packages(value: ValueType) -> None:
    """Raises `MissingPackage` if combining values of this type needs a package that is not installed."""
    if value.sketch is not None and value.sketch.NEEDS_PACKAGE:
        library()


def combine_many(combiner: Combiner, keys: Sequence[Any], lists: Sequence[Sequence[Any]]) -> list[Any]:
    """The combination of each key's values; raises the combiner's errors, and `InvalidData` if it returns None."""
    for_many = _FOR_MANY.get(combiner.combine)
    found = for_many(lists) if for_many else None
    if found is None:
        found = [combiner.combine(key, values) for key, values in zip(keys, lists, strict=True)]
    if NoneType in set(map(type, found)):
        key = next(key for key, value in zip(keys, found, strict=True) if value is None)
        raise InvalidData(f"the combiner {combiner.name!r} returned None for the key {key!r}")
    return found


def _sums(lists: Sequence[Sequence[Any]]) -> list[Any] | None:
    """The sum of each list; None if a sum is a Decimal, which `_sum` must compute exactly."""
    try:
        sums = list(map(sum, lists))
    except ArithmeticError:  # raised by the current decimal context, which may have any traps
        return None
    return None if Decimal in set(map(type, sums)) else sums


def _extremes(
    choose: Callable[[Sequence[Any]], Any],
) -> Callable[[Sequence[Sequence[Any]]], list[Any] | None]:
    """A function that applies `choose` to each list, or returns None if some value may be incomparable."""

    def for_many(lists: Sequence[Sequence[Any]]) -> list[Any] | None:
        kinds = set(map(type, chain.from_iterable(lists)))
        if not kinds <= _SCALARS:
            return None
        if float in kinds and any(map(ne, chain.from_iterable(lists), chain.from_iterable(lists))):
            return None  # a value differs from itself: it is NaN
        return list(map(choose, lists))

    return for_many


_SCALARS: Final = frozenset((int, float, bool, str, bytes, Decimal, datetime))
_FOR_MANY: Final[dict[Callable[[Any, Any], Any], Callable[[Sequence[Sequence[Any]]], list[Any] | None]]] = {
    _sum: _sums,
    _minimum: _extremes(min),
    _maximum: _extremes(max),
    _last: lambda lists: [values[-1] for values in lists],
    _first: lambda lists: [values[0] for values in lists],
}
"""{function of a built-in combiner: the same for many lists, without a Python call for each}. They may return None."""


def changes(current: Mapping[Any, int], new: Mapping[Any, int]) -> dict[Any, int]:
    """The updates of a queue of sums that change one dict of counts into another.

    Args:
        current: {key: count} that the queue contains.
        new: {key: count} that the queue will contain.

    Raises:
        InvalidData: a count is not an int.

    >>> changes({"a": 2, "b": 1}, {"a": 5, "c": 1})
    {'a': 3, 'c': 1, 'b': -1}
    """
    for counts in (current, new):
        for key, count in counts.items():
            if type(count) is not int:
                raise InvalidData(f"expected counts of type int, got: {count!r} for {key!r}")
    differences = {key: count - current.get(key, 0) for key, count in new.items()}
    differences.update((key, -count) for key, count in current.items() if key not in new)
    return {key: difference for key, difference in differences.items() if difference}
