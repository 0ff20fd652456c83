"""The operator of the queues: does all that can be done to a queue in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

import cq
from cq import admin
from cq.admin.purging import purging_buckets
from cq.config.queue import read_config
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observers.verify.queue import verification
from cq.queue.operation_ids import Trim
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from tests.simulation.application import SUMS, TEXTS, UNREADABLE, app, observer
from tests.simulation.model import Shaped, Violation
from tests.simulation.sql import opened_table

if TYPE_CHECKING:
    from tests.simulation.hub import Process
    from tests.simulation.world import World

REMEMBER_SECONDS: Final = 1.0
"""How long operation ids are remembered where they are short-lived."""
SLOW_SECONDS: Final = 0.1
"""How long a call of a slow process takes, about."""


class Administrator:
    """Does all that can be done to a queue in use."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = world.process("administrator")
        self.doing: dict[str, Callable[[str], object]] = {
            "rebucket": self._rebucket,
            "purge": self._purge,
            "pause": self._pause,
            "observers": self._observers,
            "retry aside": lambda name: retry_aside(self.db, name),
            "limit": self._limit,
            "top": lambda name: admin.rebuild_observer(self.db, SUMS, "top"),
            "audit": self._audit,
            "come and go": lambda name: self.world.workers.come_and_go(),
            "rebuild": self._rebuild,
            "send again": self._send_again,
            "table set back": self._set_table_back,
            "delete": self._delete,
            "repair": self._repair,
            "damage": self._damage,
            "drains": lambda name: self.world.drains.start(),
            "unreadable": self._spoil,
        }
        self.kinds = [what for what in self.doing if what in world.plan]

    @property
    def db(self) -> Any:
        """The store as the administrator's process sees it."""
        return self.world.db(self.process)

    def start(self) -> None:
        """Start; a process that replaces an administrator that has died continues its work."""
        self.world.start_process("administrator", "change", self._run)

    def _run(self, process: Process) -> None:
        rng, self.process = self.world.hub.rng, process
        while self.kinds and not self.world.is_calm:
            self.world.hub.wait(rng.expovariate(1 / 2.0))
            what = rng.choice(self.kinds)
            name = rng.choice(list(self.world.models))
            self.world.trace(what, name)
            self.world.attempt(partial(self._do, what, name), cq.CqError, sa.exc.DBAPIError)
            self.db.shape_note = None

    def _do(self, what: str, name: str) -> None:
        self.make_texts()
        self.doing[what](name)

    def make_texts(self) -> None:
        """Configure the queue of texts if it was deleted and is not there yet."""
        if transact(self.db, lambda tr: tr.snapshot.get(QueueKeys(TEXTS).config).present()):
            return
        made = Shaped(TEXTS, observers=self._wanted(self.world.extra))
        self.db.shape_note = made
        self.world.configure_texts(self.db)
        self.db.shape_note = None

    def _wanted(self, extra: int) -> dict[str, int]:
        return {"anchor": 1} | ({"extra": extra} if extra else {})

    def _rebucket(self, name: str) -> None:
        admin.rebucket(self.db, name, self.world.hub.rng.randint(1, 6))

    def _purge(self, name: str) -> None:
        if any(name == queue for queue, _ in self.world.spoiled.values()):
            return  # it would leave an unreadable value
        self.db.shape_note = Shaped(name, purged=True)
        admin.purge(self.db, name)

    def _pause(self, name: str) -> None:
        rng = self.world.hub.rng
        if rng.random() < 0.5:
            admin.pause(self.db, name, duration=rng.choice((None, 1.0, 5.0)))
        else:
            admin.resume(self.db, name)

    def _observers(self, name: str) -> None:
        """Enable the second observer in a new version, or remove it; the workers get the new application."""
        self.world.versions += 1
        extra = self.world.versions if self.world.hub.rng.random() < 0.7 else 0
        self.db.shape_note = Shaped(TEXTS, observers=self._wanted(extra))
        app(self.world, extra).configure(self.db, TEXTS, value=str)  # another operator may have deleted it
        self.world.workers.replace()

    def _limit(self, name: str) -> None:
        rng = self.world.hub.rng
        admin.limit(
            self.db,
            name,
            max_age=rng.choice((None, 0.5, 3.0)),
            max_bytes=rng.choice((None, 100, 10_000)),
            when_full=rng.choice(("raise", "admit")),
        )

    def _audit(self, name: str) -> None:
        cq.configure(self.db, SUMS, audit=self.world.hub.rng.random() < 0.7)

    def _rebuild(self, name: str) -> None:
        """Have an observer of the application's report all values again, from `old=None` on."""
        if name == SUMS and "table" in self.world.plan:
            name = TEXTS  # the model of the table needs each change of the sums once
        config = transact(self.db, lambda tr: read_config(tr.snapshot, name))
        names = [each.name for each in config.observers if each.name in ("anchor", "extra")]
        if names:
            chosen = self.world.hub.rng.choice(names)
            self.db.shape_note = Shaped(name, rebuilt=chosen)
            versions = {each.name: each.version for each in config.observers}
            admin.rebuild_observer(self.db, name, observer(self.world, name, chosen, versions[chosen]))

    def _send_again(self, name: str) -> None:
        """Rebuild or rebase the link of the sums."""
        if "table" in self.world.plan:
            with opened_table(self.db) as link:
                again = link.rebuild if self.world.hub.rng.random() < 0.5 else link.rebase
                again()

    def _set_table_back(self, name: str) -> None:
        """Copy the reporting database, or restore the copy."""
        if "table" in self.world.plan:
            self.world.table_copy.save_or_restore()

    def _delete(self, name: str) -> None:
        """Delete the queue of texts and make it anew."""
        self.db.shape_note = Shaped(TEXTS, deleted=True)
        admin.delete(self.db, TEXTS)
        self.db.shape_note = None
        self.make_texts()

    def _damage(self, name: str) -> None:
        """Lose the notification of a bucket, and repair the queue while it is in use."""
        world = self.world
        tr = world.inner.create_transaction()
        if found := tr.snapshot.get_range(*QueueKeys(name).notifications()).to_list():
            tr.clear(world.hub.rng.choice(found).key)
            tr.commit().wait()
            world.damaged.add(name)
        for _ in verification(self.db, name, app=app(world, world.extra), repair=True, wait=0).run():
            pass
        world.damaged.discard(name)

    def _spoil(self, name: str) -> None:
        """Make a value unreadable, so that a rebuilt observer misses it, and restore it after a while."""
        world = self.world
        tr = world.inner.create_transaction()
        rows = [row for row in tr.get_range(*QueueKeys(name).values()).to_list() if row.value != UNREADABLE]
        if not rows or purging_buckets(world.inner, name):
            return
        row = world.hub.rng.choice(rows)
        world.spoiled[row.key] = name, row.value
        world.models[name].touched.add(codec.decode(QueueKeys(name).encoded_key(row.key)))
        tr.set(row.key, UNREADABLE)
        tr.commit().wait()
        if "rebuild" in world.plan:
            world.attempt(partial(self._rebuild, name), cq.CqError)
        world.hub.wait(world.hub.rng.expovariate(1 / 3.0))
        restore(world, row.key)

    def _repair(self, name: str) -> None:
        """Repair a queue in use that nothing is wrong with: this finds nothing and changes nothing."""
        world = self.world
        touched = bool(world.models[name].touched)
        check = verification(self.db, name, app=app(world, world.extra), repair=True, wait=0)
        found = [each for each in check.run() if not each.kind.startswith("link-table")]
        if "damage" not in world.plan and found and not touched and not world.models[name].touched:
            raise Violation(f"a repair finds in {name}: {[f'{each.kind}: {each.what}' for each in found]}")


