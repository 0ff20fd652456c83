"""Measured systems, cq and every system that it is compared with: their interface and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from cq.cli.shared.exit_status import FoundDifference
from cq.errors import CqError

Add = Callable[[Mapping[str, Any]], object]
"""Adds updates in one transaction, which is durable on return. Each thread has its own function."""
Drain = Callable[[], object]
"""Combines all updates that were added before the call."""


class CannotMeasure(CqError, ValueError):
    """A benchmark cannot be run as requested; the message says what to do."""


class Unavailable(CannotMeasure, LookupError):
    """A system cannot be measured, because a driver or a server is missing."""


class WrongSum(FoundDifference):
    """A system has lost updates, or counted some twice: its figures are invalid."""


class System(ABC):
    """A way of counting. Keys are words, updates are numbers to add to their counts.

    A system is a plain description. It is pickled to the processes of the benchmark, and opens its resources there.

    Attributes:
        name: name in the report.
        store: kind of the store of the counts.
    """

    name: str
    store: str

    @property
    def defers(self) -> bool:
        """Whether added updates are combined later; otherwise counts are current after adding."""
        return False

    @property
    def precision(self) -> float:
        """The largest relative error of `sums`; 0: they are exact."""
        return 0.0

    def prepare(self) -> None:
        """Create the system without counts."""
        self.remove()

    @abstractmethod
    def adder(self, stack: ExitStack) -> Add:
        """A new adder, whose resources `stack` closes."""

    def drainer(self, stack: ExitStack, place: int, of: int) -> Drain:
        """Drainer number `place` of `of` drainers; only for a system that defers."""
        raise NotImplementedError

    @abstractmethod
    def sums(self) -> Mapping[str, Any]:
        """{place that has counts of all updates: their sum there}."""

    def settle(self) -> None:  # noqa: B027 - most systems need no maintenance
        """Do maintenance between two measurements: it must not run during the next one."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the system and all its counts."""
