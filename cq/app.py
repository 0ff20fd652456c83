"""Which code this process has for which queue.

The configuration stored with a queue names its combiner and observers with their versions; nothing stored is
ever imported. A worker gets the code from an `App`, and leaves alone the queues whose code it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cq import keys
from cq.admin import configure as configuring
from cq.combiners import BUILT_IN, Combiner, resolve
from cq.config.queue import Named, ObserverConfig, QueueConfig
from cq.errors import CodeMismatch
from cq.observer import Observer, ObserverFunction, ObserverSpec
from cq.store.api import Database

Exporter = Callable[[Any], object]
F = TypeVar("F", bound=Callable[..., object])
Factory = Callable[[QueueConfig, Mapping[str, Any], int], ObserverFunction]
"""Makes an observer's function from the queue's configuration, the observer's settings and its generation."""


@dataclass(frozen=True, slots=True)
class QueueCode:
    """A queue's configuration together with the code it asks for; `observers` in the configuration's order."""

    config: QueueConfig
    combiner: Combiner
    observers: tuple[ObserverFunction, ...]

    @property
    def shapes(self) -> list[QueueCode]:
        """The code by which passes drain the shape before, if there is one to drain, and that of the shape now."""
        former = self.config.under_former_shape()
        return [self] if former is None else [replace(self, config=former), self]

    @property
    def is_foreign(self) -> bool:
        """Whether combining the queue runs code that is not cq's own."""
        return bool(self.observers) or BUILT_IN.get(self.combiner.name) is not self.combiner


class App:
    """The queues that an application has code for: combiners of its own, and change observers.

    A worker is given it by `cq worker --app module:app`. Queues that need nothing but what is built in need no entry.
    """

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Combiner | None, tuple[Observer | ObserverSpec, ...]]] = {}
        self._exporters: dict[str, Exporter] = {}

    @property
    def exporters(self) -> Mapping[str, Exporter]:
        """{name of an export queue: what exports it}."""
        return self._exporters

    def queue(
        self,
        name: str,
        *,
        combiner: str | Combiner | None = None,
        observers: Sequence[Observer | ObserverSpec | ObserverFunction] = (),
    ) -> None:
        """Declare the code of a queue; None for the combiner means whichever built-in one is configured."""
        code = None if combiner is None else resolve(combiner)
        self._queues[keys.check_name(name)] = (
            code,
            tuple(each if isinstance(each, ObserverSpec) else Observer.of(each) for each in observers),
        )

    def observer(self, name: str, *, version: int = 1) -> Callable[[F], F]:
        """Declare the decorated function an observer of a queue, behind those declared before, named as it is.

        >>> app = App()
        >>> @app.observer("words")
        ... def alert(tr, changes): ...
        """

        def declare(function: F) -> F:
            combiner, observers = self._queues.get(keys.check_name(name), (None, ()))
            observer = replace(Observer.of(function), version=version)
            self._queues[name] = combiner, (*observers, observer)
            return function

        return declare

    def exporter(self, name: str) -> Callable[[F], F]:
        """Declare the decorated function what exports an export queue: workers call it with batches of entries.

        See `cq.observers.export.batch.Exporter`.
        """

        def declare(function: F) -> F:
            self._exporters[keys.check_name(name)] = function
            return function

        return declare

    def configure(self, db: Database, name: str, **settings: Any) -> QueueConfig:
        """`cq.configure` with the combiner and observers declared here; see there for settings and errors."""
        combiner, observers = self._queues.get(name, (None, None))
        if combiner is not None:
            settings["combiner"] = combiner
        return configuring.configure(db, name, **{"observers": observers, **settings})

    def code(self, wanted: QueueConfig, built_in: Mapping[str, Factory] | None = None) -> QueueCode:
        """The code that a configuration asks for; raises `CodeMismatch` naming what is missing.

        `built_in` has the factories of the observers that can be configured without code, by their names.
        """
        combiner, observers = self._queues.get(wanted.name, (None, ()))
        if combiner is None:
            combiner = BUILT_IN.get(wanted.combiner.name)
        if combiner is None or Named(combiner.name, combiner.version) != wanted.combiner:
            raise CodeMismatch(
                f"queue {wanted.name!r} asks for the combiner {wanted.combiner}, this process has "
                f"{Named(combiner.name, combiner.version) if combiner else 'none of that name'}: "
                "start it with --app and the application that declares it"
            )
        declared = {each.name: each for each in observers}
        functions = tuple(
            _function(wanted, each, declared.pop(each.name, None), built_in or {})
            for each in wanted.observers
        )
        if declared:
            raise CodeMismatch(
                f"queue {wanted.name!r} does not ask for the observers {', '.join(declared)} of this process: "
                "configure it with the application that declares them"
            )
        return QueueCode(wanted, combiner, functions)


def _function(
    config: QueueConfig,
    wanted: ObserverConfig,
    declared: Observer | ObserverSpec | None,
    built_in: Mapping[str, Factory],
) -> ObserverFunction:
    """The function of an observer that a configuration asks for."""
    if isinstance(declared, Observer) and (declared.version, {}) == (wanted.version, wanted.settings):
        return declared.function
    if isinstance(declared, ObserverSpec) and (declared.version, declared.settings) == (
        wanted.version,
        wanted.settings,
    ):
        factory = declared.factory or built_in.get(declared.name)
    else:
        factory = None if declared else built_in.get(wanted.name)
    if factory is None:
        have = Named(declared.name, declared.version) if declared else "none of that name"
        raise CodeMismatch(
            f"queue {config.name!r} asks for the observer {wanted}, this process has {have}: "
            "start it with --app and the application that declares it"
        )
    return factory(config, wanted.settings, wanted.generation)
