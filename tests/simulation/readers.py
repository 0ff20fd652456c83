"""Processes that read values with the queued updates, and what readers must see at any version."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import cq
from cq.admin.audit import audit_findings
from cq.admin.backfill import current_generation
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.keys.missed import MissedKeys
from cq.observers.top.ranking import Ranking
from cq.store.transact import transact
from tests.simulation.application import BAD_KEY, CONCATENATE, SUMS, TEXTS, UNREADABLE
from tests.simulation.hub import Process
from tests.simulation.model import QueueModel, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

_LOOK_COMMITS: Final = 10


class Readers:
    """Processes that read values with all queued updates: `CombineQueue.get(pending=True)`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.plan.rng("readers")

    def start(self) -> None:
        """Start a process; another one replaces it when it dies."""
        self.world.start_process("reader", "read", self._run)

    def _run(self, process: Process) -> None:
        while not self.world.is_calm:
            self.world.hub.wait(self.rng.expovariate(1 / 0.1))
            model = self.world.models[self.rng.choice(list(self.world.models))]
            key = self.rng.choice(self.world.adders.keys)
            look = partial(self._look, self.world.db(process), model, key)
            refusals = cq.errors.QueueNotConfigured, cq.errors.BacklogTooDeep, cq.errors.NotNow
            self.world.attempt(look, *refusals)

    def _look(self, db: Any, model: QueueModel, key: str) -> None:
        deletions = model.deletions
        try:
            version, value = transact(db, lambda tr: self._read(tr, model, key))
        except cq.errors.CorruptData:
            if key in model.touched:  # the operator may have made its value unreadable
                return
            raise
        if model.deletions == deletions:
            self._compare(model, key, version, value)

    def _read(self, tr: Any, model: QueueModel, key: str) -> tuple[int, Any]:
        """A read version and the value at it; raises `NotNow` during a purge of the key's bucket."""
        queue = cq.CombineQueue(model.name, combiner=CONCATENATE if model.name == TEXTS else None)
        value = queue.get(tr if self.rng.random() < 0.5 else tr.snapshot, key, pending=True)
        return tr.get_read_version().wait(), value

    def _compare(self, model: QueueModel, key: str, version: int, value: Any) -> None:
        """The value derives from exactly the updates committed up to the read version, in commit order."""
        expected = model.value(key, version)
        if key != BAD_KEY and key not in model.touched and value != expected:
            updates = model.counted(key, version)
            self.world.violations.append(
                f"{model.name}: a reader gets {value!r} for {key!r} at {version}, expected {expected!r} of {updates!r}"
            )


class Watcher:
    """Looks after some of the commits: the top is that of the values, as soon as readers use it; the audit is balanced.

    Buckets of the audit that cannot be checked at that moment are left out.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._commits = 0

    def look(self) -> None:
        """Raises `Violation` if one of them is wrong."""
        self._commits += 1
        if self._commits % _LOOK_COMMITS:
            return
        tr = self.world.inner.create_transaction().snapshot
        config = read_config(tr, SUMS)
        rows = tr.get_range(*QueueKeys(SUMS).values()).to_list()
        is_readable = all(row.value != UNREADABLE for row in rows)  # the audit lacks other values
        if config.audit is not None and is_readable:
            self._look_at_audit()
        if "top" in self.world.plan:
            self._look_at_top(tr, config, dict(map(self._readable, rows)))

    def _readable(self, row: Any) -> tuple[str, int]:
        """The key and the value of a row; an unreadable value is what it was before."""
        stored = self.world.spoiled[row.key][1] if row.value == UNREADABLE else row.value
        return codec.decode(QueueKeys(SUMS).encoded_key(row.key)), codec.decode(stored)

    def _look_at_audit(self) -> None:
        found = [line for line in audit_findings(self.world.inner, SUMS) if "is not checked" not in line]
        if found:
            raise Violation(f"the audit of {SUMS}: {found}")

    def _look_at_top(self, tr: Any, config: QueueConfig, values: dict[str, int]) -> None:
        top = next(each for each in config.observers if each.name == "top")
        missed = MissedKeys(SUMS).of_generation(top.generation)
        if current_generation(tr, SUMS, "top") != top.generation or tr.get_range(*missed, limit=1).to_list():
            return  # readers have the generation before, which gets no changes; or it misses reports, as it says
        found = {entry.key: entry.score for entry in Ranking(SUMS).page(tr, 1000).entries}
        if found != values:
            raise Violation(f"readers get the top {found}, and the values are {values}")
