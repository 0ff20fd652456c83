"""The checks of `cq doctor`: the installation, the store, its queues and their exports.

Each check is a function that returns its finding, or raises an error that says what to do.
"""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from cq import runtime
from cq.config.flags import read_flags
from cq.config.queue import queue_names, read_config
from cq.distribution import version
from cq.errors import ConfigurationError, CorruptData, CqError, InvalidConfiguration, InvalidUrl
from cq.keys.outbox import OutboxKeys
from cq.observers.export.batch import ExportFailed
from cq.observers.export.spec import NAME
from cq.observers.forward.observer import NAME as FORWARD
from cq.observers.forward.observer import forward_exporter
from cq.observers.kafka.observer import NAME as KAFKA
from cq.observers.monitoring.doctor_cluster import ClusterStore
from cq.observers.monitoring.doctor_embedded import EmbeddedStore
from cq.observers.outbox.state import OutboxSettings
from cq.observers.sinks import opened_sink
from cq.observers.sql.configured import find_export
from cq.observers.webhook.observer import NAME as WEBHOOK
from cq.store import OpenDatabase, located, space_at
from cq.store.api import Transaction, error_code
from cq.store.space import Space
from cq.store.transact import transact

TIMEOUT_SECONDS: Final = 5.0
"""Time limit of each transaction, so that every check ends."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: of the checked object.
        ok: whether it is in order.
        message: the finding, or what to do.
    """

    name: str
    ok: bool
    message: str


