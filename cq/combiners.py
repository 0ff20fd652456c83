"""What a combiner is, and the built-in ones.

A combiner folds the updates of one key, in commit order, into the key's value. It must be associative, since cq
combines updates in whatever groups they arrive: combine([a, b, c]) == combine([combine([a, b]), c]) ==
combine([a, combine([b, c])]). It need not be commutative. It never returns None: whether a value means that the key
is gone is asked of `is_empty`, and only when a current value is written; a partial combination that vanished would
give wrong answers (+1 and -1 folded ahead of a 5). The idea is that of Apache Fluo's combine queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation, localcontext
from itertools import chain
from operator import ne
from types import NoneType
from typing import Any, Final

from cq.encoding.bounds import check_merged
from cq.encoding.codec import DELETE, shown
from cq.errors import InvalidConfiguration, InvalidData


def _never(value: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Combiner:
    """How the updates of a key become its value.

    Args:
        name: what the queue's configuration calls it.
        version: to be raised with every change of what `combine` returns.
        combine: called with the key and a non-empty sequence of values in commit order, the current one first if
            there is one, and also when there is but one value; returns their combination. Associative, never None,
            must not change its arguments.
        is_empty: whether a value means that the key has none and is to be deleted.
        value_types: the value types it works on; empty for all.
        takes_delete: whether `DELETE` is an update of its queues.
    """

    name: str
    version: int
    combine: Callable[[Any, Sequence[Any]], Any]
    is_empty: Callable[[Any], bool] = _never
    value_types: tuple[str, ...] = ()
    takes_delete: bool = field(default=False, kw_only=True)


MAX_DIGITS: Final = 10_000
"""Of a sum of decimals."""

# Decimals are added exactly, since rounded sums do not associate; so a sum that has no room is an error.
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


def _is_zero(value: Any) -> bool:
    return bool(value == 0)


def _minimum(key: Any, values: Sequence[Any]) -> Any:
    return min(_comparable(values))


def _maximum(key: Any, values: Sequence[Any]) -> Any:
    return max(_comparable(values))


def is_comparable(value: object) -> bool:
    """Whether comparisons order the value against every other of its type: false for NaN and sets, also in lists.

    Sets are compared by inclusion. Neither order is total, so the least of several such values would depend on how they
    are grouped.
    """
    if isinstance(value, float):
        return value == value
    if isinstance(value, Decimal):
        return not value.is_nan()
    if isinstance(value, list | tuple):
        return all(map(is_comparable, value))
    return not isinstance(value, Set)


def _comparable(values: Sequence[Any]) -> Sequence[Any]:
    """The comparable values, or the first value if there are none.

    `add` refuses all others, but earlier versions stored them. Skipping them associates, and replaces a stored NaN
    by the first number that follows.
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


def _counter(key: Any, values: Sequence[Mapping[Any, Any]]) -> Any:
    check_merged(values)
    total: dict[Any, Any] = {}
    with _exactly():
        for counts in values:
            for item, count in counts.items():
                total[item] = total.get(item, 0) + count
    return {item: count for item, count in total.items() if count != 0}


def _is_nothing(value: Any) -> bool:
    return not value


COMPARING: Final = frozenset(("minimum", "maximum"))
"""Built-in combiners that compare values, and take only those that are comparable."""
_NUMBERS: Final = ("int", "decimal", "float", "any")
_ORDERED: Final = (*_NUMBERS, "str", "bytes", "datetime")

sum_ = Combiner("sum", 1, _sum, _is_zero, _NUMBERS)
minimum = Combiner("minimum", 1, _minimum, _never, _ORDERED)
maximum = Combiner("maximum", 1, _maximum, _never, _ORDERED)
last = Combiner("last", 1, _last, _is_delete, takes_delete=True)
first = Combiner("first", 1, _first)
union = Combiner("union", 1, _union, _is_nothing, ("set",))
counter = Combiner("counter", 1, _counter, _is_nothing, ("dict",))

BUILT_IN: Final[dict[str, Combiner]] = {
    combiner.name: combiner for combiner in (sum_, minimum, maximum, last, first, union, counter)
}
"""The combiners that every worker has:

- `sum`: of int or Decimal, exact (floats do not associate: their sums are approximate); a sum of 0 deletes the key.
- `minimum`, `maximum`: of numbers, str, bytes or datetimes; NaN and sets have no order and are refused.
- `last`, `first`: the update committed last or first; `DELETE` as an update of `last` deletes the key.
- `union`: of sets; an empty set deletes the key.
- `counter`: of dicts of counts, summed item by item; items of count 0 vanish, an empty dict deletes the key.
"""


def resolve(combiner: str | Combiner) -> Combiner:
    """A combiner by its name, or itself; raises `InvalidConfiguration` for a name that is not built in."""
    if isinstance(combiner, Combiner):
        return combiner
    if not isinstance(combiner, str) or combiner not in BUILT_IN:
        raise InvalidConfiguration(
            f"expected a combiner of {', '.join(BUILT_IN)} (or a cq.Combiner of your own), got: {shown(combiner)}"
        )
    return BUILT_IN[combiner]


def combine_many(combiner: Combiner, keys: Sequence[Any], lists: Sequence[Sequence[Any]]) -> list[Any]:
    """What the combiner makes of each key's values; raises what it raises, and `InvalidData` if it returns None."""
    at_once = _AT_ONCE.get(combiner.combine)
    found = at_once(lists) if at_once else None
    if found is None:
        found = [combiner.combine(key, values) for key, values in zip(keys, lists, strict=True)]
    if NoneType in set(map(type, found)):
        key = next(key for key, value in zip(keys, found, strict=True) if value is None)
        raise InvalidData(f"the combiner {combiner.name!r} returned None for the key {key!r}")
    return found


def _sums(lists: Sequence[Sequence[Any]]) -> list[Any] | None:
    """All sums; None when there are decimals among them, which are to be exact."""
    try:
        sums = list(map(sum, lists))
    except ArithmeticError:  # of the context that happens to be there
        return None
    return None if Decimal in set(map(type, sums)) else sums


def _extremes(
    choose: Callable[[Sequence[Any]], Any],
) -> Callable[[Sequence[Sequence[Any]]], list[Any] | None]:
    """A function that applies `choose` to each list; it returns None unless all values are surely comparable."""

    def at_once(lists: Sequence[Sequence[Any]]) -> list[Any] | None:
        kinds = set(map(type, chain.from_iterable(lists)))
        if not kinds <= _SCALARS:
            return None
        if float in kinds and any(map(ne, chain.from_iterable(lists), chain.from_iterable(lists))):
            return None  # only NaN differs from itself
        return list(map(choose, lists))

    return at_once


_SCALARS: Final = frozenset((int, float, bool, str, bytes, Decimal, datetime))
_AT_ONCE: Final[dict[Callable[[Any, Any], Any], Callable[[Sequence[Sequence[Any]]], list[Any] | None]]] = {
    _sum: _sums,
    _minimum: _extremes(min),
    _maximum: _extremes(max),
    _last: lambda lists: [values[-1] for values in lists],
    _first: lambda lists: [values[0] for values in lists],
}
"""What does the same as a combination for many lists, without a call in Python for each."""


def changes(current: Mapping[Any, int], new: Mapping[Any, int]) -> dict[Any, int]:
    """The updates of a queue of sums that turn one dict of counts into another.

    Raises `InvalidData` when a count is no int.

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
