"""Processes that load documents, files and logs into a queue without observers, and what must come of it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cq
from cq.intake.documents import Documents
from cq.intake.json_lines import add_jsonl
from cq.intake.lines import AddedLines
from cq.intake.logs import LogFollower
from cq.store.transact import transact
from tests.simulation.application import STORED, NotingQueue
from tests.simulation.hub import Process
from tests.simulation.model import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

DOCUMENTS: Final = "documents"
FILES: Final = "files"
LOGS: Final = "logs"
"""Of a log that is rotated, in each run with files."""
_FILE: Final = b"a file"
_LINES: Final = 300


@dataclass(frozen=True)
class Loaded:
    """A transaction has added what a document or the lines of a file make."""

    source: str
    updates: tuple[tuple[str, int], ...]


def _queue(source: str) -> NotingQueue:
    return NotingQueue(STORED, partial(Loaded, source))


class Loaders:
    """The processes that load.

    Attributes:
        totals: the sums of the updates that they have committed since the latest purge, by source.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.plan.rng("loaders")
        self.totals: dict[str, Counter[str]] = {each: Counter() for each in (DOCUMENTS, FILES, LOGS)}
        self.path: Path = world.folder / "updates.jsonl"
        self._written: Counter[str] = Counter()
        self.log: Path = world.folder / "logs" / "access.log"
        self._logged: Counter[str] = Counter()
        self._documents = Documents(_queue(DOCUMENTS))

    def start(self) -> None:
        """Begin, with the kinds of loading that the plan has."""
        if DOCUMENTS in self.world.plan:
            for _ in range(2):
                self.world.start_process("documents", "load", self._store_documents)
        if FILES in self.world.plan:
            self._write_lines(_LINES)
            self.world.start_process("loader", "load", self._load_again)
            self.log.parent.mkdir()
            self._write_log(_LINES)
            self.world.start_process("follower", "load", self._follow_again)

    def note(self, note: Loaded) -> None:
        """A transaction that has loaded something is committed."""
        for key, update in note.updates:
            self.totals[note.source][key] += update

    def purge(self) -> None:
        """A purge forgets the documents and how far files are loaded, so the file is loaded once more."""
        for total in self.totals.values():
            total.clear()

    # Documents

    def _store_documents(self, process: Process) -> None:
        """Store, change and remove a few documents, each now by one process and now by another."""
        hub, rng = self.world.hub, self.world.hub.rng
        db = self.world.db(process)
        while not self.world.is_calm:
            hub.wait(rng.expovariate(1 / 0.5))
            document = b"document %d" % rng.randrange(3)
            counts = {f"k{rng.randrange(6)}": rng.randrange(4) for _ in range(rng.randrange(5))}
            self.world.attempt(partial(self._change, db, document, counts), cq.CqError)

    def _change(self, db: Any, document: bytes, counts: dict[str, int]) -> None:
        documents = self._documents
        kind = self.world.hub.rng.randrange(5)
        if kind == 0:
            documents.put(db, document, counts)
        elif kind == 1:
            documents.remove(db, document)
        elif kind == 2:
            transact(db, lambda tr: documents.clear(tr, document))
        else:

            def twice(tr: Any) -> None:
                documents.set(tr, document, {"k0": 1})
                documents.set(tr, document, counts)

            transact(db, twice if kind == 3 else lambda tr: documents.set(tr, document, counts))

    # Files

    def _write_lines(self, number: int) -> None:
        rng = self.rng
        with self.path.open("a") as file:
            for _ in range(number):
                key, update = f"f{rng.randrange(5)}", rng.randint(1, 3)
                self._written[key] += update
                file.write(json.dumps({"key": key, "update": update}) + "\n")

    def _load_again(self, process: Process) -> None:
        """Load the file again and again while lines are appended to it."""
        hub, rng = self.world.hub, self.world.hub.rng
        while not self.world.is_calm:
            self.world.attempt(partial(self._load, self.world.db(process)), cq.CqError)
            hub.wait(rng.expovariate(1.0))
            if rng.random() < 0.3:
                self._write_lines(rng.randint(1, 50))

    def _load(self, db: Any) -> None:
        with self.path.open("rb") as file:
            add_jsonl(db, _queue(FILES), file, name=_FILE)

    # Logs

    def _write_log(self, number: int) -> None:
        rng = self.world.hub.rng
        with self.log.open("a") as file:
            for _ in range(number):
                key = f"l{rng.randrange(5)}"
                self._logged[key] += 1
                # The lines of a log differ by their times: so do those of two files.
                file.write(f"{key} {self._logged.total()}\n")

    def _rotate(self) -> None:
        """Rename the log, or copy and truncate it; some former files are compressed."""
        rng = self.world.hub.rng
        former = self.log.with_name(f"{self.log.name}-{20260000 + self._logged.total()}")
        # Before the first position and after a purge, a follower begins with the present file.
        is_begun = self.totals[LOGS] and "purge" not in self.world.plan and "delete" not in self.world.plan
        if not is_begun or not self.log.stat().st_size:
            return
        if rng.random() < 0.5:
            self.log.rename(former)
            self.log.touch()
        else:
            shutil.copyfile(self.log, former)
            os.truncate(self.log, 0)
        if rng.random() < 0.3:
            former.with_name(f"{former.name}.gz").write_bytes(gzip.compress(former.read_bytes()))
            former.unlink()

    def _follow_again(self, process: Process) -> None:
        """Follow the log for a while, again and again, while lines are written and the log is rotated."""
        while not self.world.is_calm:
            self.world.attempt(partial(self._follow, self.world.db(process)), cq.CqError)
            self.world.hub.wait(self.world.hub.rng.expovariate(1.0))
            self._change_log()

    def _change_log(self) -> None:
        rng = self.world.hub.rng
        if rng.random() < 0.5:
            self._write_log(rng.randint(1, 20))
        if rng.random() < 0.3:
            self._rotate()

    def _follow(self, db: Any) -> None:
        with closing(LogFollower(db, STORED, self.log)) as follower:
            for _ in range(4):
                while follower.add_next(_add_log):
                    pass
                if self.world.is_calm:
                    break
                self._change_log()

    # The end

    def finish(self, process: Process) -> None:
        """Load the rest of the file."""
        if FILES in self.world.plan:
            self.world.attempt(partial(self._load, self.world.db(process)), cq.CqError)
            self.world.attempt(partial(self._follow, self.world.db(process)), cq.CqError)

    def check(self) -> None:
        """Raises `Violation` unless sums are those of all documents, and each line was added once."""
        stored: Counter[str] = Counter()
        for document in list(self._documents.ids(self.world.inner)):
            stored.update(transact(self.world.inner, lambda tr: self._documents.counts(tr, document)))  # noqa: B023
        if _without_zeros(stored) != _without_zeros(self.totals[DOCUMENTS]):
            raise Violation(f"the documents have {stored}, and {self.totals[DOCUMENTS]} was added for them")
        if FILES in self.world.plan and self.totals[FILES] != self._written:
            raise Violation(f"the file has {self._written}, and {self.totals[FILES]} was added")
        if FILES in self.world.plan and self.totals[LOGS] != self._logged:
            raise Violation(f"the log has {self._logged}, and {self.totals[LOGS]} was added")


def _add_log(tr: Any, lines: Sequence[bytes], once: Any) -> AddedLines:
    _queue(LOGS).add(tr, Counter(line.split()[0].decode() for line in lines))
    return AddedLines(len(lines), len(lines))


def _without_zeros(counts: Counter[str]) -> dict[str, int]:
    return {key: count for key, count in counts.items() if count}