def doctor(url: str | None = None) -> Iterator[Check]:
    """Check this installation, the store of `url` (as `cq.open` takes it), its queues and their exports.

    Skips checks that depend on a failed one. Creates no store and changes no data; loads the binding if installed.
    """
    yield _check("python", lambda: f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    yield _check("cq", version)
    try:
        scheme, path = located(url)
        space = space_at(url)
    except (InvalidUrl, InvalidConfiguration) as error:
        yield Check("store", False, str(error))
        return
    store = ClusterStore(path) if scheme == "fdb" else EmbeddedStore(path)
    before = [_check(name, check) for name, check in store.before().items()]
    yield from before
    if all(each.ok for each in before) and store.exists():
        try:
            yield from _opened(store, space)
        finally:
            store.close()


def _opened(store: ClusterStore | EmbeddedStore, space: Space) -> Iterator[Check]:
    """The checks that need the store."""
    queues: list[str] = []

    def read() -> str:
        db = space.database(store.open())
        db.options.set_transaction_timeout(int(TIMEOUT_SECONDS * 1000))
        queues.extend(transact(db, lambda tr: queue_names(tr.snapshot)))
        return f"it answers; queues: {len(queues)}"

    answered = _check("store", read)
    yield answered
    if not answered.ok:
        return
    for name, check in store.after().items():
        yield _check(name, check)
    db = space.database(store.db)
    yield from _queues(db, queues)
    for queue in queues:
        for name, check in store.of_queue(queue, space).items():
            yield _check(name, check)
    checks = {NAME: _export, FORWARD: _forward, WEBHOOK: _sink, KAFKA: _sink}
    for observer, check_observer in checks.items():
        for queue in queues:
            if transact(db, partial(_has, queue=queue, observer=observer)):
                yield _check(f"{observer} of {queue}", partial(check_observer, db, queue))
    for queue in transact(db, partial(_with_outbox, queues=queues)):
        yield _check(f"outbox of {queue}", partial(_outbox, db, queue))
    yield from _outbox_tables(db)


def _queues(db: OpenDatabase, names: list[str]) -> Iterator[Check]:
    """A check of each queue, followed by those of its levels that have something to do of their own."""
    sources = transact(db, lambda tr: _sources(tr, names))
    found = {name: _check(f"queue {name}", partial(_queue, db, name)) for name in names}
    for name in sorted(names, key=lambda name: (sources.get(name, name), name)):
        source = sources.get(name)
        if source is None or not (found[name].ok or found[name].message == found[source].message):
            yield found[name]


def _check(name: str, check: Callable[[], str]) -> Check:
    """Run a check; raises errors other than those of cq, the store and the system."""
    try:
        return Check(name, True, check())
    except (CqError, OSError) as error:
        message = str(error)
    except Exception as error:
        if error_code(error) is None:
            raise
        message = f"the store failed: {error}"
    return Check(name, False, " ".join(message.split()))


def _queue(db: OpenDatabase, queue: str) -> str:
    def read(tr: Transaction) -> str:
        config, flags = read_config(tr.snapshot, queue), read_flags(tr.snapshot, queue)
        if flags.is_paused(runtime.time()):
            source = config.level_of.queue if config.level_of else queue
            raise ConfigurationError(
                f"paused ({flags.reason}): run `cq resume {source}` when the cause is fixed"
            )
        levels = f", levels: {', '.join(config.level_names)}" if config.rollup else ""
        return f"active, buckets: {config.buckets}{levels}"

    return transact(db, read)


def _sources(tr: Transaction, queues: list[str]) -> dict[str, str]:
    """{level of a roll-up: its queue}, without levels whose queue is not one of these."""
    found = {}
    for name in queues:
        with suppress(CqError):  # the check of the queue reports the error
            level_of = read_config(tr.snapshot, name).level_of
            if level_of is not None and level_of.queue in queues:
                found[name] = level_of.queue
    return found


def _has(tr: Transaction, queue: str, observer: str) -> bool:
    """Whether a queue has an observer."""
    try:
        return any(each.name == observer for each in read_config(tr.snapshot, queue).observers)
    except (ConfigurationError, CorruptData):
        return False  # the check of the queue has reported the error


def _export(db: OpenDatabase, queue: str) -> str:
    # SQLAlchemy takes long to import: only where something is exported.
    from cq.observers.sql.check import check

    found = find_export(db, queue)
    try:
        try:
            with found.reporting.reading():
                pass
        except ExportFailed as error:
            variable = found.observer.settings["url_env"]
            raise ExportFailed(
                f"the reporting database cannot be used: start it, or correct its URL in ${variable} ({error})"
            ) from error
        with found.reporting.reading() as (conn, dialect):
            check(conn, dialect, found.definition, queue)
        return f"{found.reporting}: the tables are as expected"
    finally:
        found.reporting.close()


def _with_outbox(tr: Transaction, queues: list[str]) -> list[str]:
    """The queues that have an outbox, also one whose settings are unreadable: its check reports the error."""
    return [queue for queue in queues if tr.snapshot.get(OutboxKeys(queue).settings).present()]


def _outbox(db: OpenDatabase, queue: str) -> str:
    from cq.observers.outbox.operate import outbox_status  # imports SQLAlchemy, as `_export`

    found = outbox_status(db, queue)
    if found.error:
        raise ExportFailed(f"{found.state}: {found.error}")
    if found.aside:
        raise ExportFailed(
            f"rows that the queue refuses: {found.aside:,}: `cq outbox aside {queue}` shows their errors"
        )
    oldest = "" if found.oldest_seconds is None else f", the oldest {found.oldest_seconds:,.1f} s old"
    return f"rows to add: {found.rows:,}{oldest}"


def _outbox_tables(db: OpenDatabase) -> Iterator[Check]:
    """A check of each table that has rows of outboxes."""
    from cq.observers.outbox.strays import outbox_tables, place_of, table_status  # imports SQLAlchemy

    def check(settings: OutboxSettings, queues: list[str]) -> str:
        found = table_status(db, settings, queues)
        if findings := found.findings():
            raise ExportFailed("; ".join(findings))
        return "each row is of a queue with an outbox"

    for settings, queues in outbox_tables(db).items():
        yield _check(f"outbox table in {place_of(settings)}", partial(check, settings, queues))


def _forward(db: OpenDatabase, queue: str) -> str:
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    exporter = forward_exporter(db, config, next(each for each in config.observers if each.name == FORWARD))
    try:
        return exporter.check_receiver()
    finally:
        exporter.close()


def _sink(db: OpenDatabase, queue: str) -> str:
    with opened_sink(db, queue) as sink:
        return sink.check()
