"""The system of the queues: adders, emitters, an administrator, workers, their application, and the log of it all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import cq
from cq import admin, links
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observers.top.index import top
from cq.store.api import VERSIONS_PER_SECOND
from tests.simulation import ending
from tests.simulation.actors import Adders, Drains, Workers
from tests.simulation.administrator import REMEMBER_SECONDS, Administrator, Trimmer
from tests.simulation.application import FEED, OTHER_COMBINERS, OTHERS, STORED, SUMS, TEXTS, TOP, Other, app
from tests.simulation.calling import Called, Callers
from tests.simulation.drill import Drill
from tests.simulation.emitting import Emitters, Flushed
from tests.simulation.hub import Process
from tests.simulation.loading import DOCUMENTS, FILES, Loaded, Loaders
from tests.simulation.model import (
    Added,
    Feed,
    QueueModel,
    Reported,
    Shaped,
    Table,
    Violation,
    concatenate,
    total,
)
from tests.simulation.plan import Plan
from tests.simulation.readers import Readers, Watcher
from tests.simulation.scenario import Scenario
from tests.simulation.sql import URL_ENV, Connections, TableCopy, make_table
from tests.simulation.store import CommitRequest


class World(Scenario):
    """One run.

    Attributes:
        extra: the version of the observer that comes and goes; 0 while there is none.
        versions: how many versions of it operators have made.
        drill: that of the end, once it has begun.
        damaged: the queues with damage that is not repaired yet.
        spoiled: {key in the store: queue and former value} of values that were made unreadable.
    """

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.extra = 0
        self.report_path = folder / "report.db"
        self.has_table = "table" in plan
        self.models = {
            TEXTS: QueueModel(TEXTS, concatenate, self._is_forgotten),
            SUMS: QueueModel(SUMS, total, self._is_forgotten),
        }
        self.other: Other = plan.rng("other combiners").choice(OTHER_COMBINERS)
        if "other combiners" in plan:
            shows_all = self.other.shows_all
            self.models[OTHERS] = QueueModel(
                OTHERS, self.other.combine, self._is_forgotten, shows_all=shows_all
            )
        if DOCUMENTS in plan or FILES in plan:
            self.models[STORED] = QueueModel(STORED, total, self._is_forgotten)
        self.feed = Feed(is_ordered=plan.on <= {"feed", "come and go"})
        self.table = Table()
        self.table_copy = TableCopy(self)
        self._shapes: dict[str, tuple[int, bytes | None]] = {}
        self.connections = Connections(self)
        self.adders, self.workers, self.administrator = Adders(self), Workers(self), Administrator(self)
        self.drains = Drains(self)
        self.emitters = Emitters(self)
        self.callers = Callers(self)
        self.readers, self.top_watcher = Readers(self), Watcher(self)
        self.versions = 0
        self.damaged: set[str] = set()
        self.spoiled: dict[bytes, tuple[str, bytes]] = {}
        self.drill: Drill | None = None
        self.loaders = Loaders(self)

    def around(self) -> AbstractContextManager[object]:
        """SQL as the simulated processes see it, and notes of what calls of `add_now` add."""
        stack = ExitStack()
        stack.enter_context(self.connections.simulated())
        stack.enter_context(self.callers.noting())
        return stack

    def begin(self) -> None:
        """Make the queues, and start everybody."""
        self._make_queues()
        for _ in range(self.rng.randint(1, 3)):
            self.adders.start()
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self.administrator.start()
        if "two operators" in self.plan:
            Administrator(self).start()
        if "pending reads" in self.plan:
            self.readers.start()
        if "short-lived ids" in self.plan:
            Trimmer(self).start()
        if "emitters" in self.plan:
            self.emitters.start()
        if "single adds" in self.plan:
            self.callers.start()
        if STORED in self.models:
            self.loaders.start()

    def _make_queues(self) -> None:
        os.environ[URL_ENV] = f"sqlite:///{self.report_path}"
        self._texts_buckets = self.rng.randint(1, 5)
        self.configure_texts(self.inner)
        app(self, 0).configure(self.inner, SUMS, buckets=self.rng.randint(1, 5), audit="audit" in self.plan)
        if OTHERS in self.models:
            app(self, 0).configure(
                self.inner, OTHERS, value=self.other.value, combiner=self.other.name, buckets=2
            )
        if "feed" in self.plan:
            cq.configure(self.inner, FEED, links=[links.app(FEED)])
        if STORED in self.models:
            cq.configure(self.inner, STORED, buckets=self.plan.rng("stored").randint(1, 3))
        for name in self.models.keys() - {STORED}:
            self.models[name].observers.append((0, {"anchor": 1}))
        if "top" in self.plan:
            admin.put_observer(self.inner, SUMS, top(TOP, every=self.rng.choice((0, 0.5)), ranks=True))
        if "table" in self.plan:
            make_table(self.inner)
        self._note_shapes(0)

    def configure_texts(self, db: Any) -> None:
        """Configure the queue of texts, with the application as it is now."""
        app(self, self.extra).configure(db, TEXTS, value=str, buckets=self._texts_buckets)

    def settle(self) -> None:
        """See `ending`, here and below."""
        ending.settle(self)

    def left(self) -> str:
        return ending.left(self)

    def unsettled(self) -> str:
        return ending.not_shared(self)

    def check(self) -> None:
        ending.check(self)

    def close(self) -> None:
        self.connections.close()
        super().close()

    def died(self, process: Process) -> None:
        self.connections.drop(process)

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Note what is committed."""
        for name, model in self.models.items():
            begin, end = QueueKeys(name).aside()
            for key in tr.stamped:
                if begin <= key < end:
                    model.touched.add(key_of_aside(name, key))
        if tr.has_changed_shapes:
            self._note_shapes(version)
        self.top_watcher.look()
        for note in tr.notes:
            if isinstance(note, Flushed):
                note.account.commit(note)
            elif isinstance(note, Called):
                self.callers.commit(note)
            elif isinstance(note, Loaded):
                self.loaders.note(note)
            else:
                self._log_note(tr, version, note)

    def _note_shapes(self, version: int) -> None:
        """Note for each queue the version of the latest change of its own configuration."""
        for name in self.models:
            stored = self.inner.get(QueueKeys(name).config)
            if name not in self._shapes or self._shapes[name][1] != stored:
                self._shapes[name] = version, stored

    def _log_note(self, tr: CommitRequest, version: int, note: Added | Shaped | Reported) -> None:
        model = self.models[note.queue]
        if isinstance(note, Added):
            self._check_shape(tr, note)
            model.add(version, note)
        elif isinstance(note, Shaped):
            self._log_shape(model, version, note)
        else:
            if (note.queue, note.observer) == (TEXTS, "anchor"):
                self.feed.added[note.key].append(note.new)
            if (note.queue, note.observer) == (SUMS, "anchor"):
                self.table.reported[note.key].append(note.new)
            model.report(tr.read_version, note)

    def _check_shape(self, tr: CommitRequest, note: Added) -> None:
        """No add commits under a configuration other than the one that it has read. Raises `Violation`."""
        shape = self._shapes[note.queue][0]
        if shape > tr.read_version:
            raise Violation(
                f"an add has been committed under an outdated configuration: {note}, read at {tr.read_version}, "
                f"its queue was last configured at {shape}"
            )

    def _log_shape(self, model: QueueModel, version: int, note: Shaped) -> None:
        if note.purged:
            model.purges.append(version)
            if note.queue == STORED:
                self.loaders.purge()
        if note.deleted:
            model.delete()
            self.emitters.delete(note.queue)
        if note.rebuilt is not None:
            model.rebuild(note.rebuilt)
        if note.observers is not None:
            model.observers.append((version, note.observers))
            self.extra = note.observers.get("extra", 0)

    def _is_forgotten(self, name: str, operation: str | bytes, age: int) -> bool:
        """Whether an operation id was forgotten before its latest commit, which then counts.

        Ids are remembered for a number of seconds at least; later than that, the store says it.
        """
        if "short-lived ids" not in self.plan or age < REMEMBER_SECONDS * VERSIONS_PER_SECOND:
            return False
        bounds = QueueKeys(name).markers(codec.encode_operation(operation))
        return len(self.inner.get_range(*bounds)) == 1

    def look_at_table(self, rows: dict[str, Any]) -> None:
        """The reporting database has committed something; these are the rows of the table now."""
        try:
            self.table.look(rows, self.models[SUMS].touched)
        except Violation as violation:
            self.violations.append(str(violation))

    def refused(self, store: str, tr: CommitRequest, code: int) -> None:
        """Promise 1: an add conflicts with nothing but a change of its own queue's configuration.

        Of two tries of an emitter's flush, one conflicts if the other one lands late; and a flush conflicts if its
        emitter's key is trimmed meanwhile, which short-lived ids alone allow. Those who load read how far they are.
        """
        adds = [note for note in tr.notes if isinstance(note, Added) and note.queue != STORED]
        may_conflict = ("commits land late" in self.plan or "short-lived ids" in self.plan) and any(
            isinstance(note, Flushed) for note in tr.notes
        )
        shape = max((self._shapes[note.queue][0] for note in adds), default=0)
        if code == 1020 and adds and not may_conflict and shape <= tr.read_version:
            self.violations.append(
                f"an add has a conflict: {adds}, read at {tr.read_version}, its queue was last configured at {shape}"
            )


def key_of_aside(name: str, key: bytes) -> str:
    """The key of which something is set aside, given the store's key with a versionstamp's place in it."""
    encoded = QueueKeys(name).parse_aside(key[:-4])[0]
    return str(codec.decode(encoded)) if encoded else ""
