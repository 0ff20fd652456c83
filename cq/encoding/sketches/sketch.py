"""The bases of all sketches, and of those that count different items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from struct import error as struct_error
from typing import Any, ClassVar, Final, Self, TypeVar

from cq.distribution import install_command
from cq.errors import CqError, InvalidData, MissingPackage

BATCHES: Final = (list, tuple, set, frozenset)
"""The types of a batch of items."""
DEVIATIONS: Final = 2
"""Standard deviations from an estimate to its bounds: the truth is between them in about 95 of 100 cases."""
_INT64: Final = 1 << 63
S = TypeVar("S", bound="Sketch")
T = TypeVar("T")


class Malformed(Exception):
    """Bytes that are not a sketch of the expected kind; within this room only."""


class Sketch(ABC):
    """A sketch, as a queue stores it and as reads return it. Two sketches are equal if their bytes are.

    The constructor does not check the bytes: `check` does, and so do `CombineQueue.add` and every method that reads.

    Args:
        data: the sketch in the serialised format of Apache DataSketches, which its packages for other languages read.
    """

    __slots__ = ("data",)
    KIND: ClassVar[str]
    """The name of the combiner and of the value type."""
    FAMILY: ClassVar[int]
    """The number of the kind in the third byte of the serialised format."""
    ITEMS: ClassVar[tuple[type, ...]]
    """The types of items. It takes all ints of up to 64 bits if int is one of them."""
    SIZE: ClassVar[int]
    """The default size: lg_k, k or lg_max_k of DataSketches."""
    PARAMETER: ClassVar[str]
    """The name of the size in DataSketches."""
    SIZES: ClassVar[range]
    """The sizes of combiners. Their values never exceed the limit of a stored value."""
    NEEDS_PACKAGE: ClassVar[bool] = True
    """Whether combining needs the package `datasketches`."""

    def __init__(self, data: bytes) -> None:
        if type(data) is not bytes:
            raise InvalidData(f"expected a serialised sketch in bytes, got: {type(data).__name__}")
        self.data = data

    def __bytes__(self) -> bytes:
        return self.data

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        try:
            shown = ", ".join(f"{name}={value!r}" for name, value in self.figures().items())
        except CqError:  # damaged, or the package is not installed
            shown = f"{len(self.data):,} bytes"
        return f"{type(self).__name__}({shown})"

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the sketch has no items; False for bytes that are no sketch."""

    @property
    @abstractmethod
    def score(self) -> int:
        """The number by which a top orders the sketch. Raises as `figures` does."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """The numbers that commands print, as `{name: number}`.

        Raises `InvalidData` for damaged bytes, and `MissingPackage` without the package `datasketches`.
        """

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """{column: value} of an exported row, for the columns of `column_types`. Raises as `figures` does."""

    @staticmethod
    @abstractmethod
    def column_types() -> dict[str, str]:
        """{column: value type of cq} of an exported row."""

    @classmethod
    @abstractmethod
    def check_item(cls, item: object) -> None:
        """Raises `InvalidData` unless the item can be counted."""

    @classmethod
    @abstractmethod
    def merge(cls, values: Sequence[Any], size: int) -> Self:
        """The sketch of all items in raw items, batches and sketches. Raises as `figures` does.

        `size` is a parameter as `SIZE`.
        """

    @classmethod
    @abstractmethod
    def _normalised(cls, data: bytes) -> bytes:
        """An equivalent sketch that is safe to read; raises `Malformed`, `IndexError` or `struct.error`."""

    def normalised(self) -> bytes:
        """The bytes of an equivalent sketch that is safe to read; raises `InvalidData` if this is no such sketch."""
        return self._read(self._normalised)

    def _read(self, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the bytes; raises `InvalidData` where it finds that they are no sketch of this kind."""
        try:
            return read(self.data)
        except (Malformed, IndexError, struct_error) as error:
            raise InvalidData(f"damaged bytes, or no sketch of the kind {self.KIND!r}: {error}") from None

    def check(self) -> None:
        """Raises `InvalidData` if the bytes are not a whole sketch of this kind."""
        self.normalised()

    @classmethod
    def check_update(cls, update: object) -> None:
        """Raises `InvalidData` unless the update is an item, a batch of items or a sketch of this kind."""
        if isinstance(update, cls):
            update.check()
        elif isinstance(update, BATCHES):
            for item in update:
                cls.check_item(item)
        else:
            cls.check_item(update)


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


def sketches_and_items(values: Sequence[Any], kind: type[S]) -> tuple[list[S], list[Any]]:
    """The sketches of this kind among the values, and the items of all others, which are items or batches; in order."""
    sketches: list[S] = []
    items: list[Any] = []
    for value in values:
        if type(value) is kind:  # `isinstance` of an abstract class takes several times as long
            sketches.append(value)
        elif isinstance(value, BATCHES):
            items += value
        else:
            items.append(value)
    return sketches, items


def require(condition: bool, what: str) -> None:
    """Raises `Malformed` unless the condition holds."""
    if not condition:
        raise Malformed(what)


def library() -> Any:
    """The module `datasketches`; raises `MissingPackage`.

    It is imported at its first use: that takes a tenth of a second, as it brings numpy.
    """
    try:
        import datasketches
    except ImportError as error:
        raise MissingPackage(
            f"sketches need the package datasketches: run `{install_command('sketches')}`"
        ) from error
    return datasketches
