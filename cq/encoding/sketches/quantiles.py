"""Quantiles of numbers by KLL sketches: a sample of the numbers with weights, in about 5 kB.

DataSketches has two sketches for this. KLL has a bounded size and numbers of 64 bits, and its error is the same at all
ranks. REQ is more exact close to one end, but in Python it has numbers of 32 bits only, and it grows without a bound:
it takes 8 kB for a million numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from struct import Struct, unpack_from
from typing import Any, ClassVar, Final, Self

from cq.encoding.sketches.sketch import Sketch, library, require, sketches_and_items
from cq.errors import InvalidData

K: Final = 200
"""The default size: a rank error of 1.33 percent, in at most about 5.2 kB."""
MIN_K: Final = 8
MAX_K: Final = 65_535
_M: Final = 8  # the least capacity of a level
_SHORT: Final = Struct("<4BHBB")
_LONG: Final = Struct("<4BHBBQHBB")
_EMPTY, _SORTED, _SINGLE = 1, 2, 4
_MAX_LEVELS: Final = 50  # of weights up to 2**50
_SHOWN: Final = (0.5, 0.9, 0.99)


class Quantiles(Sketch):
    """Estimates of the quantiles of numbers; `count`, `minimum` and `maximum` are exact.

    Sizes and errors: up to 200 numbers are kept exactly, in 8 bytes each. More take at most about 5.2 kB. The number
    that `quantile(rank)` returns has a true rank within 0.0133 of `rank` in 99 of 100 cases: `quantile(0.9)` lies
    between the true quantiles at 0.887 and 0.913.
    """

    __slots__ = ()
    KIND: ClassVar[str] = "quantiles"
    FAMILY: ClassVar[int] = 15
    ITEMS: ClassVar[tuple[type, ...]] = (int, float)
    SIZE: ClassVar[int] = K
    PARAMETER: ClassVar[str] = "k"
    SIZES: ClassVar[range] = range(8, 2_001)

    @property
    def is_empty(self) -> bool:
        return len(self.data) == _SHORT.size and bool(self.data[3] & _EMPTY)

    @property
    def score(self) -> int:
        return self.count

    @property
    def count(self) -> int:
        """The number of numbers."""
        return int(self._loaded().n)

    @property
    def minimum(self) -> float | None:
        """The smallest number; None if there is none."""
        return _minimum(self._loaded())

    @property
    def maximum(self) -> float | None:
        """The largest number; None if there is none."""
        return _maximum(self._loaded())

    @property
    def rank_error(self) -> float:
        """The error of a rank that 99 of 100 estimates do not exceed: 0.0133 for the default size."""
        return float(self._loaded().normalized_rank_error(False))

    def quantile(self, rank: float) -> float | None:
        """The number that this share of all numbers does not exceed, from 0 to 1; None if there are no numbers.

        Raises `InvalidData` for a rank outside of this range.
        """
        if type(rank) not in (int, float) or not 0 <= rank <= 1:
            raise InvalidData(f"expected a rank from 0 to 1, got: {rank!r:.80}")
        return _quantile(self._loaded(), float(rank))

    def rank(self, number: float) -> float | None:
        """The share of all numbers that do not exceed this one; None if there are no numbers."""
        self.check_item(number)
        loaded = self._loaded()
        return None if loaded.is_empty() else float(loaded.get_rank(float(number), inclusive=True))

    def figures(self) -> dict[str, Any]:
        loaded = self._loaded()
        bounds = {"minimum": _minimum(loaded), "maximum": _maximum(loaded)}
        return {"count": int(loaded.n), **_quantiles(loaded), **bounds}

    def columns(self) -> dict[str, Any]:
        loaded = self._loaded()
        return {"count": int(loaded.n), **_quantiles(loaded)}

    @staticmethod
    def column_types() -> dict[str, str]:
        return {"count": "int", **{_name(rank): "float" for rank in _SHOWN}}

    @classmethod
    def check_item(cls, item: object) -> None:
        if type(item) not in (int, float):
            raise InvalidData(f"expected items of {cls.KIND!r} to be numbers, got: {type(item).__name__}")
        try:
            is_finite = isfinite(float(item))  # type: ignore[arg-type]
        except OverflowError:
            is_finite = False
        if not is_finite:
            raise InvalidData(f"expected items of {cls.KIND!r} to be finite numbers")

    @classmethod
    def merge(cls, values: Sequence[Any], size: int) -> Self:
        target = None
        sketches, items = sketches_and_items(values, cls)
        for sketch in sketches:
            loaded = sketch._loaded()
            if target is None and loaded.k == size:
                target = loaded
            else:
                target = library().kll_doubles_sketch(size) if target is None else target
                target.merge(loaded)
        target = library().kll_doubles_sketch(size) if target is None else target
        for item in items:
            cls.check_item(item)
            target.update(float(item))
        return cls(target.serialize())

    def _loaded(self) -> Any:
        return library().kll_doubles_sketch.deserialize(self.normalised())

    @classmethod
    def _normalised(cls, data: bytes) -> bytes:
        ints, version, family, flags, k, m, _ = _SHORT.unpack_from(data)
        require(family == cls.FAMILY and m == _M and MIN_K <= k <= MAX_K, "another format")
        if flags & _EMPTY:
            require(version == 1 and ints == 2 and len(data) == _SHORT.size, "an empty sketch with content")
        elif flags & _SINGLE:
            require(
                version == 2 and ints == 2 and len(data) == _SHORT.size + 8,
                "another length than of one number",
            )
            require(isfinite(unpack_from("<d", data, _SHORT.size)[0]), "a number that is not finite")
        else:
            require(version == 1 and ints == 5, "another format")
            _check_levels(data, k, is_sorted=bool(flags & _SORTED))
        return data


def _check_levels(data: bytes, k: int, *, is_sorted: bool) -> None:
    """Check that the numbers fill the levels, that each level is sorted, and that their weights add up to the count."""
    *_, count, least_k, levels, _ = _LONG.unpack_from(data)
    require(MIN_K <= least_k <= k and 1 <= levels <= _MAX_LEVELS, "another format")
    capacity = _capacity(k, levels)
    starts = [*unpack_from(f"<{levels}I", data, _LONG.size), capacity]
    require(starts == sorted(starts), "levels that do not follow each other")
    begin, stored = _LONG.size + 4 * levels, 2 + capacity - starts[0]
    require(len(data) == begin + 8 * stored, "another length than its levels ask for")
    smallest, largest, *numbers = unpack_from(f"<{stored}d", data, begin)
    require(isfinite(smallest) and isfinite(largest), "a bound that is not finite")
    require(all(smallest <= number <= largest for number in numbers), "a number beyond its bounds")
    weights = 0
    for level in range(levels):
        first, last = starts[level] - starts[0], starts[level + 1] - starts[0]
        weights += last - first << level
        require(
            (level == 0 and not is_sorted) or numbers[first:last] == sorted(numbers[first:last]),
            "a level that is not sorted",
        )
    require(0 < weights == count, "another count than its levels have")


def _capacity(k: int, levels: int) -> int:
    """The numbers that all levels can hold, as DataSketches computes it: each has 2/3 of the capacity above it."""
    return sum(max(_M, _shrunk(k, depth)) for depth in range(levels))


def _shrunk(k: int, depth: int) -> int:
    if depth > 30:
        return _shrunk(_shrunk(k, depth // 2), depth - depth // 2)
    return int((2 * k << depth) // 3**depth + 1) >> 1


def _name(rank: float) -> str:
    return f"p{100 * rank:g}"


def _quantiles(loaded: Any) -> dict[str, float | None]:
    return {_name(rank): _quantile(loaded, rank) for rank in _SHOWN}


def _quantile(loaded: Any, rank: float) -> float | None:
    return None if loaded.is_empty() else float(loaded.get_quantile(rank, inclusive=True))


def _minimum(loaded: Any) -> float | None:
    return None if loaded.is_empty() else float(loaded.get_min_value())


def _maximum(loaded: Any) -> float | None:
    return None if loaded.is_empty() else float(loaded.get_max_value())
