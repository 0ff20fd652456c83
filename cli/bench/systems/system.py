"""Measured systems, cq and every system that it is compared with: their interface, names and errors.

The command imports this module for its help, so it imports nothing of the benchmark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, Final

from cq.cli.shared.exit_status import FoundDifference
from cq.errors import CqError

PERIODS: Final = "postgres-periods"
"""The system that a queue with a roll-up is compared with."""
DISTINCT: Final = "postgres-distinct"
"""The system that a queue of distinct visitors is compared with."""
AGAINST: Final = (
    "read-modify-write",
    "atomic-add",
    "postgres-upsert",
    "postgres-rollup",
    PERIODS,
    DISTINCT,
    "redis",
)
"""Systems that cq can be compared with."""
REPORTING: Final = ("sqlite", "postgresql")
"""Kinds of reporting databases."""
KEYS: Final = "keys"
SPARSE: Final = "sparse"
BACKLOG: Final = "backlog"
GROWING: Final = (KEYS, SPARSE, BACKLOG)
"""Kinds of growth that can be measured."""

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
        store: kind of the store of the counts.
        defers: whether added updates are combined later; otherwise counts are current after adding.
        precision: largest relative error of `total`; 0: it is exact.
    """

    store: str
    defers: ClassVar[bool] = False
    precision: ClassVar[float] = 0.0

    @property
    @abstractmethod
    def name(self) -> str:
        """The name for `--against`."""

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
    def total(self) -> Any:
        """The sum of all counts."""

    def settle(self) -> None:  # noqa: B027 - most systems need no maintenance
        """Do maintenance between two measurements: it must not run during the next one."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the system and all its counts."""
