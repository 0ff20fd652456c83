"""Which code this process has for which queue.

The configuration stored with a queue names its combiner and observers with their versions; nothing stored is ever
imported. A worker gets the code from an `App`, and leaves alone the queues whose code it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cq import config, keys
from cq.changes import Change, Observer
from cq.combiners import BUILT_IN, Combiner, resolve
from cq.config import Named, QueueConfig
from cq.errors import CodeMismatch
from cq.store.api import Database


@dataclass(frozen=True, slots=True)
class QueueCode:
    """A queue's configuration together with the code it asks for."""

    config: QueueConfig
    combiner: Combiner
    observers: tuple[Observer, ...]

    @property
    def is_foreign(self) -> bool:
        """Whether combining the queue runs code that is not cq's own."""
        return bool(self.observers) or BUILT_IN.get(self.combiner.name) is not self.combiner


class App:
    """The queues that an application has code for: combiners of its own, and change observers.

    A worker is given it by `cq worker --app module:app`. Queues that need nothing but built-in combiners need no
    entry.
    """

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Combiner | None, tuple[Observer, ...]]] = {}

    def queue(
        self,
        name: str,
        *,
        combiner: str | Combiner | None = None,
        observers: Sequence[Observer | Callable[[Any, list[Change]], object]] = (),
    ) -> None:
        """Declare the code of a queue; None for the combiner means whichever built-in one is configured."""
        code = None if combiner is None else resolve(combiner)
        self._queues[keys.check_name(name)] = (code, tuple(map(Observer.of, observers)))

    def configure(self, db: Database, name: str, **settings: Any) -> QueueConfig:
        """`cq.configure` with the combiner and observers declared here; see there for settings and errors."""
        combiner, observers = self._queues.get(name, (None, ()))
        if combiner is not None:
            settings["combiner"] = combiner
        return config.configure(db, name, observers=observers, **settings)

    def code(self, wanted: QueueConfig) -> QueueCode:
        """The code that a configuration asks for; raises `CodeMismatch` naming what is missing."""
        combiner, observers = self._queues.get(wanted.name, (None, ()))
        if combiner is None:
            combiner = BUILT_IN.get(wanted.combiner.name)
        have = [Named(observer.name, observer.version) for observer in observers]
        if combiner is None or Named(combiner.name, combiner.version) != wanted.combiner:
            raise CodeMismatch(
                f"queue {wanted.name!r} asks for the combiner {wanted.combiner}, this process has "
                f"{Named(combiner.name, combiner.version) if combiner else 'none of that name'}: "
                "start it with --app and the application that declares it"
            )
        if tuple(have) != wanted.observers:
            raise CodeMismatch(
                f"queue {wanted.name!r} asks for the observers {_listed(wanted.observers)}, this process has "
                f"{_listed(have)}: start it with --app and the application that declares them"
            )
        return QueueCode(wanted, combiner, observers)


def _listed(names: Sequence[Named]) -> str:
    return ", ".join(map(str, names)) or "none"
