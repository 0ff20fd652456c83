"""What both sketches of distinct counts have in common: an estimated number of items, with bounds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final, Self

from cq.encoding.sketches.sketch import Sketch
from cq.errors import InvalidData

DEVIATIONS: Final = 2
"""Standard deviations from an estimate to its bounds: the truth is between them in about 95 of 100 cases."""
_INT64: Final = 1 << 63


class ItemCount(Sketch):
    """An estimate of the number of different items."""

    __slots__ = ()

    @classmethod
    def empty(cls) -> Self:
        """The sketch without items: for instance the `fill` of a series. Raises `MissingPackage`."""
        return cls.merge([], cls.SIZE)

    @property
    def score(self) -> int:
        return self.estimate

    @property
    def estimate(self) -> int:
        """The estimated number of different items."""
        return _whole(self._loaded().get_estimate())

    @property
    def lower(self) -> int:
        """A lower bound of the number, two standard deviations below the estimate."""
        return _whole(self._loaded().get_lower_bound(DEVIATIONS))

    @property
    def upper(self) -> int:
        """An upper bound of the number, two standard deviations above the estimate."""
        return _whole(self._loaded().get_upper_bound(DEVIATIONS))

    def figures(self) -> dict[str, Any]:
        loaded = self._loaded()
        return {
            "estimate": _whole(loaded.get_estimate()),
            "lower": _whole(loaded.get_lower_bound(DEVIATIONS)),
            "upper": _whole(loaded.get_upper_bound(DEVIATIONS)),
        }

    def columns(self) -> dict[str, Any]:
        return self.figures()

    @staticmethod
    def column_types() -> dict[str, str]:
        return {"estimate": "int", "lower": "int", "upper": "int"}

    @classmethod
    def check_item(cls, item: object) -> None:
        if type(item) is int and not -_INT64 <= item < _INT64:
            raise InvalidData(f"expected an int of up to 64 bits as an item of {cls.KIND!r}")
        if type(item) not in (str, int, float):
            # DataSketches' package for Python does not hash bytes, as its packages for other languages do.
            hint = " (wrap a sketch in its class; give other bytes as text, such as .hex())"
            raise InvalidData(
                f"expected items of {cls.KIND!r} to be of str, int or float, got: {type(item).__name__}"
                + hint * (type(item) is bytes)
            )

    @abstractmethod
    def _loaded(self) -> Any:
        """The sketch as an object of the package `datasketches`. Raises as `figures` does."""


def _whole(number: float) -> int:
    return round(number)