def restore(world: World, key: bytes) -> None:
    """Restore a value that is still unreadable: no pass has written it from its cache, and its queue is the same."""
    tr = world.inner.create_transaction()
    if tr.get(key).value == UNREADABLE:
        tr.set(key, world.spoiled[key][1])
        tr.commit().wait()
    world.spoiled.pop(key, None)  # another operator may have made it unreadable again, and restored it


class Trimmer:
    """A process that forgets operation ids all the time, as workers do every hour."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self) -> None:
        """Begin; a process that has died is replaced."""
        self.world.start_process("trimmer", "trim", self._run)

    def _run(self, process: Process) -> None:
        world, rng = self.world, self.world.hub.rng
        db, pause = world.db(process), 0.2
        if "late tries" in world.plan:  # slow, so that tries are committed between its reads and its commit
            db.faults, pause = replace(db.faults, latency=SLOW_SECONDS), 0.02
        while not world.is_calm:
            world.hub.wait(rng.expovariate(1 / pause))
            trim = Trim(db, rng.choice(list(world.models)), REMEMBER_SECONDS)
            world.attempt(partial(_trim_all, trim), cq.errors.QueueNotConfigured)
            if trim.removed:
                world.trace("forgets", trim.removed, "operation ids")


def _trim_all(trim: Trim) -> None:
    while trim.step():
        pass
