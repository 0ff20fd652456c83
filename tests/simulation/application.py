"""The application's code as the simulated workers have it: what combines, observes, sends, and now and then fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import cq
from cq import links
from cq.links import Changes
from tests.links.linkhelpers import FunctionTarget
from tests.simulation.model import Added, Reported, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

TEXTS: Final = "texts"
SUMS: Final = "sums"
OTHERS: Final = "others"
STORED: Final = "stored"
FEED: Final = "feed"
BAD_KEY: Final = "bad"
UNREADABLE: Final = b"\xff"
"""What stands in place of a value that the operator has made unreadable."""
TABLE: Final = "sums_table"
TOP: Final = 3
LENGTHS: Final = b"lengths"
"""The key of what the second observer derives: the length of all texts that it has received."""


class NotingQueue(cq.CombineQueue):
    """A queue that notes what is added to it, in the transaction.

    Args:
        name: of the queue.
        note: makes a note of the updates, in addition to `Added`.
        combiner: of the application.
    """

    def __init__(
        self,
        name: str,
        note: Callable[[tuple[tuple[str, Any], ...]], Any],
        combiner: cq.Combiner | None = None,
    ) -> None:
        super().__init__(name, combiner=combiner)
        self._note = note

    def add(self, tr: Any, updates: Any, once: str | bytes | None = None) -> None:
        super().add(tr, updates, once)
        pairs = tuple(updates.items() if isinstance(updates, Mapping) else updates)
        tr.notes += [Added(self.name, pairs, None), self._note(pairs)]


class Raised(Exception):
    """Raised on purpose."""


def _concatenate(key: str, values: Sequence[str]) -> str:
    if key == BAD_KEY:
        raise Raised("a bad key")
    return "".join(values)


CONCATENATE: Final = cq.Combiner("concatenate", 1, _concatenate, lambda value: value == "")


@dataclass(frozen=True)
class Other:
    """A built-in combiner of another queue than those of texts and sums.

    Attributes:
        value: the queue's type of values.
        update: makes an update of a number that no other update has.
        combine: what the combiner should make of updates, written once more.
        shows_all: whether a value shows all of its updates in any order.
    """

    name: str
    value: type
    update: Callable[[int], Any]
    combine: Callable[[list[Any]], Any]
    shows_all: bool = True


def _count(updates: list[dict[str, int]]) -> dict[str, int] | None:
    names = {name for update in updates for name in update}
    totals = {name: sum(update.get(name, 0) for update in updates) for name in names}
    return {name: number for name, number in totals.items() if number} or None


OTHER_COMBINERS: Final = (
    Other("minimum", int, lambda number: 1 + number * 7919 % 10_007, min),
    Other("maximum", int, lambda number: 1 + number * 7919 % 10_007, max),
    Other("last", str, str, lambda updates: updates[-1], shows_all=False),
    Other("first", str, str, lambda updates: updates[0], shows_all=False),
    Other("union", set, lambda number: {number % 97}, lambda updates: set().union(*updates)),
    Other("counter", dict, lambda number: {f"c{number % 3}": number % 5 - 2}, _count),
)


def app(world: World, extra: int) -> cq.App:
    """The application with its second observer in some version; 0 for without."""
    made = cq.App()
    versions = {"anchor": 1} | ({"extra": extra} if extra else {})
    made.queue(TEXTS, combiner=CONCATENATE, observers=_observers(world, TEXTS, versions))
    made.queue(SUMS, observers=_observers(world, SUMS, {"anchor": 1}))
    if OTHERS in world.models:
        made.queue(OTHERS, observers=_observers(world, OTHERS, {"anchor": 1}))
    if "feed" in world.plan:
        made.target(FEED)(lambda source: FunctionTarget(_sender(world)))
    return made


def _observers(world: World, queue: str, versions: dict[str, int]) -> list[cq.Observer]:
    return [observer(world, queue, name, version) for name, version in versions.items()]


def observer(world: World, queue: str, name: str, version: int) -> cq.Observer:
    """An observer of a queue in a version; the second one derives something, which a new generation clears."""
    clear = _clear_lengths if name == "extra" else None
    return cq.Observer(name, version, _observer(world, queue, name, version), clear=clear)


def _clear_lengths(tr: Any) -> None:
    tr.clear(LENGTHS)


def _add_lengths(tr: Any, changes: list[cq.Change]) -> None:
    difference = sum(len(change.new or "") - len(change.old or "") for change in changes)
    tr.add(LENGTHS, difference.to_bytes(8, "little", signed=True))


def _observer(world: World, queue: str, name: str, version: int) -> Callable[[Any, list[cq.Change]], None]:
    """An observer that notes what it is told, for the log of what is committed."""
    feeds = queue == TEXTS and name == "anchor" and "feed" in world.plan

    def observe(tr: Any, changes: list[cq.Change]) -> None:
        if world.happens("observers raise", 0.04):
            raise Raised("an observer")
        if refused := [change.key for change in changes if _is_refused(world, name, change)]:
            raise Raised(f"an observer, for {refused[0]!r}")
        if world.happens("observers hang", 0.02):
            world.hub.wait(world.hub.rng.expovariate(1 / 4))
        tr.notes += [
            Reported(queue, name, version, change.key, change.old, change.new, change.complete)
            for change in changes
        ]
        if name == "extra":
            _add_lengths(tr, changes)
        if feeds:
            links.add(tr, FEED, [(change.key, change.new) for change in changes])

    return observe


def _is_refused(world: World, observer: str, change: cq.Change) -> bool:
    """Whether an observer refuses a key now: half of the time a third of the keys, first reported or deleted."""
    if "observers refuse keys" not in world.plan or world.is_calm:
        return False
    is_first = change.old is None and observer == "extra"
    return (
        (is_first or change.new is None) and world.hub.clock % 20 < 10 and crc32(change.key.encode()) % 3 == 0
    )


def _sender(world: World) -> Callable[[Changes], None]:
    """What a target does that keeps the last sequence of each key, and no positions."""

    def send(changes: Changes) -> None:
        for entry in changes:
            if world.happens("targets fail", 0.05):
                raise Raised("a target")
            if world.hub.rng.random() < 0.3:
                world.hub.wait(world.hub.rng.expovariate(1 / 0.01))
            try:
                world.feed.export(entry.key, entry.sequence, entry.value)
            except Violation as violation:  # a target may raise: the worker would try again
                world.violations.append(str(violation))
        if world.happens("targets fail", 0.05):
            raise Raised("a target, when all is done")

    return send
