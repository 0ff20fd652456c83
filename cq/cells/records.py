"""What is stored of cells: a cell's entry and its identity, a user's record and fence, and how far a copy has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from cq.encoding import codec

OPEN: Final = "open"
DRAINING: Final = "draining"
HERE: Final = "here"
LEAVING: Final = "leaving"
ARRIVING: Final = "arriving"
GONE: Final = "gone"


class _Stored:
    """A dataclass that is stored as the list of its fields."""

    _TYPES: tuple[Any, ...] = ()
    _NOUN = ""

    def to_bytes(self) -> bytes:
        """As stored."""
        return codec.encode([getattr(self, name) for name in self.__dataclass_fields__])  # type: ignore[attr-defined]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`; raises `CorruptData`."""
        return cls(*codec.decode_list(data, cls._TYPES, cls._NOUN))


@dataclass(frozen=True)
class Cell(_Stored):
    """A cell as the directory has it.

    Attributes:
        url: of its store, as `cq.open` takes it.
        weight: how much room there is, compared with other cells.
        state: `open`, or `draining` when it takes no more users.
    """

    _TYPES = (str, int, str)
    _NOUN = "the entry of a cell"

    url: str
    weight: int = 1
    state: str = OPEN


@dataclass(frozen=True)
class Identity(_Stored):
    """What a cell's store knows of itself: its name, and the id of the directory's store."""

    _TYPES = (str, bytes)
    _NOUN = "the identity of a cell"

    cell: str
    directory: bytes


@dataclass(frozen=True)
class Record(_Stored):
    """A user as the directory has it.

    Attributes:
        cell: where the user's data are read and written.
        epoch: 1 in the first cell, and greater by 1 in each one after.
        target: the cell to which the user is being moved; None when that is not so, or done.
        source: the cell from which the user has come, while the old data are being cleared there.
    """

    _TYPES = (str, int, str | None, str | None)
    _NOUN = "the record of a user"

    cell: str
    epoch: int
    target: str | None = None
    source: str | None = None

    @property
    def is_moving(self) -> bool:
        """Whether anything of a move is left to be done."""
        return self.target is not None or self.source is not None


@dataclass(frozen=True)
class Fence(_Stored):
    """What each transaction of a user reads in the cell, and each step of a move writes.

    Attributes:
        state: `here`; `leaving` while the data are copied elsewhere; `arriving` while they are copied here; `gone`.
        epoch: that of the time here; when the user is leaving or gone, that of the time after it.
    """

    _TYPES = (str, int)
    _NOUN = "the fence of a user"

    state: str
    epoch: int


@dataclass(frozen=True)
class CopyProgress(_Stored):
    """How far the copy of a user has come.

    Attributes:
        cursor: the key, without its prefix, behind which the copy goes on.
        is_done: whether all is copied.
        tries: how often the copy has begun.
    """

    _TYPES = (bytes, bool, int)
    _NOUN = "the progress of a copy"

    cursor: bytes = b""
    is_done: bool = False
    tries: int = 1
