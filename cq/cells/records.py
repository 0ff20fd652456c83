"""The stored records of cells: a cell's entry and identity, and a user's record and fence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cq.encoding.stored import StoredRecord

OPEN: Final = "open"
DRAINING: Final = "draining"
HERE: Final = "here"
LEAVING: Final = "leaving"
ARRIVING: Final = "arriving"
GONE: Final = "gone"
DELETED: Final = "deleted"


@dataclass(frozen=True)
class Cell(StoredRecord):
    """A cell's entry in the directory.

    Attributes:
        url: URL of its store, for `cq.open`.
        weight: capacity compared with other cells.
        state: `open`, or `draining` if it accepts no more users.
        max_users: limit of its users; None: no limit.
        number: 1 for the first cell of the directory, 2 for the second one, and so on.
        web: address of its web servers, without a slash at the end; empty: none.
        load: its reported load, in the unit of its weight; None if none was reported.
    """

    NOUN = "the entry of a cell"

    url: str
    weight: int = 1
    state: str = OPEN
    max_users: int | None = None
    number: int = 0
    web: str = ""
    load: float | None = None


@dataclass(frozen=True)
class Identity(StoredRecord):
    """The identity in a cell's store: the cell's name, and the id of the directory's store."""

    NOUN = "the identity of a cell"

    cell: str
    directory: bytes


@dataclass(frozen=True)
class Record(StoredRecord):
    """A user's record in the directory.

    Attributes:
        cell: the cell of the user's data; empty for a deleted user.
        epoch: 1 in the first cell, plus 1 for each move; 0 while a cell adopts the user.
        target: the cell to which the user is being moved; None after the switch, or without a move.
        source: the former cell, while the old data are being cleared there; else None.
    """

    NOUN = "the record of a user"

    cell: str
    epoch: int
    target: str | None = None
    source: str | None = None

    @property
    def is_moving(self) -> bool:
        """Whether a move has remaining steps."""
        return self.target is not None or self.source is not None


@dataclass(frozen=True)
class Fence(StoredRecord):
    """A user's fence in a cell: each transaction of the user reads it, and steps of a move write it.

    Attributes:
        state: `here`; `leaving` while the data are copied elsewhere; `arriving` while they are copied here; `gone`;
            `deleted`.
        epoch: epoch of the user in this cell; if the user is leaving or gone, the epoch in the next cell.
        cursor: while the user is arriving, the key, without its prefix, at which the copy continues; None: all data are
            copied.
        tries: while the user is arriving, the number of copies begun so far: each differs from the copies before.
    """

    NOUN = "the fence of a user"

    state: str
    epoch: int
    cursor: bytes | None = b""
    tries: int = 0
