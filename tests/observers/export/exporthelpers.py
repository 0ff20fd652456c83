"""What tests of exports need: tasks without a worker, exporters that keep what they get, entries that wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cq
from cq.keys.export import ExportKeys
from cq.observers.builtin import FACTORIES
from cq.observers.export import state as exportstate
from cq.observers.export.batch import ExportBatch
from cq.observers.export.queue import BUCKETS, ExportQueue
from cq.observers.export.state import AsideEntry
from cq.observers.export.task import ExportTask
from cq.observers.scheduling.runner import DONE
from cq.store.transact import transact
from tests.helpers import stored


class BuiltInApp(cq.App):
    """An app that has the built-in observers."""

    def code(self, wanted: Any, built_in: Any = None) -> Any:
        return super().code(wanted, built_in or FACTORIES)


class Kept:
    """An exporter that keeps what it gets, as a store of latest values would."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.batches: list[ExportBatch] = []
        self.sequences: dict[Any, bytes] = {}

    def __call__(self, batch: ExportBatch) -> None:
        self.batches.append(batch)
        for entry in batch:
            if entry.sequence <= self.sequences.get(entry.key, b""):
                continue
            self.sequences[entry.key] = entry.sequence
            if entry.value is None:
                self.values.pop(entry.key, None)
            else:
                self.values[entry.key] = entry.value


def add(db: Any, name: str, *pairs: tuple[Any, Any]) -> None:
    """Add entries in one transaction."""
    transact(db, lambda tr: ExportQueue(name).add_many(tr, pairs))


def tasks(db: Any, name: str, exporter: Callable[[ExportBatch], object], **limits: Any) -> list[ExportTask]:
    """A task for each bucket."""
    return [with_settings(ExportTask(db, name, bucket, exporter), **limits) for bucket in range(BUCKETS)]


def with_settings(task: ExportTask, **settings: Any) -> ExportTask:
    """The task with other limits of a batch, or with a function that is called between its steps."""
    for what, value in settings.items():
        setattr(task, what, value)
    return task


def export_all(db: Any, name: str, exporter: Callable[[ExportBatch], object], **limits: Any) -> None:
    """Run every bucket's task until it has nothing to do; fails when one fails."""
    for task in tasks(db, name, exporter, **limits):
        run_to_end(task)


def run_to_end(task: Any) -> None:
    """Run a task until it has nothing to do; fails when it fails."""
    while (pause := task.run()) != DONE:
        assert pause == 0.0, task.problem


def waits(db: Any, name: str) -> int:
    """How many rows wait to be exported."""
    return len(stored(db, ExportKeys(name).all_rows()))


def notified(db: Any, name: str) -> list[int]:
    """The buckets that have a notification."""
    keys = ExportKeys(name)
    values = transact(db, lambda tr: [tr.get(keys.notification(bucket)).value for bucket in range(BUCKETS)])
    return [bucket for bucket, value in enumerate(values) if value is not None]


def entries_aside(db: Any, name: str) -> list[AsideEntry]:
    """What was set aside."""
    return list(exportstate.entries_aside(db, ExportKeys(name)))


def run_killed(store: str, point: str) -> None:
    """Export the queue `words` to its sink in a process that kills itself at this point, or at none."""
    script = Path(__file__).with_name("sinkworker.py")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script), store, point]
    ended = subprocess.run(command, env=environment, timeout=120, check=False, capture_output=True)
    assert ended.returncode == (0 if point == "none" else -signal.SIGKILL), ended.stderr
