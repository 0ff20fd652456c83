"""The interface of measured systems: cq and every system that it is compared with.

A `System` is a plain description. It is pickled to the processes of the benchmark, and opens its resources there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Adder(Protocol):
    """Adds updates to a system, in one thread."""

    def add(self, updates: Mapping[str, Any]) -> None:
        """Add the updates in one transaction; it is durable on return."""
        ...

    def close(self) -> None:
        """Close the opened resources."""
        ...


class Drainer(Protocol):
    """Combines added updates, in one process."""

    def drain(self) -> None:
        """Combine all updates that were added before the call."""
        ...

    def close(self) -> None:
        """Close the opened resources."""
        ...


class System(Protocol):
    """A way of counting. Keys are words, updates are numbers to add to their counts.

    Attributes:
        name: the name for `--against`.
        store: kind of the store of the counts.
        defers: whether added updates are combined later; otherwise counts are current after adding.
    """

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> str: ...
    @property
    def defers(self) -> bool: ...

    def prepare(self) -> None:
        """Create the system without counts."""
        ...

    def adder(self) -> Adder:
        """A new adder."""
        ...

    def drainer(self, place: int, of: int) -> Drainer:
        """Drainer number `place` of `of` drainers; only for a system that defers."""
        ...

    def total(self) -> Any:
        """The sum of all counts."""
        ...

    def settle(self) -> None:
        """Do maintenance between two measurements: it must not run during the next one."""
        ...

    def remove(self) -> None:
        """Delete the system and all its counts."""
        ...
