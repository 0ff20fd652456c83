"""What must be true, told by a model that shares no code with cq: the log of all that was committed, and its checkers.

Each checker is one promise of the design. A queue of texts concatenates its updates, each of which occurs once, so a
value shows which updates are in it, how often, and in which order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Added:
    """A transaction has added these updates to a queue."""

    queue: str
    updates: tuple[tuple[str, Any], ...]
    once: str | None


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
    """A queue's configuration has changed: it was purged, or has these observers of the application's."""

    queue: str
    purged: bool = False
    observers: dict[str, int] | None = None


class Violation(AssertionError):
    """A promise is broken."""


class QueueModel:
    """One queue as its committed updates make it.

    Attributes:
        touched: keys of which something was set aside: what is left of them is told by no order any more.
    """

    def __init__(self, name: str, *, is_text: bool) -> None:
        self.name = name
        self.is_text = is_text
        self.purges: list[int] = []
        self.touched: set[str] = set()
        self.updates: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        self.observers: list[tuple[int, dict[str, int]]] = []
        self.told: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
        self._ids: set[str] = set()
        self._purged: dict[tuple[str, int, str], int] = {}

    def add(self, version: int, note: Added) -> None:
        """Promise 3: an operation id counts once."""
        if note.once is not None:
            if note.once in self._ids:
                return
            self._ids.add(note.once)
        for key, update in note.updates:
            self.updates[key].append((version, update))

    def purge(self, version: int) -> None:
        self.purges.append(version)

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
        return ("".join(updates) if self.is_text else sum(updates)) or None

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
        if note.key in self.touched:
            return
        if note.old != last:
            raise Violation(f"{where} with the old value {note.old!r}, after the new value {last!r}")
        if note.new == note.old:
            raise Violation(f"{where} though nothing has changed: {note.new!r}")
        if note.new is None and self._is_purged(read_version, note):
            return
        expected = self.value(note.key, read_version)
        if note.new == expected or self._is_as_told_to_others(note):
            return
        if note.complete or not self._is_of_a_prefix(note, read_version):
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

    def _is_as_told_to_others(self, note: Reported) -> bool:
        """Whether an observer that is new is told of the value that others have been told of."""
        return note.old is None and self.told["anchor", 1].get(note.key) == note.new

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
        expected = self.counted(key)
        if self.is_text:
            found = _pieces(stored or "") + _pieces("".join(aside))
            if found != _pieces("".join(expected)):
                raise Violation(f"{self.name}: {key!r} is {stored!r} and aside {aside!r}, of {expected!r}")
        elif (stored or 0) + sum(aside) != sum(expected):
            raise Violation(f"{self.name}: {key!r} is {stored!r} and aside {aside!r}, of {sum(expected)}")

    def check_observers(self, stored: dict[str, Any], observers: dict[str, int]) -> None:
        """Promise 5, at the end: what each observer was told last is what there is."""
        for name, version in observers.items():
            told = {key: value for key, value in self.told[name, version].items() if value is not None}
            for key in sorted(told.keys() | stored.keys()):
                if key not in self.touched and told.get(key) != stored.get(key):
                    raise Violation(
                        f"{self.name}: observer {name}@{version} was last told {told.get(key)!r} of {key!r}, "
                        f"which is {stored.get(key)!r}"
                    )


def _pieces(text: str) -> Counter[str]:
    """The updates in a value, each of which ends with a full stop."""
    return Counter(text.split(".")[:-1])


class Feed:
    """Promise 7, for an exporter of the application's: what it has got is what the observer has added, in order."""

    def __init__(self) -> None:
        self.added: dict[str, list[Any]] = defaultdict(list)
        self.exported: dict[str, list[Any]] = defaultdict(list)
        self._last: dict[str, bytes] = {}

    def export(self, key: str, sequence: bytes, value: Any) -> None:
        """What a receiver does with an entry that may come again."""
        if sequence > self._last.get(key, b""):
            self._last[key] = sequence
            self.exported[key].append(value)

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
