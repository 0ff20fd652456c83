"""Queues of cq with a roll-up and with sketches of distinct visitors, as measured systems."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import cq
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import Add, WrongSum
from cq.cli.bench.systems.workload import with_visitors
from cq.config.rollup import RollUp


@dataclass(frozen=True)
class RollupQueue(QueueSystem):
    """A combine queue of sums with a roll-up.

    Args:
        rollup: as for `cq.configure`.
    """

    rollup: str = ""

    @property
    def name(self) -> str:
        return f"{super().name}+rollup"

    @property
    def queues(self) -> list[str]:
        return [self.queue, *self._levels]

    @property
    def _levels(self) -> list[str]:
        return [level.queue_of(self.queue) for level in RollUp.parse(self.rollup).levels]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "rollup": self.rollup}

    def total(self) -> Any:
        """The sum of all values; raises `WrongSum` if a level of the roll-up has another sum."""
        found = super().total()
        for level in self._levels:
            if (by_period := self.sum_of(level)) != found:
                raise WrongSum(
                    f"the values of queue {level} have the sum {by_period:,}, those of all time {found:,}"
                )
        return found


@dataclass(frozen=True)
class DistinctQueue(QueueSystem):
    """A combine queue of sketches, which estimate the number of distinct visitors of each key.

    The total is an estimate: the error of a key's sketch has a standard deviation of 1.6 percent, and that of the sum
    is smaller.
    """

    precision: ClassVar[float] = 0.1

    @property
    def name(self) -> str:
        return f"{super().name}+distinct"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "value": "distinct", "combiner": "distinct"}

    def adder(self, stack: ExitStack) -> Add:
        add = super().adder(stack)
        return lambda updates: add(with_visitors(updates))

    def sum_of(self, queue: str) -> Any:
        return sum(sketch.estimate for _, sketch in cq.CombineQueue(queue).scan(self.open(), limit=500))
