"""Applications with one queue, and observers that keep what they receive and refuse keys."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import cq
from cq.encoding import codec
from cq.keys import prefix_end
from tests.kit.queues import stored

concatenation: Final = cq.Combiner(
    "concatenation", 1, lambda key, values: [item for value in values for item in value]
)
"""A combiner of lists that shows in which order it gets updates."""


def _fail(key: Any, values: Any) -> Any:
    raise RuntimeError("no")


failing: Final = cq.Combiner("failing", 1, _fail)


def app_of(name: str, *observers: Any, combiner: str | cq.Combiner | None = None) -> cq.App:
    """An application with this code for one queue."""
    app = cq.App()
    app.queue(name, combiner=combiner, observers=observers)
    return app


def app_with(
    db: Any, name: str, *observers: Any, combiner: str | cq.Combiner | None = None, **settings: Any
) -> cq.App:
    """An application with this code for one queue, which it has configured."""
    app = app_of(name, *observers, combiner=combiner)
    app.configure(db, name, **settings)
    return app


class Seen:
    """An observer that keeps what it receives, checks that each old value is the latest new value, and refuses keys.

    Attributes:
        changes: the changes received, also in transactions that were not committed.
        refused: the keys for which it raises.
        only_deletions: whether it raises for deletions of these keys only.
    """

    def __init__(
        self, refused: Collection[Any] = (), *, name: str = "seen", only_deletions: bool = False
    ) -> None:
        self.name, self.refused, self.only_deletions = name, refused, only_deletions
        self.changes: list[cq.Change] = []
        self._values: dict[Any, Any] = {}

    def __call__(self, tr: Any, changes: list[cq.Change]) -> None:
        for change in changes:
            if change.key in self.refused and (change.new is None or not self.only_deletions):
                raise RuntimeError(f"not {change.key}")
        for change in changes:
            assert change.new != change.old
            assert change.old == self.take(tr, change.key, change.new), change
        self.changes += changes

    def take(self, tr: Any, key: Any, new: Any) -> Any:
        """Keep the new value of a key; returns the value kept before, None for none."""
        old = self._values.pop(key, None)
        if new is not None:
            self._values[key] = new
        return old

    @property
    def values(self) -> dict[Any, Any]:
        """{key: value} as received."""
        return self._values

    def received(self, key: Any) -> list[tuple[Any, Any]]:
        """(old value, new value) of the changes of a key."""
        return [(change.old, change.new) for change in self.changes if change.key == key]

    @property
    def observer(self) -> cq.Observer:
        """The observer, to be declared in an application."""
        return cq.Observer(self.name, 1, self)

    def app(self, name: str) -> cq.App:
        """An application in which it observes this queue."""
        return app_of(name, self.observer)


class SeenInStore(Seen):
    """Keeps the values in the store, so transactions that are not committed do not count."""

    def __init__(self, db: Any, queue: str, *, name: str = "seen") -> None:
        super().__init__(name=name)
        self.db, self.prefix = db, f"test/{queue}/{name}/".encode()

    def take(self, tr: Any, key: Any, new: Any) -> Any:
        where = self.prefix + key.encode()
        old = tr.get(where).value
        if new is None:
            tr.clear(where)
        else:
            tr.set(where, codec.encode(new))
        return None if old is None else codec.decode(old)

    @property
    def values(self) -> dict[Any, Any]:
        """{key: value} as received in committed transactions."""
        found = stored(self.db, (self.prefix, prefix_end(self.prefix)))
        return {key[len(self.prefix) :].decode(): codec.decode(value) for key, value in found}
