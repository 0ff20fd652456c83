"""The protocol between worker and receiver under crashes, lost and late requests, and two workers at once.

The receiver is the one of the page. Every entry must have its effect once, in order, and nothing may stop the export:
operators rebase it at any time, but neither side is set back. Broken variants must be found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq.keys import after
from cq.keys.export import ExportKeys
from cq.observers.export.batch import ExportBatch, ExportFailed
from cq.observers.export.failure_note import FailureNote
from cq.observers.export.keeper import empty_batches
from cq.observers.export.queue import BUCKETS
from cq.observers.export.state import read_view
from cq.observers.export.task import ExportTask
from cq.observers.sink.exporter import SentPosition
from cq.observers.sink.operate import _store_epoch
from cq.observers.webhook.client import Answer
from cq.observers.webhook.exporter import WebhookExporter
from cq.observers.webhook.message import Source
from cq.store.transact import transact
from tests.observers.export.exporthelpers import add, waits, with_settings
from tests.observers.webhook.webhookhelpers import Kept

KEYS = ("a", "b", "c")
STORE = b"s" * 16
ROUNDS = 25
SEEDS = 4
CANARY_SEEDS = 25


class Killed(BaseException):
    """The process ends at this point."""


class Drill:
    """One run: entries are added and exported by workers that fail in all ways; then by one that does not.

    Attributes:
        added: {key: all values added, in order}.
    """

    def __init__(self, db: Any, folder: Path, seed: int) -> None:
        self.db = db
        self.name = f"drill{seed}"
        self.rng = random.Random(seed)
        self.kept = Kept(folder / f"{self.name}.db")
        self.added: dict[str, list[int]] = {}
        self._late: list[tuple[str, bytes]] = []
        self._stops: list[str] = []
        self._depth = 0
        self._is_calm = False

    # The receiver, as the network shows it

    def check(self) -> str:
        return "here"

    def close(self) -> None:
        pass

    def post(self, message: str, body: bytes) -> Answer:
        if self._is_calm:
            return self.kept.post(message, body)
        draw = self.rng.random()
        if draw < 0.1:
            self._late.append((message, body))  # lost, but the network has a copy
            raise ExportFailed("no answer")
        answer = self.kept.post(message, body)
        if draw < 0.2:
            raise ExportFailed("no answer")
        return answer

    # Workers

    def _tasks(self) -> list[ExportTask]:
        exporter = WebhookExporter(Source(STORE, self.name), 1, self)
        exporter.signal = self._at
        sizes = {"batch_entries": self.rng.choice((1, 2, 5, 50)), "signal": self._at}
        return [
            with_settings(ExportTask(self.db, self.name, bucket, exporter), **sizes)
            for bucket in range(BUCKETS)
        ]

    def _at(self, point: str) -> None:
        """Between two steps of a worker others act, or it dies."""
        if self._is_calm:
            return
        draw = self.rng.random()
        if draw < 0.05:
            raise Killed
        if draw < 0.15 and self._depth < 2:
            self._depth += 1
            self._act()
            self._depth -= 1

    def _act(self) -> None:
        doing: list[Callable[[], object]] = [self._add, self._work, self._work, self._deliver_late]
        if self.rng.random() < 0.2:
            self._rebase()
        self.rng.choice(doing)()

    def _add(self) -> None:
        pairs = []
        for _ in range(self.rng.randint(1, 4)):
            key = self.rng.choice(KEYS)
            values = self.added.setdefault(key, [])
            values.append(len(values))
            pairs.append((key, values[-1]))
        add(self.db, self.name, *pairs)

    def _work(self) -> None:
        depth = self._depth
        try:
            for task in self._tasks():
                while task.run() == 0.0:
                    pass
        except Killed:
            self._depth = depth

    def _deliver_late(self) -> None:
        if self._late:
            self.kept.post(*self._late.pop(self.rng.randrange(len(self._late))))

    def _rebase(self) -> None:
        keys = ExportKeys(self.name)
        found = transact(self.db, lambda tr: read_view(tr.snapshot, keys, range(BUCKETS))())
        exporter = WebhookExporter(Source(STORE, self.name), 1, self.kept)
        stored = exporter.positions(empty_batches(self.db, self.name, found))
        epoch = max([found.control.epoch, *(each.epoch for each in stored)]) + 1
        transact(self.db, lambda tr: _store_epoch(tr, keys, epoch))

    def run(self) -> str:
        """Run; returns what is wrong, or an empty text. Neither side is set back, so nothing may stop the export."""

        def stopped(note: Any, what: object, epoch: int, generation: int, error: Exception) -> float:
            self._stops.append(str(error))
            return 1.0

        with patch.object(FailureNote, "stop", stopped):
            for _ in range(ROUNDS):
                self._add()
                self._work()
                if self.rng.random() < 0.1:
                    self._rebase()
        if self._stops:
            return f"it stops without a cause: {self._stops[0]}"
        self._is_calm = True
        for task in self._tasks():
            while task.run() == 0.0:
                pass
            if task.problem:
                return task.problem
        while self._late:
            self._deliver_late()
        if waits(self.db, self.name):
            return "entries wait"
        history = self.kept.history()
        return "" if history == self.added else f"{history} instead of {self.added}"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    database: Any = cq.open(f"embedded:{tmp_path / 'test.db'}")
    yield database
    database.close()


@pytest.mark.parametrize("number", range(SEEDS))
def test_every_change_has_its_effect_once_in_order(db: Any, tmp_path: Path, number: int) -> None:
    drill = Drill(db, tmp_path, number)
    assert drill.run() == ""
    assert drill.kept.history().keys() == set(KEYS)


# Broken variants


def clears_rows_without_the_position() -> Any:
    """The transaction that clears entries does not store the position of the last one."""

    def clear(self: ExportTask, tr: Any, read: Any) -> None:
        tr.clear_range(self.keys.rows(self.bucket)[0], after(read.queued.last_key))

    return patch.object(ExportTask, "_clear", clear)


def clears_before_it_sends() -> Any:
    """A worker clears a batch before the receiver has it."""
    export = ExportTask._export

    def clear_first(self: ExportTask, read: Any) -> None:
        transact(self.db, lambda tr: self._clear(tr, read))
        export(self, read)

    return patch.object(ExportTask, "_export", clear_first)


def sends_entries_again_after_a_conflict() -> Any:
    """After an answer 409 a worker sends all entries, also those that the receiver has."""
    return patch.object(WebhookExporter, "_may_follow", lambda self, batch, stored: b"")


def takes_a_conflict_for_success() -> Any:
    """A worker takes an answer 409 for one of success."""
    apply = WebhookExporter._apply

    def ignore(self: WebhookExporter, *args: Any) -> None:
        apply(self, *args)

    return patch.object(WebhookExporter, "_apply", ignore)


def names_no_previous_position() -> Any:
    """The receiver cannot find out that a request is late or repeated: it takes every one."""
    post = Kept.post

    def forced(self: Kept, message: str, body: bytes) -> Answer:
        with self.opened() as db:
            db.execute("DELETE FROM positions")
            db.commit()
        return post(self, message, body.replace(b'"previous":"', b'"previous":"","was":"'))

    return patch.object(Kept, "post", forced)


def skips_the_rest_after_a_conflict() -> Any:
    """After an answer 409 a worker takes the whole batch for applied."""

    def skip(self: WebhookExporter, batch: Any, stored: SentPosition) -> bytes:
        return bytes(batch.last)

    return patch.object(WebhookExporter, "_may_follow", skip)


def accepts_another_epoch() -> Any:
    """A worker takes the receiver's position of another epoch for one of its own."""
    progress = WebhookExporter._progress

    def accept(self: WebhookExporter, batch: Any, stored: SentPosition) -> bytes:
        return progress(self, batch, SentPosition(batch.epoch, stored.sequence))

    return patch.object(WebhookExporter, "_progress", accept)


def goes_on_with_a_batch_of_another_epoch() -> Any:
    """A worker that has read its batch before a rebase takes the positions after it for those of a former store."""
    progress = WebhookExporter._progress

    def go_on(self: WebhookExporter, batch: ExportBatch, stored: SentPosition) -> bytes:
        def read_position(sequence: bytes) -> Any:
            return batch.read_position(sequence)._replace(epoch=batch.epoch)

        return progress(self, replace(batch, read_position=read_position), stored)

    return patch.object(WebhookExporter, "_progress", go_on)


@pytest.mark.parametrize(
    "broken",
    [
        clears_rows_without_the_position,
        clears_before_it_sends,
        sends_entries_again_after_a_conflict,
        takes_a_conflict_for_success,
        names_no_previous_position,
        skips_the_rest_after_a_conflict,
        accepts_another_epoch,
        goes_on_with_a_batch_of_another_epoch,
    ],
)
def test_a_broken_variant_is_found(db: Any, tmp_path: Path, broken: Callable[[], Any]) -> None:
    with broken():
        assert any(Drill(db, tmp_path, number).run() for number in range(CANARY_SEEDS))
