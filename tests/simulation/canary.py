"""Variants of cq that are broken on purpose. A run of the simulation must catch each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Final
from unittest.mock import patch

from cq.observer import Change
from cq.observers import builtin
from tests.simulation.plan import END_SECONDS, Plan
from tests.simulation.store import Reads, SimTransaction

SEEDS: Final = 150
"""Within how many seeds, from its own on, a canary must be caught."""


@dataclass(frozen=True)
class Canary:
    """A variant of cq that is broken on purpose.

    Attributes:
        broken: returns a context manager. While it is entered, cq is broken.
        system: the system whose runs catch it.
        seed: the first seed that is tried. It has caught the canary, so that one run suffices; an outdated seed costs
            time, and nothing else: the search goes on from there.
        only: the only kinds that its plans have, if other kinds hide it or make it slow.
        also: kinds that all of its plans have, if it is seldom caught without them.
        end_seconds: how long a run may take to end, if its workers never rest, which takes many turns.
    """

    broken: Callable[[], AbstractContextManager[object]]
    system: str
    seed: int = 0
    only: Set[str] | None = None
    also: Set[str] = frozenset()
    end_seconds: float = END_SECONDS

    def __call__(self) -> AbstractContextManager[object]:
        return self.broken()

    def plan(self, seed: int) -> Plan:
        """The plan of one of its runs."""
        drawn = Plan.of(seed, system=self.system)
        kinds = drawn.on | self.also if self.only is None else self.only
        return replace(drawn, on=frozenset(kinds), end_seconds=self.end_seconds)


class Canaries(dict[str, Canary]):
    """{name: canary} of one system. Its methods return decorators, and take the other attributes of a canary.

    The name is that of the decorated function, whose docstring says in a line what is wrong.
    """

    def __init__(self, system: str) -> None:
        super().__init__()
        self.system = system

    def patches(self, **details: Any) -> Callable[[Callable[[], Any]], Canary]:
        """The function returns a context manager, for example of `unittest.mock.patch`."""

        def made(function: Callable[[], Any]) -> Canary:
            canary = self[function.__name__] = Canary(function, self.system, **details)
            return canary

        return made

    def replaces(self, *paths: str, **details: Any) -> Callable[[Callable[..., Any]], Canary]:
        """The function replaces those with these paths, and gets the replaced function as its first argument."""

        def made(function: Callable[..., Any]) -> Canary:
            @contextmanager
            def replaced() -> Iterator[None]:
                with ExitStack() as stack:
                    for path in paths:
                        stack.enter_context(patch(path, _with_first(function, resolve_name(path))))
                    yield

            replaced.__name__ = function.__name__
            return self.patches(**details)(replaced)

        return made


def _with_first(function: Callable[..., Any], first: Any) -> Callable[..., Any]:
    """A function, which can become a method, with a first argument before all others."""
    return lambda *args, **kwargs: function(first, *args, **kwargs)


def reads_without_conflict(is_weak: Callable[[bytes], bool]) -> Any:
    """Make the reads of some keys in simulated transactions snapshot reads."""
    get = Reads.get

    def weak(self: Reads, key: bytes) -> Any:
        return get(self.snapshot if isinstance(self, SimTransaction) and is_weak(key) else self, key)

    return patch.object(Reads, "get", weak)


def observes(name: str, change: Callable[[Callable[[Any, Any], object], Any, list[Change]], object]) -> Any:
    """Change how a built-in observer is called."""
    function = builtin.FACTORIES[name]

    def observer(config: Any, settings: Any, generation: int) -> Any:
        keep = function(config, settings, generation)
        return lambda tr, changes: change(keep, tr, changes)

    return patch.dict(builtin.FACTORIES, {name: observer})
