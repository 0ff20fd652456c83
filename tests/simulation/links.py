"""The system of the links: one queue with links to a SQL table and to a webhook, and each side is set back.

An operator makes backups of the store, the reporting database and the webhook's receivers (`hooks`) and restores each
without the others. The
store is restored as the documentation says: all processes that use it end before, and others start afterwards. Its
clock may be set back with it, so that versions occur a second time. The model has the updates and the reported values
of each key. It is saved and restored together with the store. A link that goes on after it was set back leaves
rows of lost keys in the table, or lacks rows, which the comparison at the end finds: most keys are used for a short
time only, so that no later update repairs their rows.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import sqlalchemy as sa

import cq
from cq import admin
from cq.config.queue import ObserverConfig, read_config
from cq.keys import below
from cq.keys.link import OBSERVER, LinkKeys, generation_of
from cq.observers.links.failure_note import STOPPED_SECONDS, NotedTask
from cq.observers.links.log import BUCKETS, ReadLimits, read_entries
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import opened_link
from cq.observers.links.spec import links_in
from cq.observers.links.sql.target import SqlTarget
from cq.observers.links.state import read_control, read_view
from cq.observers.links.targets.webhook import WebhookTarget
from cq.observers.worker.worker import Worker
from cq.queue.set_aside import retry_aside
from cq.store.transact import transact
from tests.kit.queues import copy_store
from tests.simulation.actors import WorkerPool
from tests.simulation.application import SUMS
from tests.simulation.hooks import HOOK, Hooks
from tests.simulation.hub import Process
from tests.simulation.model import Table, Violation
from tests.simulation.outboxmodel import Trouble
from tests.simulation.plan import Plan
from tests.simulation.scenario import LANDING, STORE, Scenario, check_verified, first_row, ranges_of
from tests.simulation.sql import LATE_SECONDS, LINK, URL_ENV, Connections, TableCopy, make_table
from tests.simulation.store import CommitRequest

_HOT: Final = ("hot 0", "hot 1")
_HOOK_KINDS: Final = frozenset(
    (
        "hook",
        "hook set back",
        "hook moves",
        "the receiver fails",
        "hook comes and goes",
        "set back after a rebuild",
    )
)
"""The kinds of runs with the second link."""
_SENDS_AGAIN: Final = frozenset(
    (
        "store set back",
        "hook set back",
        "hook moves",
        "send again",
        "hook comes and goes",
        "set back once begun",
        "set back after a rebuild",
    )
)
"""What makes a receiver get values more than once."""
_BEGIN_SECONDS: Final = 5.0
"""How long the operator waits until the buckets of a link have begun an epoch."""
_LOOK_SECONDS: Final = 0.002


@dataclass(frozen=True)
class Summed:
    """A transaction has added these updates."""

    updates: dict[str, int]


@dataclass(frozen=True)
class Told:
    """A pass has reported a value."""

    key: str
    value: int | None


@dataclass
class Linked:
    """A link of the run.

    Attributes:
        keys: the link's.
        trouble: whether its two sides disagree.
        restores: how often its target was set back.
        differs: whether a side was set back since the latest rebuild or rebase.
        is_repairing: whether a rebuild or rebase has begun whose result is not known.
        is_to_be_rebuilt: whether the operator has accepted a difference, so that all is sent again in the end.
    """

    keys: LinkKeys
    trouble: Trouble
    restores: int = 0
    differs: bool = False
    is_repairing: bool = False
    is_to_be_rebuilt: bool = False

    def note_restored(self) -> None:
        """The target was set back."""
        self.restores += 1
        self.note_set_back()

    def note_set_back(self) -> None:
        """A side was set back."""
        self.trouble.note(True)
        self.differs = True
        self.is_to_be_rebuilt |= self.is_repairing


class Links(Scenario):
    """One run.

    Attributes:
        sums: {key: sum} of all committed updates that the store has not lost.
        table: the reported values of each key, and how far the table is.
        to_table, to_hook: the links.
        hooks: the receivers of the webhook.
        store_restores: how often the store was set back.
    """

    has_table = True
    store_restores = 0
    change_seconds = 0.8
    """How long the operator waits between two operations, on average."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.report_path = folder / "report.db"
        self.sums: Counter[str] = Counter()
        self.table = Table()
        self.table_copy = TableCopy(self)
        self.connections = Connections(self)
        self.pause = self.rng.choice((0.1, 0.3, 1.0))
        if "targets are slow" in plan:
            self.change_seconds = LATE_SECONDS  # so that the next operation seldom hides what this has caused
        self.workers = WorkerPool(self, self._make_worker)
        self._saved: Counter[str] | None = None
        self._saved_clock = 0.0
        self._numbers_added = 0
        self._batch_entries = plan.rng("batches").choice((1, 2, 1_000))
        self.trouble = Trouble(lambda: self.hub.clock)
        self.to_table = Linked(LINK, self.trouble)
        self.to_hook = Linked(HOOK, Trouble(lambda: self.hub.clock))
        self.links = [self.to_table] if plan.on.isdisjoint(_HOOK_KINDS) else [self.to_table, self.to_hook]
        self.hooks = Hooks(self)

    @contextmanager
    def around(self) -> Iterator[None]:
        """SQL as the simulated processes see it; and each stop of a link is checked."""
        run, stop, load = NotedTask.run, NotedTask._stop, Worker._load
        begun: dict[NotedTask, float] = {}

        def loading(worker: Worker) -> None:
            if worker._work.found and self.happens("workers hear late", 0.5):  # not at its start
                self.hub.wait(self.hub.rng.expovariate(1 / LATE_SECONDS))
            load(worker)

        def running(task: NotedTask) -> float:
            begun[task] = self.hub.clock
            return run(task)

        def stopping(task: NotedTask, error: Any) -> float:
            self._check_stop(begun[task], error, self._trouble_of(task))
            return stop(task, error)

        with (
            self.connections.simulated(),
            patch.object(NotedTask, "run", running),
            patch.object(NotedTask, "_stop", stopping),
            patch.object(Worker, "_load", loading),
            patch.object(SqlTarget, "batch_entries", self._batch_entries),
            patch.object(WebhookTarget, "batch_entries", self._batch_entries),
        ):
            yield

    def begin(self) -> None:
        """Make the queue and its table, and start everybody."""
        os.environ[URL_ENV] = f"sqlite:///{self.report_path}"
        self._app().configure(self.inner, SUMS, buckets=self.rng.randint(1, 3))
        make_table(self.inner)
        if self.to_hook in self.links:
            self._link_hook(self.inner)
        self._start_all(self.rng.randint(1, 2))

    def _start_all(self, adders: int) -> None:
        for _ in range(adders):
            self.start_process("adder", "add", self._add_all)
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self.start_process("operator", "change", self._change)

    def _app(self) -> cq.App:
        made = cq.App()
        made.queue(SUMS, observers=[cq.Observer("anchor", 1, _observe)])
        for name in self.hooks.by_name:
            made.target(name)(partial(self.hooks.make_target, name))
        return made

    def _make_worker(self, process: Process, identity: str) -> Worker:
        return self.worker(process, identity, self._app(), concurrency=2, beat=1.0)

    # Adders

    def _add_all(self, process: Process) -> None:
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.pause))
            self._numbers_added += 1
            self._try(lambda: self._add(process))

    def _add(self, process: Process) -> None:
        rng = self.hub.rng
        keys = {rng.choice(_HOT), f"key {self._numbers_added // 10 + rng.randrange(3)}"}
        updates = {key: rng.randint(1, 3) * rng.choice((1, 1, -1)) for key in sorted(keys)}

        def run(tr: Any) -> None:
            cq.CombineQueue(SUMS).add(tr, updates)
            tr.notes.append(Summed(updates))

        transact(self.db(process), run)

    def _try(self, act: Callable[[], object]) -> None:
        """Do something that one of the databases, or cq, may refuse."""
        self.attempt(act, cq.CqError, sa.exc.DBAPIError)

    # The operator

    def _change(self, process: Process) -> None:
        doing = self._doing(process)
        kinds = [what for what in doing if what in self.plan]
        while kinds and not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.change_seconds))
            what = self.hub.rng.choice(kinds)
            self.trace(what)
            self._try(doing[what])

    def _doing(self, process: Process) -> dict[str, Callable[[], object]]:
        """{kind of operation: what begins it}."""
        return {
            "store set back": lambda: self.hub.start(self.sky, "change", self._set_store_back),
            "table set back": self._set_table_back,
            "hook set back": self._set_hook_back,
            "set back after a rebuild": lambda: self._set_back_after_a_rebuild(process),
            "hook moves": lambda: self._link_hook(self.db(process)),
            "hook comes and goes": lambda: self._come_and_go(self.db(process)),
            "send again": lambda: self._send_again(process),
            "set back once begun": lambda: self._set_back_once_begun(process),
            "come and go": lambda: self.workers.come_and_go(3),
        }

    def _trouble_of(self, task: Any) -> Trouble:
        """The trouble that may stop a task."""
        is_hook = isinstance(task.keys, LinkKeys) and task.keys.link == HOOK.link
        return (self.to_hook if is_hook else self.to_table).trouble

    def _check_stop(self, since: float, error: object, trouble: Trouble) -> None:
        """A step that began at this time has stopped a link."""
        try:
            trouble.check(since, error)
        except Violation as violation:
            self.violations.append(str(violation))

    def _send_again(self, process: Process) -> None:
        """Rebuild or rebase; a rebase leaves what a side lacks, so everything is sent again in the end."""
        linked = self.hub.rng.choice(self.links)
        if self.hub.rng.random() >= 0.3:
            self._rebase_link(process, linked)
            return
        with self._repairing(process, linked) as link:
            link.rebuild()
        if not linked.differs:
            linked.is_to_be_rebuilt = False

    def _rebase_link(self, process: Process, linked: Linked) -> None:
        with self._repairing(process, linked) as link:
            linked.is_to_be_rebuilt |= linked.differs
            link.rebase()

    def _set_back_once_begun(self, process: Process) -> None:
        """Set a target back at once after a rebase, when its buckets have the position from which the epoch begins.

        This operator begins only while both sides agree, and rebuilds a link that has stopped.
        """
        linked = self.hub.rng.choice(self.links)
        if self._has_stopped(linked):
            self._rebuild(process, linked)
        if linked.differs or not self._copy_target(linked, restore=False):
            return
        self.hub.wait(self.hub.rng.expovariate(1 / self.change_seconds))
        self._rebase_link(process, linked)
        if self._is_in_time(partial(self._has_begun, linked.keys), _LOOK_SECONDS):
            self._copy_target(linked, restore=True)

    def _is_in_time(self, is_so: Callable[[], bool], look_seconds: float) -> bool:
        """Wait until something is so; returns whether it is in time."""
        deadline = self.hub.clock + _BEGIN_SECONDS
        while not is_so():
            if self.hub.clock > deadline or self.is_calm:
                return False
            self.hub.wait(look_seconds)
        return True

    def _has_begun(self, keys: LinkKeys) -> bool:
        """Whether the keeper of a link has done everything, and no entry waits."""
        tr = self.inner.create_transaction().snapshot
        return tr.get(keys.keeper).value is None and not first_row(tr, {"": keys.all_rows()})

    def _copy_target(self, linked: Linked, *, restore: bool) -> bool:
        """Make a backup of a target, or restore it; returns whether this is done."""
        if linked is self.to_table:
            return self._note_copied(linked, self.table_copy.copy(restore=restore))
        is_restored = self.hooks.copy(self._hook_name(), restore=restore)
        return self._note_copied(linked, "restored" if is_restored else "saved")

    def _note_copied(self, linked: Linked, done: str) -> bool:
        if done == "restored":
            self._note_restored(linked)
        return done != ""

    def _note_restored(self, linked: Linked) -> None:
        """A target was set back. No worker may notice this until a rebase has begun in all buckets, as documented."""
        view = transact(self.inner, lambda tr: read_view(tr.snapshot, linked.keys, range(BUCKETS))())
        found = self._links_now().get(linked.keys.link)
        generation = 0 if found is None else found.generation  # all values are sent again in a later one
        epochs = {each.epoch for each in view.states.values() if generation_of(each.cleared) >= generation}
        linked.is_to_be_rebuilt |= not epochs <= {view.control.epoch}
        linked.note_restored()

    @contextmanager
    def _repairing(self, process: Process, linked: Linked) -> Iterator[OpenLink]:
        """Until a rebuild or rebase has ended both sides disagree; afterwards only if one is set back again."""
        with opened_link(self.db(process), SUMS, linked.keys.link, app=self._app()) as link:
            restores = self.store_restores, linked.restores
            linked.trouble.note(True)
            linked.is_repairing = True
            yield link
        linked.is_repairing = False
        if restores == (self.store_restores, linked.restores):
            linked.trouble.note(False)
            linked.differs = False

    def _set_table_back(self) -> None:
        self._note_copied(self.to_table, self.table_copy.save_or_restore())

    def _set_hook_back(self) -> None:
        self._note_copied(self.to_hook, "restored" if self.hooks.set_back(self._hook_name()) else "saved")

    def _link_hook(self, db: Any) -> None:
        """Link the queue to a receiver, or to another one in its place: this is a new generation."""
        name = self.hub.rng.choice(list(self.hooks.by_name))
        self.trace("the link goes to the receiver", name)
        admin.put_observer(db, SUMS, cq.links.app(name, name=HOOK.link))

    def _come_and_go(self, db: Any) -> None:
        """Remove the link to the receiver, or make it again."""
        if self._has_hook():
            self.trace("the link to the receiver is removed")
            admin.remove_observer(db, SUMS, OBSERVER + HOOK.link)
        else:
            self._link_hook(db)

    def _has_hook(self) -> bool:
        """Whether there is a link to a receiver now."""
        return HOOK.link in self._links_now()

    def _hook_name(self) -> str:
        """The name of the present receiver, or of the first one while the link is removed."""
        found = self._links_now().get(HOOK.link)
        return next(iter(self.hooks.by_name)) if found is None else str(found.settings["target"])

    def hook_generation(self) -> int:
        """The generation of the present link to a receiver; 0: there is none."""
        found = self._links_now().get(HOOK.link)
        return 0 if found is None else found.generation

    def _links_now(self) -> dict[str, ObserverConfig]:
        return links_in(transact(self.inner, lambda tr: read_config(tr, SUMS)))

    def _set_store_back(self) -> None:
        """Make a backup of the store, or restore the latest one."""
        if self._saved is None or self.hub.rng.random() < 0.5:
            self._save_store()
        else:
            self._restore_store()

    def _save_store(self) -> None:
        copy_store(self.path_of(STORE), self._store_copy)
        self._saved, self._saved_clock = self.sums.copy(), self.hub.clock + self.hub.jumped
        self.trace("the store is saved")

    def _restore_store(self) -> None:
        assert self._saved is not None
        for process in list(self._databases):
            if process.is_alive:
                self._die(process)
        for task in [each for each in self.hub.tasks if each.name == LANDING]:
            self.hub.tasks.discard(task)  # the commits under way are lost with the store
        self.inner.close()
        self.store_restores += 1
        shutil.copy(self._store_copy, self.path_of(STORE))
        self._open_store()
        if (
            self.hub.rng.random() < 0.5
        ):  # the clock, too: to a time after the backup, when lost versions come again
            self.hub.jumped = max(self.hub.rng.uniform(0, 1), self._saved_clock - self.hub.clock)
        self.sums = self._saved.copy()
        self._report_restored()
        for linked in self.links:
            linked.note_set_back()
        self.trace("the store is restored")

    def _set_back_after_a_rebuild(self, process: Process) -> None:
        """Set the receiver back to before a rebuild, with the store, or alone with a rebase; its sweep comes again."""
        if not self._is_in_time(self._is_swept, 25 * _LOOK_SECONDS):
            return
        name = self._hook_name()
        self._save_store()
        self.hooks.copy(name, restore=False)
        self._rebuild(process, self.to_hook)
        if not self._is_in_time(self._is_swept, 25 * _LOOK_SECONDS):
            return
        if self.hub.rng.random() < 0.5:
            self.hub.start(self.sky, "change", partial(self._set_both_back, name))
        else:
            self._restore_hook(name)
            self._rebase_link(process, self.to_hook)
            self._is_in_time(partial(self._has_begun, HOOK), 25 * _LOOK_SECONDS)
            self.hooks.sweep_late(name)

    def _is_swept(self) -> bool:
        """Whether the receiver has all values of the present generation."""
        control = transact(self.inner, lambda tr: read_control(tr.snapshot, HOOK))
        return control.swept == self.hook_generation()

    def _set_both_back(self, name: str) -> None:
        self._restore_store()
        self._restore_hook(name)
        self.hooks.sweep_late(name)

    def _restore_hook(self, name: str) -> None:
        self.hooks.copy(name, restore=True)
        self._note_restored(self.to_hook)

    def _report_restored(self) -> None:
        """The targets may get the entries that were queued in the backup, and then its values."""
        stored = self._stored()
        models = [(LINK, self.table), *((HOOK, model) for model in self.hooks.models.values())]
        for keys, model in models:
            for key, value in self._queued(keys):
                model.reported[key].append(value)
            for key, values in model.reported.items():
                values.append(stored.get(key))
        for hook in self.hooks.by_name.values():
            hook.forget_sequences()

    @property
    def _store_copy(self) -> Path:
        return self.folder / "store-copy.db"

    def path_of(self, name: str) -> Path:
        # A restored store gets another file: threads of the one before may still close its connections.
        return self.folder / f"{name}-{self.store_restores}.db"

    def _open_store(self) -> None:
        self.inner = self.inners[STORE] = self.open_store(STORE)
        self._boards[STORE].by_key.clear()

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Note what is committed."""
        for note in tr.notes:
            if isinstance(note, Summed):
                self.sums.update(note.updates)
            else:
                self.table.reported[note.key].append(note.value)
                self.hooks.report(note.key, note.value)

    def look_at_table(self, rows: dict[str, Any]) -> None:
        """The reporting database has committed something: no key goes back to an earlier value."""
        try:
            self.table.look(rows, set())
        except Violation as violation:
            self.violations.append(str(violation))

    def died(self, process: Process) -> None:
        self.connections.drop(process)

    # The end

    def settle(self) -> None:
        """Let two workers do everything; send all again if the operator has accepted a difference."""
        self.workers.replace(least=2)
        process = self.process("ending")
        self.hub.start(process, "finish", lambda: self._finish(process))

    def _finish(self, process: Process) -> None:
        self.hub.wait(2 * STOPPED_SECONDS)  # a link that was rebased does not stop again
        while True:
            for linked in self._present():
                if linked.is_to_be_rebuilt or self._has_stopped(linked):
                    self._try(partial(self._rebuild, process, linked))  # again, while a transaction is open
            retry_aside(self.db(process), SUMS)
            self.hub.wait(5.0)

    def _rebuild(self, process: Process, linked: Linked) -> None:
        with self._repairing(process, linked) as link:
            link.rebuild()
        linked.is_to_be_rebuilt = False

    def _has_stopped(self, linked: Linked) -> bool:
        """Whether a link has stopped for a reason that a rebuild ends; after one, or a rebase, it goes on by itself."""
        return linked.trouble.is_on and self.inner.get(linked.keys.stopped) is not None

    def _present(self) -> list[Linked]:
        """The links that there are now."""
        return [linked for linked in self.links if linked.keys.link in self._links_now()]

    def left(self) -> str:
        if any(linked.is_to_be_rebuilt for linked in self._present()):
            return "a rebuild"
        if stopped := [linked.keys.link for linked in self.links if self.inner.get(linked.keys.stopped)]:
            return f"stopped links: {stopped}"
        tr = self.inner.create_transaction().snapshot
        if found := first_row(tr, self._ranges()):
            return found
        stored = self._stored()
        targets = {"the table": self.connections.rows()}
        if self._has_hook():
            targets["the receiver"] = self.hooks.by_name[self._hook_name()].rows()
        for what, rows in targets.items():
            if rows != stored:
                return f"{what} differs from the values: {sorted(rows.items() ^ stored.items())}"
        return ""

    def _ranges(self) -> dict[str, tuple[bytes, bytes]]:
        """{name: range of keys} in which nothing is left at the end."""
        found = ranges_of(SUMS)
        for keys in (LINK, HOOK):
            found |= {f"{keys.link} entries": keys.all_rows(), f"{keys.link} failures": keys.failures()}
        if not self._has_hook():
            found["below a link that was removed"] = below(HOOK.prefix)
        return found

    def _queued(self, keys: LinkKeys) -> list[tuple[str, Any]]:
        """The entries of a link's log, in order for each key."""
        limits = ReadLimits(read_version=1 << 62, size=1 << 62, entries=1 << 62)
        tr = self.inner.create_transaction().snapshot
        found = [read_entries(tr, keys, bucket, limits) for bucket in range(BUCKETS)]
        return [(entry.key, entry.value) for bucket in found for entry in bucket.entries]

    def _stored(self) -> dict[str, Any]:
        return dict(cq.CombineQueue(SUMS).scan(self.inner))

    def check(self) -> None:
        """Raises `Violation` unless the values are the sums of the updates that the store has."""
        expected = {key: total for key, total in self.sums.items() if total}
        if (stored := self._stored()) != expected:
            raise Violation(f"the values are {stored}, expected {expected}")
        if self._has_hook() and self.plan.on.isdisjoint(_SENDS_AGAIN):
            self.hooks.check_exactly_once(self._hook_name())
        check_verified(self.inner, SUMS, app=self._app(), wait=0)

    def close(self) -> None:
        self.connections.close()
        super().close()


def _observe(tr: Any, changes: list[cq.Change]) -> None:
    tr.notes += [Told(change.key, change.new) for change in changes]
