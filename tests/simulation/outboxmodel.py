"""What must be true of a simulated outbox: which rows are added, how often, in which order, and when it may stop.

The model knows the rows that are due: committed, and not lost with a database that was set back. Where the databases
disagree the workers must stop, and where they agree they must not. After a restore the operator either deletes the rows
that the queue has already, or not: then these, which were deleted once and are in the table again, count another time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.model import Violation

_NEVER: Final = -math.inf


@dataclass(frozen=True)
class Moved:
    """A transaction of the store has added these rows: (key, number)."""

    rows: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Began:
    """A rebase, or the beginning of a new outbox: all rows that the table has now are added.

    Attributes:
        is_new: whether there was no outbox before.
    """

    is_new: bool


@dataclass(frozen=True)
class Committed:
    """A row of the application: its key, and when its id was drawn and its transaction was seen committed."""

    key: str
    drawn: int
    seen: int


class Trouble:
    """When two databases disagree, or may do: the cause of a stop.

    Args:
        clock: returns the simulated time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = _NEVER

    @property
    def is_on(self) -> bool:
        """Whether they disagree now."""
        return self._until == math.inf

    def note(self, is_on: bool) -> None:
        """Note whether they disagree from now on."""
        if is_on:
            self._until = math.inf
        elif self.is_on:
            self._until = self._clock()

    def check(self, since: float, what: object) -> None:
        """Raise `Violation` unless they have disagreed since this time."""
        if self._until < since:
            raise Violation(f"it stops without a cause: {what}")


@dataclass
class OutboxModel:
    """The rows of one run, by their numbers.

    Attributes:
        trouble: whether the databases disagree.
        due: the committed rows that no restore has lost. They must be in the queue at the end.
        moved: {key: its rows, in the order of their moves}.
        once: rows with an operation id; the queue counts them once whatever is moved.
        refused: rows that could not be read at first, and are added later than others.
        again: {row: how often more than once it may be added}.
    """

    trouble: Trouble
    due: set[int] = field(default_factory=set)
    moved: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    once: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    again: Counter[int] = field(default_factory=Counter)
    _drawn: dict[int, tuple[str, int]] = field(default_factory=dict)
    _committed: dict[int, Committed] = field(default_factory=dict)
    _present: set[int] = field(default_factory=set)
    _deleted: set[int] = field(default_factory=set)
    _ticks: int = 0
    _saved_due: set[int] = field(default_factory=set)
    _saved_moves: dict[str, list[int]] = field(default_factory=dict)

    def draw(self, number: int, key: str) -> None:
        """A row gets its id; a transaction that is tried again has drawn before."""
        self._drawn.setdefault(number, (key, self._tick()))

    def look(self, rows: Collection[int]) -> None:
        """The application's database has committed something: it has these rows now."""
        for number in sorted(set(rows) - self._present):
            key, drawn = self._drawn[number]
            # Again after a restore, or inserted again after its first transaction was lost with the database.
            self._committed[number] = Committed(key, drawn, self._tick())
        self._deleted |= self._present.difference(rows)
        self._present = set(rows)
        self.due |= self._present

    def times(self) -> Counter[int]:
        """{row: how often it was added}."""
        return Counter(number for numbers in self.moved.values() for number in numbers)

    def lost(self) -> set[int]:
        """The due rows that neither the table nor the queue has."""
        times = self.times()
        return {number for number in self.due - self._present if not times[number]}

    def move(self, rows: Iterable[tuple[str, int]]) -> None:
        """A transaction has added rows.

        Raises `Violation` for rows that are added too often, or before rows that were committed before their ids were
        drawn.
        """
        times = self.times()
        for key, number in rows:
            if times[number] and number in self.once:
                continue
            if times[number] > self.again[number]:
                raise Violation(f"row {number} of {key!r} is added {times[number] + 1} times")
            row = self._committed[number]
            late = [each for each in self.moved[key] if self._committed[each].drawn > row.seen]
            if late and not times[number] and number not in self.refused:
                raise Violation(f"row {number} of {key!r} is added after {late}, which are later")
            self.moved[key].append(number)
            times[number] += 1

    def begin(self, is_new: bool) -> None:
        """All rows in the table are added from now on, also those that were added, and are there again after a restore.

        A rebase while the databases agree adds no row again: those that are there belong to a batch whose deletion is
        under way. Nor does a new outbox add rows again whose deletion was never seen. A rebase gives up what neither
        database has.
        """
        times = self.times()
        if is_new:
            self.again.update(number for number in self._present & self._deleted if times[number])
        elif self.trouble.is_on:
            self.again.update(number for number in self._present if times[number])
            self.forgive(self.lost())

    def forgive(self, numbers: Iterable[int]) -> None:
        """Rows that an operator has deleted, or given up."""
        self.due.difference_update(numbers)

    # Backups

    def save_table(self) -> None:
        """A backup of the application's database is made."""
        self._saved_due = set(self.due)

    def restore_table(self, rows: Collection[int]) -> None:
        """It is restored: transactions since are lost, with their rows."""
        self.due &= self._saved_due
        self.look(rows)

    def save_store(self) -> None:
        """A backup of the store is made."""
        self._saved_moves = {key: each.copy() for key, each in self.moved.items()}

    def restore_store(self) -> None:
        """It is restored: what was moved since is lost."""
        self.moved = defaultdict(list, {key: each.copy() for key, each in self._saved_moves.items()})

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks
