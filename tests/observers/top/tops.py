"""What the tests of tops share: a queue with a top whose observer is told by hand, and a model of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from cq.config.queue import ObserverConfig
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.observers.top.index import observer, top
from cq.observers.top.publisher import Publisher
from cq.store.transact import transact
from tests.kit.queues import configured

FIRST = 1
"""The generation of a top that a queue is made with."""


class ToldTop:
    """A queue whose values and top are written as a pass would write them, and what both should be.

    Args:
        db: a database of either store.
        settings: for `top`, score and group functions included.
    """

    def __init__(self, db: Any, *, key: object = str, value: object = "any", **settings: Any) -> None:
        self.db = db
        self.name = f"test-{secrets.token_hex(6)}"
        self.keys = QueueKeys(self.name)
        self.functions = {what: settings.get(what) for what in ("score", "group")}
        self.spec = top(**settings)
        self.config = configured(db, self.name, key=key, value=value, observers=[self.spec])
        self.values: dict[Any, Any] = {}
        self.switch(self.spec, FIRST)

    def switch(self, spec: ObserverSpec, generation: int) -> None:
        """Keep and read this generation from now on."""
        self.generation = generation
        self.observe: ObserverFunction = observer(self.config, spec.settings, generation, **self.functions)
        current = codec.encode(generation)
        transact(self.db, lambda tr: tr.set(self.keys.observer_current("top"), current))

    def tell(self, updates: Mapping[Any, Any]) -> None:
        """Give keys new values, None for none, in one transaction."""
        changes = [
            Change(key, self.values.get(key), value)
            for key, value in updates.items()
            if self.values.get(key) != value
        ]

        def write(tr: Any) -> None:
            for change in changes:
                key = self.keys.value(self.config.key.encoder()(change.key))
                if change.new is None:
                    tr.clear(key)
                else:
                    tr.set(key, codec.encode(change.new))
            self.observe(tr, changes)

        transact(self.db, write)
        self.values.update(updates)

    def order(self, group: str | None = None) -> list[tuple[Any, Any]]:
        """(key, score) of all that have a score, in the order of the top."""
        score = self.functions["score"] or (lambda key, value: value)
        in_group = self.functions["group"] or (lambda key, value: None)
        scored = [
            (key, score(key, value))
            for key, value in self.values.items()
            if value is not None and in_group(key, value) == group
        ]
        by_key = sorted((item for item in scored if item[1] is not None), key=lambda item: item[0])
        return sorted(by_key, key=lambda item: item[1], reverse=True)  # stable

    def read(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """What a method of a reader returns, in a transaction."""
        return transact(self.db, lambda tr: method(tr.snapshot, *args, **kwargs))

    def stored(self) -> dict[bytes, bytes]:
        """All that the generation keeps, by what is behind its prefix."""
        prefix = self.keys.observer_data(self.generation)

        def rows(tr: Any) -> dict[bytes, bytes]:
            return {row.key[len(prefix) :]: row.value for row in tr.get_range(prefix, prefix + b"\xff" * 20)}

        return transact(self.db, rows)


def publisher(told: ToldTop, db: Any = None) -> Publisher:
    """A task as a worker of the queue has it."""
    spec = told.spec
    observer = ObserverConfig(spec.name, spec.version, dict(spec.settings), told.generation)
    return Publisher(db or told.db, told.config, observer)


def publish(task: Publisher) -> float:
    """Steps until there is nothing more to do at once; returns what the last one did."""
    while (pause := task.run()) == 0.0:
        pass
    return pause
