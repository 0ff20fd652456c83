"""What must be true, told by a model that shares no code with cq: the log of all that was committed, and its checkers.

Each checker is one promise of the design. A queue of texts concatenates its updates, each of which occurs once, so a
value shows which updates are in it, how often, and in which order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Added:
    """A transaction has added these updates to a queue."""

    queue: str
    updates: tuple[tuple[str, Any], ...]
    once: str | bytes | None


@dataclass(frozen=True)
class Reported:
    """A pass has told an observer of a change."""

    queue: str
    observer: str
    version: int
    key: str
    old: Any
    new: Any
    complete: bool


@dataclass(frozen=True)
class Shaped:
    """A queue's configuration has changed: it was purged or deleted, or its observers are other ones.

    Attributes:
        observers: {name: version} of the application's observers that it has now; None for those of before.
        rebuilt: an observer that gets all values again.
    """

    queue: str
    purged: bool = False
    deleted: bool = False
    observers: dict[str, int] | None = None
    rebuilt: str | None = None


IsForgotten = Callable[[str, str | bytes, int], bool]
"""(queue, operation id, versions since its latest commit) -> whether the id has been forgotten, so that it counts."""


class Violation(AssertionError):
    """A promise is broken."""


class QueueModel:
    """One queue as its committed updates make it.

    Args:
        name: of the queue.
        combine: makes a value of updates in commit order, None for a key without a value.
        is_forgotten: see there.
        shows_all: whether a value shows all of its updates in any order; else it depends on their order.

    Attributes:
        reported: the value that an observer got last for each key.
        touched: keys of which updates were set aside: their values follow no order any more. Old values still chain.
    """

    def __init__(
        self,
        name: str,
        combine: Callable[[list[Any]], Any],
        is_forgotten: IsForgotten,
        *,
        shows_all: bool = True,
    ) -> None:
        self.name = name
        self._combine = combine
        self._shows_all = shows_all
        self._is_forgotten = is_forgotten
        self.purges: list[int] = []
        self.deletions = 0
        self.touched: set[str] = set()
        self.updates: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        self.observers: list[tuple[int, dict[str, int]]] = []
        self.told: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
        self.reported: dict[str, Any] = {}
        self._ids: dict[str | bytes, int] = {}
        self._purged: dict[tuple[str, int, str], int] = {}

    def add(self, version: int, note: Added) -> None:
        """Promise 3: an operation id counts once, as long as it is remembered."""
        if note.once is not None:
            last = self._ids.get(note.once)
            self._ids[note.once] = version
            if last is not None and not self._is_forgotten(self.name, note.once, version - last):
                return
        for key, update in note.updates:
            self.updates[key].append((version, update))

    def delete(self) -> None:
        """Begin anew: nothing of a deleted queue counts in a later one of its name."""
        self.deletions += 1
        for content in (self.updates, self.told, self.reported, self._ids, self._purged, self.touched):
            content.clear()
        self.purges.clear()
        self.observers.clear()

    def rebuild(self, observer: str) -> None:
        """Promise 5 begins anew for an observer: it gets all values from `old=None` on."""
        for name, version in list(self.told):
            if name == observer:
                self.told[name, version] = {}

    def counted(self, key: str, version: int | None = None) -> list[Any]:
        """The updates that a key's value derives from at a version, in commit order."""
        purged = max((each for each in self.purges if version is None or each <= version), default=0)
        return [
            update for at, update in self.updates[key] if at > purged and (version is None or at <= version)
        ]

    def value(self, key: str, version: int | None = None) -> Any:
        """What those make: None for nothing."""
        return self._made(self.counted(key, version))

    def _made(self, updates: list[Any]) -> Any:
        return self._combine(updates) if updates else None

    def values(self) -> dict[str, Any]:
        """All values, once everything is combined."""
        return {key: value for key in sorted(self.updates) if (value := self.value(key)) is not None}

    # Promises 4, 5 and 9

    def report(self, read_version: int, note: Reported) -> None:
        """Raises `Violation` unless a committed report is as promised."""
        told = self.told[note.observer, note.version]
        where = f"{self.name}: observer {note.observer}@{note.version} is told of {note.key!r}"
        self._check_code(read_version, note, where)
        last = told.get(note.key)
        told[note.key] = note.new
        stored = self.reported.get(note.key)
        self.reported[note.key] = note.new
        if note.old != last:
            raise Violation(f"{where} with the old value {note.old!r}, after the new value {last!r}")
        if note.new == note.old:
            raise Violation(f"{where} though nothing has changed: {note.new!r}")
        if note.key in self.touched:
            return
        expected = self.value(note.key, read_version)
        is_purged = note.new is None and self._is_purged(read_version, note)
        if note.new == expected:
            return
        # A new observer gets the stored value, which others got before.
        is_known = is_purged or (note.old is None and note.new == stored)
        if note.complete or not (is_known or self._is_of_a_prefix(note, read_version)):
            updates = self.counted(note.key, read_version)
            raise Violation(f"{where} as {note.new!r}, expected {expected!r} of {updates!r}")

    def _check_code(self, read_version: int, note: Reported, where: str) -> None:
        wanted = [observers for at, observers in self.observers if at <= read_version]
        if wanted and wanted[-1].get(note.observer) != note.version:
            raise Violation(f"{where}, where the configuration asks for {wanted[-1]}")

    def _is_purged(self, read_version: int, note: Reported) -> bool:
        """Whether the key goes for a purge: once for each, whatever has been added since."""
        purged = max((each for each in self.purges if each <= read_version), default=0)
        place = note.observer, note.version, note.key
        is_new = self._purged.get(place, 0) < purged
        self._purged[place] = purged
        return is_new

    def _is_of_a_prefix(self, note: Reported, read_version: int) -> bool:
        updates = self.counted(note.key, read_version)
        return any(self._made(updates[:count]) == note.new for count in range(len(updates)))

    # Promises 2, 3 and 6, once all is combined

    def check_values(self, stored: dict[str, Any], aside: dict[str, list[Any]], may_set_aside: bool) -> None:
        """Raises `Violation` unless each update is in one value once, in order, or set aside."""
        if aside and not may_set_aside:
            raise Violation(f"{self.name}: set aside though nothing can have failed: {aside!r}")
        for key in sorted(self.updates.keys() | stored.keys() | aside.keys()):
            if key in self.touched:
                self._check_nothing_lost(key, stored.get(key), aside.get(key, []))
            elif stored.get(key) != self.value(key):
                raise Violation(
                    f"{self.name}: {key!r} is {stored.get(key)!r}, expected {self.value(key)!r} "
                    f"of {self.updates[key]!r}"
                )

    def _check_nothing_lost(self, key: str, stored: Any, aside: list[Any]) -> None:
        """The value and the updates set aside are together made of all updates, in any order."""
        if not self._shows_all:
            return
        expected = self._combine(self.counted(key)) if self.counted(key) else None
        found = self._combine(([] if stored is None else [stored]) + aside) if aside else stored
        if _unordered(found) != _unordered(expected):
            raise Violation(f"{self.name}: {key!r} is {stored!r} and aside {aside!r}, of {expected!r}")

    def check_observers(self, stored: dict[str, Any], observers: dict[str, int]) -> None:
        """Promise 5, at the end: what each observer was told last is what there is."""
        for name, version in observers.items():
            told = {key: value for key, value in self.told[name, version].items() if value is not None}
            for key in sorted(told.keys() | stored.keys()):
                if told.get(key) != stored.get(key):
                    raise Violation(
                        f"{self.name}: observer {name}@{version} was last told {told.get(key)!r} of {key!r}, "
                        f"which is {stored.get(key)!r}"
                    )


