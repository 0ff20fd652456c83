"""Tools for tests of applications: a store for each test, a function that does the work of workers, and assertions.

`pytest_plugins = ["cq.testing"]` in the topmost conftest.py adds the fixtures `cq_db` and `cq_aio_db`. Import the
functions; they work with any database. No other module of cq imports this one, or pytest.

PYTEST_DONT_REWRITE: the module has no `assert`, so an import before its registration as a plugin does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from cq import runtime
from cq.admin.backfill import publish_generations
from cq.admin.rebucket import finish_rebucket
from cq.app import App, QueueCode
from cq.bucket.pass_runner import PassRunner
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, queue_names, read_config, with_levels
from cq.encoding.codec import DELETE
from cq.errors import ConfigurationError, QueueNotConfigured
from cq.keys import QueueKeys
from cq.observers.builtin import FACTORIES, observer_tasks
from cq.observers.export.task import exporter_tasks
from cq.observers.monitoring.export_status import export_queues, read_export_status
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.tasks.timed import ExpiryTask
from cq.observers.top import index
from cq.queue.combine_queue import CombineQueue
from cq.queue.rows import decode_row, notified
from cq.queue.set_aside import Aside, read_aside
from cq.store import OpenDatabase
from cq.store.api import Database, Transaction
from cq.store.embedded import Database as Embedded
from cq.store.transact import transact

if TYPE_CHECKING:
    from cq.aio import AsyncDatabase

__all__ = ["assert_drained", "assert_values", "cq_aio_db", "cq_db", "drain"]

ROUNDS: Final = 1_000
"""Limit of the rounds of `drain`: in each round, observers may add to queues again."""
_ROWS: Final = 100  # read for a message, of each kind
_SHOWN: Final = 10  # lines of each kind in a message
_CHARACTERS: Final = 200  # of each key and value in a message
_TRIES: Final = 5


@pytest.fixture
def cq_db(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenDatabase]:
    """A new embedded store in a temporary file, for one test. $CQ_STORE names it, so `cq.open()` opens it, too.

    Commits do not wait for the disk, because the store need not survive a power failure.
    """
    path = tmp_path_factory.mktemp("cq") / "test.db"
    monkeypatch.setenv("CQ_STORE", f"embedded:{path}")
    with Embedded(path, power_safe=False) as db:
        yield db


@pytest.fixture
def cq_aio_db(cq_db: OpenDatabase) -> AsyncDatabase:
    """The store of `cq_db` for tests that are coroutines, in any event loop of asyncio; needs the extra `aio`.

    `await cq_aio_db.call(drain)` drains it, and `await cq_aio_db.call(assert_values, queue, {...})` compares values.
    """
    from cq.aio import AsyncDatabase  # needs greenlet, which other tests do without

    return AsyncDatabase(cq_db)


def drain(db: Database, *queues: str | CombineQueue, app: App | None = None) -> None:
    """Do all work of workers: expire keys and slices of windows, combine, call observers, publish clouds and export.

    It runs in the calling thread, in the same order each time, and without pauses. It does not retry a failed export,
    and it sets updates aside as a worker does. `assert_drained` checks that neither has happened.

    Args:
        db: a database of either store.
        queues: the queues, which include their levels and windows; default: all queues of the store. Use the
            default if observers add to queues.
        app: the application's combiners, observers and exporters.

    Raises:
        QueueNotConfigured: a given queue does not exist.
        ConfigurationError: a queue with queued updates is paused, or `app` lacks its code.
        ManyFailed: the combiner fails for so many keys that a worker would pause the queue.
        AssertionError: observers add to the queues without end.
    """
    names = _names(db, queues)
    code_of = app or App()
    for _ in range(ROUNDS):
        _notify_due(db, names)
        waiting = transact(db, lambda tr: _notified(tr, names, code_of))
        for name in filter(waiting.get, waiting):
            code = transact(db, lambda tr: _code(tr, name, code_of))  # noqa: B023 - runs at once
            shapes = {shape.config.generation: shape for shape in code.shapes}
            for generation, number in waiting[name]:
                # In this order: updates of a former shape are older, so they come first.
                _combine(db, shapes[generation], number)
            publish_generations(db, name)
            finish_rebucket(db, name)
        if not any(waiting.values()):
            break
    else:
        raise AssertionError(
            f"after {ROUNDS:,} rounds there are still updates to combine, in the queues "
            f"{', '.join(filter(waiting.get, waiting))}: do observers add to them again and again?"
        )
    exporters = {name: each for name, each in code_of.exporters.items() if name in names or not names}
    for name in waiting:
        config = transact(db, lambda tr: read_config(tr.snapshot, name))  # noqa: B023
        found = observer_tasks(db, _without_pauses(config))
        for tasks in found.values():
            _run_tasks(tasks)
        if "export" in found:
            exporters.pop(name, None)  # the export to a table handles all entries
    for name, exporter in exporters.items():
        _run_tasks(exporter_tasks(db, name, exporter))


def assert_values(db: Database, queue: str | CombineQueue, expected: Mapping[Any, Any]) -> None:
    """Assert that the queue has exactly the expected keys and values.

    The message names missing, extra and different keys, queued updates, and updates that were set aside.
    """
    __tracebackhide__ = True
    handle = _queue(queue)
    found = dict(handle.scan(db))
    missing = [f"{_short(key)}: expected {_short(expected[key])}" for key in expected if key not in found]
    extra = sorted(f"{_short(key)}: found {_short(found[key])}" for key in found if key not in expected)
    different = [
        f"{_short(key)}: expected {_short(value)}, found {_short(found[key])}"
        for key, value in expected.items()
        if key in found and found[key] != value
    ]
    lines = [
        f"{what} {line}"
        for what, lines in (("missing", missing), ("extra", extra), ("different", different))
        for line in _first_lines(lines)
    ]
    if lines:
        lines += transact(db, lambda tr: _remaining(tr, handle.name))
        raise AssertionError("\n  ".join([f"queue {handle.name!r} has other values than expected:", *lines]))


def assert_drained(db: Database, *queues: str | CombineQueue) -> None:
    """Assert that the queues (default: all queues) have no updates to combine or to export, and none set aside.

    A queue includes the levels of its roll-up. The message names these updates, with errors. All queues are read in one
    transaction, so workers may run: a change that they move from one queue to another one is always seen in one of
    them. A transaction lives five seconds: name the queues if a cluster has thousands.
    """
    __tracebackhide__ = True
    names = _names(db, queues)
    lines = transact(db, lambda tr: _remaining_in(tr, names or _all_names(tr)))
    if lines:
        raise AssertionError("\n  ".join(["not everything is combined and exported:", *lines]))


def _queue(queue: str | CombineQueue) -> CombineQueue:
    return queue if isinstance(queue, CombineQueue) else CombineQueue(queue)


def _names(db: Database, queues: Sequence[str | CombineQueue]) -> list[str]:
    """The names of these queues, and of the levels of their roll-ups."""
    given = [_queue(queue).name for queue in queues]
    return transact(db, lambda tr: with_levels(tr.snapshot, given)) if given else []


# Draining


def _notified(tr: Transaction, names: list[str], app: App) -> dict[str, list[tuple[int, int]]]:
    """The buckets with work (generation and number) of these queues, or of all queues; raises `QueueNotConfigured`.

    It skips export queues, which have neither such buckets nor a configuration.
    """
    found = {}
    configured = queue_names(tr.snapshot)
    for name in names or configured:
        if name not in configured and name in app.exporters:
            continue
        read_config(tr.snapshot, name)
        keys = QueueKeys(name)
        rows = tr.snapshot.get_range(*keys.notifications())
        found[name] = notified(rows, keys)
    return found


def _code(tr: Transaction, name: str, app: App) -> QueueCode:
    if (flags := read_flags(tr.snapshot, name)).is_paused(runtime.time()):
        raise ConfigurationError(f"queue {name!r} has queued updates and is paused: {flags.reason}")
    return app.code(read_config(tr.snapshot, name), FACTORIES)


def _notify_due(db: Database, names: list[str]) -> None:
    """Notify the buckets of due keys, as workers do; not of a paused queue, whose keys do not expire."""
    for name in names or transact(db, lambda tr: queue_names(tr.snapshot)):
        if transact(db, lambda tr: read_flags(tr.snapshot, name)).is_paused(runtime.time()):  # noqa: B023
            continue
        with suppress(QueueNotConfigured):  # an export queue, or `_notified` raises it
            task = ExpiryTask(db, name)
            while task.run() == 0.0:
                pass


def _combine(db: Database, code: QueueCode, number: int) -> None:
    bucket = PassRunner(db, code, number)
    try:
        while bucket.combine().more:
            pass
    finally:
        transact(db, bucket.attempts.end)


def _without_pauses(config: QueueConfig) -> QueueConfig:
    """The configuration, with a top that publishes its cloud after every change, without a pause."""
    observers = [
        replace(each, settings={**each.settings, "every": 0}) if each.name == index.NAME else each
        for each in config.observers
    ]
    return replace(config, observers=tuple(observers))


def _run_tasks(tasks: Sequence[Task]) -> None:
    """Run tasks until they are done, or until none of the others makes progress: some tasks wait for others."""
    unfinished, before = tasks, 0
    while len(unfinished) != before:
        before = len(unfinished)
        unfinished = [task for task in unfinished if _run(task) != DONE]
    for task in tasks:
        task.end()


def _run(task: Task) -> float:
    while (seconds := task.run()) == 0.0:
        pass
    return seconds


# Remaining work


def _all_names(tr: Transaction) -> list[str]:
    return sorted({*queue_names(tr.snapshot), *export_queues(tr)})


def _remaining_in(tr: Transaction, names: Sequence[str]) -> list[str]:
    """Lines about the remaining work of these queues, each with the name of its queue."""
    tr.options.set_retry_limit(_TRIES)  # a transaction that gets too old each time would be retried for ever
    return [f"queue {name!r}: {line}" for name in names for line in _remaining(tr, name)]


def _remaining(tr: Transaction, name: str) -> list[str]:
    """Lines about queued updates of a queue, rows to export, and updates set aside."""
    lines = _remaining_in_queue(tr, name) if name in queue_names(tr.snapshot) else []
    now = tr.get_read_version().wait()
    for each in (read_export_status(tr, each, now) for each in export_queues(tr, name)):
        if each.rows or each.state != "active":
            error = f": {each.error}" if each.error else ""
            lines.append(f"rows to export: {each.rows:,}; the export is {each.state}{error}")
        if each.aside:
            lines.append(f"changes set aside because they could not be exported: {each.aside:,}")
    return lines


def _remaining_in_queue(tr: Transaction, name: str) -> list[str]:
    snapshot, keys = tr.snapshot, QueueKeys(name)
    config, flags = read_config(snapshot, name), read_flags(snapshot, name)
    rows = [decode_row(row.key, row.value) for row in snapshot.get_range(*keys.all_rows(), limit=_ROWS)]
    updates = [
        f"{_short(config.key.decode(encoded))} {_short(update)}"
        for row in rows
        for encoded, update in row.updates
    ]
    lines = []
    if updates:
        lines.append(f"queued updates, in commit order by bucket: {', '.join(_first_lines(updates))}")
    elif buckets := len(snapshot.get_range(*keys.notifications()).to_list()):
        lines.append(f"{buckets:,} buckets wait for a pass")
    if lines and flags.is_paused(runtime.time()):
        lines.append(f"it is paused: {flags.reason}")
    return lines + _first_lines(
        [_aside_line(config, each) for each in read_aside(snapshot, name, limit=_ROWS)]
    )


def _aside_line(config: QueueConfig, each: Aside) -> str:
    key = _short(config.key.decode(each.encoded_key)) if each.encoded_key else "a row that cq has not written"
    return f"set aside {key} {_short(each.updates)}: {each.error}"


def _first_lines(lines: list[str]) -> list[str]:
    """The first lines, and the number of the others."""
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"... and {more:,} more"] if more > 0 else lines


def _short(value: object) -> str:
    text = "DELETE" if value is DELETE else repr(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
