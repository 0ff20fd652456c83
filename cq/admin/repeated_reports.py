"""Observers that receive all values of a queue again: new versions, rebuilds, and observers that were removed before.

Each value is reported as new. What the observer has written before would count a second time, unless it is cleared. So
the function `clear` of an observer runs in the transaction that stores the configuration with its new generation: no
pass of an earlier generation commits after it, and none of the new one before it.

Of the built-in observers, `top` keeps the data of each generation apart, `feed` appends all values to a feed again, and
an export (`export`, `webhook`, `kafka`) replaces the values of its receiver. `forward` stops if sums would count twice,
and `rollup` cannot be rebuilt (`cq.admin.levels.refuse_level_change`). Nor can `distinct` and `sessions` while the
queue has values: several queues may count into a target, so cq cannot clear what one of them has counted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from cq.config.queue import ObserverConfig, QueueConfig
from cq.errors import InvalidConfiguration
from cq.keys import QueueKeys
from cq.store.api import Transaction, TransactionRead
from cq.store.sizes import RangeSize, count_rows


class RepeatedObserver(NamedTuple):
    """An observer that receives all values again.

    Attributes:
        before: as it is configured; None if it was removed before.
        after: as it will be configured.
        is_cleared: whether it clears its data.
    """

    before: ObserverConfig | None
    after: ObserverConfig
    is_cleared: bool

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.after.named} (which the queue had before)"
        if self.before.version == self.after.version:
            return f"{self.after.named} (rebuilt)"
        return f"{self.before.named} → {self.after.named}"


@dataclass(frozen=True, slots=True)
class RepeatedReports:
    """The reports that a change of a queue's observers repeats.

    Attributes:
        queue: the queue.
        keys: number of keys with a value; each is reported to each of the observers, as new.
        is_exact: whether they were counted; else it is an estimate, which can be off by a small factor.
        observers: the observers.
    """

    queue: str
    keys: int
    is_exact: bool
    observers: tuple[RepeatedObserver, ...]

    def __str__(self) -> str:
        number = f"{'' if self.is_exact else 'about '}{self.keys:,} {'key' if self.keys == 1 else 'keys'}"
        cleared = [str(each) for each in self.observers if each.is_cleared]
        kept = [str(each) for each in self.observers if not each.is_cleared]
        parts = [f"{', '.join(cleared)}: what it has written is cleared first"] if cleared else []
        if kept:
            parts.append(
                f"{', '.join(kept)}: what it has written stays, as it has no function `clear`, so it counts a second "
                "time unless this version writes elsewhere"
            )
        return f"{number} of queue {self.queue!r} will be reported again, each as new, to {'; '.join(parts)}"


def repeated(
    before: QueueConfig, after: QueueConfig, generational: Collection[str], clearing: Collection[str]
) -> tuple[RepeatedObserver, ...]:
    """The observers that receive all values again by a change of a queue's configuration.

    Args:
        before: the stored configuration.
        after: the new one.
        generational: names of observers that keep the data of each generation apart, so that none count twice.
        clearing: names of observers with a function `clear`.
    """
    former: dict[str, ObserverConfig | None] = dict.fromkeys(before.removed_observers)
    former |= {each.name: each for each in before.observers}
    return tuple(
        RepeatedObserver(former[each.name], each, each.name in clearing)
        for each in after.observers
        if each.name in former
        and each not in before.observers
        and not each.is_built_in
        and each.name not in generational
    )


def count_values(snapshot: TransactionRead, name: str) -> RangeSize:
    """The number of keys with a value, counted or estimated; costs reads of up to 1 MB."""
    return count_rows(snapshot, *QueueKeys(name).values())


def refuse_repeats(tr: Transaction, name: str, again: Collection[RepeatedObserver]) -> None:
    """Raises `InvalidConfiguration` if one of these observers would silently count values of the queue twice."""
    kept = tuple(each for each in again if not each.is_cleared)
    if kept and _has_values(tr, name):
        found = count_values(tr.snapshot, name)
        raise InvalidConfiguration(
            f"{RepeatedReports(name, found.rows, found.exact, kept)}: give it `clear`, or confirm with "
            "report_again=True, or by `cq configure`"
        )


def refuse_recounts(tr: Transaction, before: QueueConfig, after: QueueConfig) -> None:
    """Raises `InvalidConfiguration` if an observer would count the keys of the queue into another one a second time."""
    generations = {each.name: each.generation for each in after.observers}
    for each in before.observers:
        into = each.counts_into
        is_repeated = generations.get(each.name, each.generation) != each.generation
        if into is not None and is_repeated and _has_values(tr, before.name):
            raise InvalidConfiguration(
                f"all keys of queue {before.name!r} would be counted a second time into queue {into!r}: remove "
                f"the observer {each.name!r} from each queue that counts into it (`cq.admin.remove_observer`), purge "
                "it, and then put the observer again (`cq.admin.put_observer`)"
            )


def _has_values(tr: Transaction, name: str) -> bool:
    """Whether a queue has a value; if not, a pass that writes the first one cannot commit before the transaction."""
    bounds = QueueKeys(name).values()
    if tr.snapshot.get_range(*bounds, limit=1).to_list():
        return True
    tr.add_read_conflict_range(*bounds)
    return False