def concatenate(updates: list[str]) -> str | None:
    """The value of texts."""
    return "".join(updates) or None


def total(updates: list[int]) -> int | None:
    """The value of numbers that are summed."""
    return sum(updates) or None


def _unordered(value: Any) -> Any:
    """A value without the order of its updates: those of a text end with a full stop each."""
    return Counter(value.split(".")[:-1]) if isinstance(value, str) else value


class Feed:
    """Promise 7, for a target of the application's: what it has got is what the observer has added, in order.

    Args:
        is_ordered: whether no entry may come after a newer one of its key: nothing dies, hangs or fails.
    """

    def __init__(self, *, is_ordered: bool = False) -> None:
        self._is_ordered = is_ordered
        self.added: dict[str, list[Any]] = defaultdict(list)
        self.exported: dict[str, list[Any]] = defaultdict(list)
        self._last: dict[str, bytes] = {}

    def export(self, key: str, sequence: bytes, value: Any) -> None:
        """What a receiver does with an entry that may come again."""
        if sequence > self._last.get(key, b""):
            self._last[key] = sequence
            self.exported[key].append(value)
        elif self._is_ordered:
            raise Violation(f"feed: an entry of {key!r} came after a newer one, or again")

    def check(self, keys: Iterable[str]) -> None:
        for key in sorted(keys):
            if self.exported[key] != self.added[key]:
                raise Violation(
                    f"feed: {key!r} was exported as {self.exported[key]!r}, not {self.added[key]!r}"
                )


class Table:
    """Promise 7, for a table in a SQL database: of the values that were reported it skips some, and never goes back.

    Attributes:
        reported: the values of each key, in commit order.
    """

    def __init__(self) -> None:
        self.reported: dict[str, list[Any]] = defaultdict(lambda: [None])
        self._at: dict[str, int] = defaultdict(int)

    def look(self, rows: dict[str, Any], untold: set[str]) -> None:
        """What it has after some commit. Raises `Violation` when a key has gone back."""
        for key, values in self.reported.items():
            if key in untold:
                continue
            if rows.get(key) not in values[self._at[key] :]:
                raise Violation(
                    f"the table has {rows.get(key)!r} for {key!r} after {values[self._at[key]]!r}, of {values!r}"
                )
            self._at[key] = values.index(rows.get(key), self._at[key])

    def set_back(self, rows: dict[str, Any]) -> None:
        """The database was restored to an earlier state, with these rows."""
        for key, values in self.reported.items():
            self._at[key] = values.index(rows.get(key)) if rows.get(key) in values else 0
