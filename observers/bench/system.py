"""What is measured: the one face that cq and every system it is compared with have.

A `System` is a plain description, which is sent to the processes that work on it: there it opens what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Adder(Protocol):
    """Adds to a system, in one thread."""

    def add(self, updates: Mapping[str, Any]) -> None:
        """Add the updates in one transaction, which is durable when this returns."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class Drainer(Protocol):
    """Combines what was added, in one process."""

    def drain(self) -> None:
        """Combine until nothing waits that was added before."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class System(Protocol):
    """A way of counting. Keys are words, updates are numbers to add to their counts.

    Attributes:
        name: as `--against` takes it.
        store: where it keeps the counts.
        defers: whether what is added waits to be combined; else counts are current once it is added.
    """

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> str: ...
    @property
    def defers(self) -> bool: ...

    def prepare(self) -> None:
        """Make it, empty."""
        ...

    def adder(self) -> Adder:
        """A new adder."""
        ...

    def drainer(self, place: int, of: int) -> Drainer:
        """The drainer with the number `place` of so many, of a system that defers."""
        ...

    def total(self) -> Any:
        """The sum of all counts."""
        ...

    def settle(self) -> None:
        """Do between two measurements what would disturb the next one."""
        ...

    def remove(self) -> None:
        """Delete it and all that it holds."""
        ...
