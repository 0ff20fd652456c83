"""`drain`: the work of workers in the calling thread, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from cq import runtime
from cq.admin.backfill import publish_generations
from cq.admin.conversion import finish_conversion
from cq.admin.rebucketing import finish_rebucket
from cq.app import App, QueueCode
from cq.bucket.pass_runner import PassRunner
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, queue_names, read_config, with_levels
from cq.errors import CodeMismatch, ConfigurationError, QueueNotConfigured, WrongType
from cq.keys import QueueKeys
from cq.observers.builtin import FACTORIES, observer_parts
from cq.observers.feeds.tasks import feed_part, readable_feeds
from cq.observers.scheduling.task import Task
from cq.observers.tasks.timed import ExpiryTask
from cq.observers.top import index
from cq.queue.combine_queue import CombineQueue
from cq.queue.rows import notified
from cq.store.api import Database, Transaction
from cq.store.transact import transact

ROUNDS: Final = 1_000
"""Limit of the rounds of `drain`: in each round, observers may add to queues again."""


def drain(db: Database, *queues: str | CombineQueue, app: App | None = None) -> None:
    """Do all work of workers: expire keys and slices of windows, combine, call observers, publish clouds and export.

    Without queues it also delivers, numbers and trims the messages of all feeds.

    It runs in the calling thread, in the same order each time, and without pauses. It does not retry a failed export,
    and it sets updates aside as a worker does. `assert_drained` checks that neither has happened.

    Args:
        db: a database of either store.
        queues: the queues, which include their levels and windows; default: all queues of the store. Use the
            default if observers add to queues.
        app: the application's combiners, observers and targets.

    Raises:
        QueueNotConfigured: a given queue does not exist.
        ConfigurationError: a queue with queued updates is paused, or `app` lacks its code.
        ManyFailed: the combiner fails for so many keys that a worker would pause the queue.
        AssertionError: observers add to the queues without end.
    """
    names = names_of(db, queues)
    code_of = app or App()
    for _ in range(ROUNDS):
        _finish_changes(db, names)
        _notify_due(db, names)
        waiting = transact(db, lambda tr: _notified(tr, names))
        for name in filter(waiting.get, waiting):
            code = transact(db, lambda tr: _code(tr, name, code_of))  # noqa: B023 - runs at once
            for shape in code.shapes:  # the updates of a former shape are older, so they come first
                # The shapes may be others than those that `waiting` was read with: the next round reads both again.
                for generation, number in waiting[name]:
                    if generation == shape.config.generation and number < shape.config.buckets:
                        _combine(db, shape, number)
        if not any(waiting.values()):
            break
    else:
        raise AssertionError(
            f"after {ROUNDS:,} rounds there are still updates to combine, in the queues "
            f"{', '.join(filter(waiting.get, waiting))}: do observers add to them again and again?"
        )
    for name in waiting:
        config = transact(db, lambda tr: read_config(tr.snapshot, name))  # noqa: B023
        for part in observer_parts(db, _without_pauses(config), code_of):
            run_tasks(part.make())
    if not names:
        _serve_feeds(db)


def names_of(db: Database, queues: Sequence[str | CombineQueue]) -> list[str]:
    """The names of these queues, and of the levels of their roll-ups."""
    if any(isinstance(each, App) for each in queues):
        raise WrongType("expected queues, got an application: `drain` takes it as app=")
    given = [queue if isinstance(queue, str) else queue.name for queue in queues]
    return transact(db, lambda tr: with_levels(tr.snapshot, given)) if given else []


def _notified(tr: Transaction, names: list[str]) -> dict[str, list[tuple[int, int]]]:
    """The buckets with work (generation and number) of these queues, or of all queues; raises `QueueNotConfigured`."""
    found = {}
    for name in names or queue_names(tr.snapshot):
        config = read_config(tr.snapshot, name)
        keys = QueueKeys(name)
        rows = tr.snapshot.get_range(*keys.notifications())
        found[name] = [bucket for bucket in notified(rows, keys) if config.has_bucket(*bucket)]
    return found


def _code(tr: Transaction, name: str, app: App) -> QueueCode:
    if (flags := read_flags(tr.snapshot, name)).is_paused(runtime.time()):
        raise ConfigurationError(f"queue {name!r} has queued updates and is paused: {flags.reason}")
    return app.code(read_config(tr.snapshot, name), FACTORIES)


def _finish_changes(db: Database, names: list[str]) -> None:
    """Finish the backfills, conversions and rebucketings that are complete, as workers do."""
    steps = publish_generations, finish_conversion, finish_rebucket
    is_changed = True
    while is_changed:  # a change of a level ends before or after that of its queue
        is_changed = False
        for name in names or transact(db, lambda tr: queue_names(tr.snapshot)):
            with suppress(QueueNotConfigured):  # `_notified` raises it
                is_changed |= any(step(db, name) for step in steps)


def _notify_due(db: Database, names: list[str]) -> None:
    """Notify the buckets of due keys, as workers do; not of a paused queue, whose keys do not expire."""
    for name in names or transact(db, lambda tr: queue_names(tr.snapshot)):
        if transact(db, lambda tr: read_flags(tr.snapshot, name)).is_paused(runtime.time()):  # noqa: B023
            continue
        with suppress(QueueNotConfigured):  # `_notified` raises it
            task = ExpiryTask(db, name)
            while task.run() == 0.0:
                pass


def _combine(db: Database, code: QueueCode, number: int) -> None:
    bucket = PassRunner(db, code, number)
    try:
        with suppress(CodeMismatch):  # the configuration has changed meanwhile
            while bucket.combine().more:
                pass
    finally:
        transact(db, bucket.attempts.end)


def _serve_feeds(db: Database) -> None:
    for feed in transact(db, lambda tr: readable_feeds(tr.snapshot)):
        run_tasks(feed_part(db, feed).make())


def _without_pauses(config: QueueConfig) -> QueueConfig:
    """The configuration, with a top that publishes its cloud after every change, without a pause."""
    observers = [
        replace(each, settings={**each.settings, "every": 0}) if each.name == index.NAME else each
        for each in config.observers
    ]
    return replace(config, observers=tuple(observers))


def run_tasks(tasks: Sequence[Task]) -> None:
    """Run tasks until they are done, or until none of the others makes progress: some tasks wait for others."""
    unfinished, before = tasks, 0
    while len(unfinished) != before:
        before = len(unfinished)
        unfinished = [task for task in unfinished if _run(task) >= 0.0]
    for task in tasks:
        task.end()


def _run(task: Task) -> float:
    while (seconds := task.run()) == 0.0:
        pass
    return seconds
