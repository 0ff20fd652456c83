"""Looking at all that cq needs, one thing after the other: for `cq doctor`.

Each look is a function that returns what it has found, or raises an error that says what to do.
"""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final

from cq import runtime
from cq.config.queue import queue_names, read_config, read_flags
from cq.errors import ConfigurationError, CorruptData, CqError, InvalidUrl
from cq.observers.export.errors import ExportFailed
from cq.observers.forward.observer import forward_exporter
from cq.observers.forward.spec import NAME as FORWARD
from cq.observers.monitoring.doctor_cluster import ClusterStore
from cq.observers.monitoring.doctor_embedded import EmbeddedStore
from cq.observers.sql.configured import NAME, find_export
from cq.store import OpenDatabase, located
from cq.store.api import Transaction, TransactionRead, error_code
from cq.store.transact import transact

TIMEOUT_SECONDS: Final = 5.0
"""What each transaction may take, so that every look ends."""


@dataclass(frozen=True, slots=True)
class Check:
    """A look at one thing.

    Attributes:
        name: of the thing.
        ok: whether it is as it should be.
        message: what was found, or what to do.
    """

    name: str
    ok: bool
    message: str


def doctor(url: str | None = None) -> Iterator[Check]:
    """Look at this installation, at the store of `url` (as `cq.open` takes it), its queues and their exports.

    What cannot be looked at because of something before is left out. No store is made, and no data touched; the
    binding, if there is one, is loaded.
    """
    yield _look("python", lambda: f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    yield _look("cq", lambda: version("cq"))
    try:
        scheme, path = located(url)
    except InvalidUrl as error:
        yield Check("store", False, str(error))
        return
    store = ClusterStore(path) if scheme == "fdb" else EmbeddedStore(path)
    before = [_look(name, look) for name, look in store.before().items()]
    yield from before
    if all(check.ok for check in before) and store.exists():
        try:
            yield from _opened(store)
        finally:
            store.close()


def _opened(store: ClusterStore | EmbeddedStore) -> Iterator[Check]:
    """The checks that need the store."""
    queues: list[str] = []

    def read() -> str:
        db = store.open()
        db.options.set_transaction_timeout(int(TIMEOUT_SECONDS * 1000))
        queues.extend(transact(db, lambda tr: queue_names(tr.snapshot)))
        return f"it answers; queues: {len(queues)}"

    answered = _look("store", read)
    yield answered
    if not answered.ok:
        return
    for name, look in store.after().items():
        yield _look(name, look)
    for queue in queues:
        yield _look(f"queue {queue}", partial(_queue, store.db, queue))
    for observer, look_at in ((NAME, _export), (FORWARD, _forward)):
        for queue in transact(store.db, partial(_those_with, queues=queues, observer=observer)):
            yield _look(f"{observer} of {queue}", partial(look_at, store.db, queue))


def _look(name: str, look: Callable[[], str]) -> Check:
    """What came of a look; errors that are neither cq's, nor the store's, nor the system's are raised."""
    try:
        return Check(name, True, look())
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
            raise ConfigurationError(
                f"paused ({flags.reason}): run `cq resume {queue}` when the cause is mended"
            )
        return f"active, buckets: {config.buckets}"

    return transact(db, read)


def _those_with(tr: Transaction, queues: list[str], observer: str) -> list[str]:
    """The queues that have an observer."""
    return [queue for queue in queues if _has(tr.snapshot, queue, observer)]


def _has(tr: TransactionRead, queue: str, observer: str) -> bool:
    try:
        return any(each.name == observer for each in read_config(tr, queue).observers)
    except (ConfigurationError, CorruptData):
        return False  # which the look at the queue has said


def _export(db: OpenDatabase, queue: str) -> str:
    from cq.observers.sql.check import (
        check,  # SQLAlchemy takes long to import: only where something is exported
    )

    found = find_export(db, queue)
    try:
        try:
            with found.reporting.reading():
                pass
        except ExportFailed as error:
            variable = found.observer.settings["url_env"]
            raise ExportFailed(
                f"the reporting database cannot be used: start it, or mend its URL in ${variable} ({error})"
            ) from error
        with found.reporting.reading() as (conn, dialect):
            check(conn, dialect, found.definition, queue)
        return f"{found.reporting}: the tables are as expected"
    finally:
        found.reporting.close()


def _forward(db: OpenDatabase, queue: str) -> str:
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    exporter = forward_exporter(db, config, next(each for each in config.observers if each.name == FORWARD))
    try:
        return exporter.check_receiver()
    finally:
        exporter.close()
